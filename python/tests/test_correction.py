"""What is done to gradients before a codec, beside the papers' formulas by hand."""

from __future__ import annotations

import herringbone
import numpy as np
import pytest
from herringbone.correction import Correction, Rates, corrected, mask_sent, share_at, with_momentum

GRADIENTS = np.random.default_rng(1).standard_normal((6, 50)).astype(np.float32)


def test_velocities_are_those_of_the_paper() -> None:
    """Deep Gradient Compression, equation 4: u = m u + g, written as a sum over all steps."""
    velocity = np.zeros(50, np.float32)
    for step, gradient in enumerate(GRADIENTS):
        sent = with_momentum(velocity, gradient, 0.5)
        assert sent is velocity
        by_hand = sum(0.5 ** (step - past) * GRADIENTS[past] for past in range(step + 1))
        assert np.allclose(sent, by_hand, rtol=1e-6, atol=1e-6)


def test_nesterovs_momentum_is_byteps() -> None:
    """BytePS: m = mu m + g, and g + mu m is sent."""
    velocity, by_hand = np.zeros(50, np.float32), np.zeros(50)
    for gradient in GRADIENTS:
        sent = with_momentum(velocity, gradient, 0.9, nesterov=True)
        by_hand = 0.9 * by_hand + gradient
        assert np.allclose(sent, gradient + 0.9 * by_hand, rtol=1e-5, atol=1e-5)
        assert np.allclose(velocity, by_hand, rtol=1e-5, atol=1e-5)


def test_the_velocity_of_what_was_sent_begins_anew() -> None:
    """Deep Gradient Compression, section 3.2, with the mask of the largest: what is sent leaves neither residual nor velocity."""
    velocity, left = np.zeros((2, 50), np.float32)
    for gradient in GRADIENTS:
        with_momentum(velocity, gradient, 0.9)
        wanted = velocity + left
        mask = np.abs(wanted) >= np.sort(np.abs(wanted))[-5]
        left = np.where(mask, np.float32(0), wanted)
        before = velocity.copy()
        mask_sent(velocity, left)
        assert (velocity[mask] == 0).all() and (velocity[~mask] == before[~mask]).all() and mask.sum() == 5


def test_shares_warm_up_by_equal_factors() -> None:
    shares = [share_at(step, 0.25 / 16, 4) for step in range(6)]
    assert shares == pytest.approx([1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 64])
    assert share_at(0, 0.5, 10) == 0.5, "no share grows"


def test_a_codecs_share_falls_in_four_stages() -> None:
    """The schedule of the paper's section 3.3, 75 %, 93.75 %, 98.4375 % and 99.6 % of gradients left out, each for an epoch."""
    warmed = Correction(warmup_steps=40)
    codecs = [warmed.codec_at("topk:0.0009765625", step) for step in range(50)]
    assert list(dict.fromkeys(codecs)) == ["topk:0.25", "topk:0.0625", "topk:0.015625", "topk:0.00390625", "topk:0.0009765625"]
    assert [codecs.count(codec) for codec in dict.fromkeys(codecs)] == [10] * 5
    assert {Correction(warmup_steps=2).codec_at("randomk:0.5", step) for step in range(4)} == {"randomk:0.5"}
    assert Correction().codec_at("int8", 0) == "int8"


def test_residuals_follow_rates() -> None:
    rates = Rates()
    assert [rates.follow("call", [rate]) for rate in (0.1, 0.1, 0.05, 0.2)] == [1.0, 1.0, 2.0, 0.25]
    assert [rates.follow("call", [rate]) for rate in (0.0, 0.1)] == [1.0, 2.0], "a rate of 0 moves nothing"
    several = Rates()
    assert [several.follow("call", now) for now in ([0.1, 1.0], [0.01, 0.1])] == pytest.approx([1.0, 10.0])
    with pytest.raises(herringbone.ArgumentError, match="call: the learning rates changed from .* not by one common factor"):
        several.follow("call", [0.01, 0.01])
    assert Rates([0.4]).follow("call", [0.1]) == 4.0, "from a saved state"


@pytest.mark.parametrize(
    "codec, numbers, said",
    [
        ("topk:0.01", {"momentum": 1.0}, "momentum is 1.0; pass a number from 0, below 1"),
        ("topk:0.01", {"momentum": float("nan")}, "momentum is nan"),
        ("topk:0.01", {"momentum": "0.9"}, "momentum is a str"),
        ("topk:0.01", {"nesterov": True}, "nesterov without momentum"),
        ("topk:0.01", {"warmup_steps": -1}, "warmup_steps is -1"),
        ("topk:0.01", {"warmup_steps": 1.5}, "warmup_steps is a float"),
        ("topk:0.01", {"masking": True}, "masking without momentum"),
        ("twobit:1", {"masking": True, "momentum": 0.5}, "twobit:1 does not tell which elements were sent whole"),
        ("int8", {"warmup_steps": 8}, "int8 has no share that could fall from 1/4; leave it out, or use topk or randomk"),
    ],
)
def test_wrong_numbers_are_refused(codec: str, numbers: dict[str, object], said: str) -> None:
    with pytest.raises((TypeError, herringbone.ArgumentError), match=f"hook: .*{said}"):
        corrected("hook", codec, **{"momentum": 0.0, "nesterov": False, "warmup_steps": 0, **numbers})
