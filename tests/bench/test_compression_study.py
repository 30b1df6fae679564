"""The page of the study of compression, and its labels."""

from __future__ import annotations

import pathlib
import random
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from compression import page, rate_rows
from labels import spread


def result(
    codec: str, feedback: bool, rate: float, score: float, held: float | None = None, **options: object
) -> dict[str, object]:
    """What a worker says of a training."""
    curve = [(10, 100 if codec == "none" else 25, 2.0), (20, 200 if codec == "none" else 50, 0.5)]
    about = {"task": "digits", "title": "Digits: a network", "codec": codec, "feedback": feedback, "options": options}
    return {**about, "rate": rate, "curve": curve, "score": score, "held": held}


def test_a_row_for_each_way_has_its_best_rate_in_bold() -> None:
    results = [
        *(result("none", False, rate, score) for rate, score in ((0.01, 90.0), (0.1, 80.0))),
        *(result("sign", True, rate, score, held) for rate, score, held in ((0.01, 70.0, 3.25), (0.1, 10.0, 1e9))),
        *(result("sign", False, rate, score) for rate, score in ((0.01, 60.0), (0.1, 95.0))),
        *(result("topk:0.01", True, rate, 50.0, 12.3, momentum=0.9, warmup_steps=40) for rate in (0.01, 0.1)),
    ]
    assert list(rate_rows(results)) == [
        ["none", "**90.0**", "80.0"],
        ["`sign`, with feedback", "**70.0 (3.2)**", "10.0 (diverged)"],
        ["`sign`, without", "60.0", "**95.0**"],
        ["`topk:0.01`, with feedback, momentum before the codec, warm-up of the share", "**50.0 (12)**", "50.0 (12)"],
    ]


def test_the_page_names_codecs_that_stay_behind() -> None:
    results = [result("none", False, 0.3, 90.0), result("sign", True, 0.3, 80.0), result("sign", False, 0.3, 91.0)]
    text = page(results, results, 20, 10, 2)
    assert "| `sign` | 0.250 | 0.500 | 80.00 % (-10.00) | 0.500 | 91.00 % (+1.00) |" in text
    assert "`sign` in digits by 10.00 points" in text
    assert "20 steps each" in text and "10 steps with momentum 0.9" in text


@pytest.mark.parametrize("seed", range(20))
def test_labels_lie_apart_in_the_order_of_their_curves(seed: int) -> None:
    drawing = random.Random(seed)
    wanted = [drawing.choice([drawing.random(), 0.0, 0.5]) for _ in range(9)]
    places = spread(wanted, 0.05, 0.0, 0.95)
    ordered = [place for _, place in sorted(zip(wanted, places))]
    assert all(after - before >= 0.05 - 1e-9 for before, after in zip(ordered, ordered[1:]))
    assert min(places) >= 0 and max(places) <= 0.95 + 1e-9
    assert spread([0.2, 0.8], 0.05, 0.0, 0.95) == [0.2, 0.8], "those that are apart stay"
