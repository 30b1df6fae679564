"""Compressed all-reduces of numpy arrays beside simulations of every codec in numpy, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cases
import ml_dtypes
import numpy as np
from cases import MUCH, error_of, check_out_of_memory

import herringbone
from herringbone import _herringbone

CASES, case = cases.registry()

BLOCK = 4096
STEPS = 4

Array = np.ndarray
Codec = Callable[[Array], Array]


def cast(dtype: object) -> Codec:
    return lambda x: x.astype(dtype).astype(np.float32)


def int8(x: Array) -> Array:
    largest = np.float32(np.abs(x).max())
    if largest == 0:
        return np.zeros_like(x)
    codes = np.clip(np.rint(x * (np.float32(127) / largest)), -127, 127).astype(np.float32)
    return codes * (largest / np.float32(127))


def onebit(threshold: float) -> Codec:
    return lambda x: np.where(x > np.float32(threshold), np.float32(1), np.float32(-1))


def twobit(threshold: float) -> Codec:
    t = np.float32(threshold)
    return lambda x: np.where(x >= t, t, np.where(x <= -t, -t, np.float32(0)))


def sign(x: Array) -> Array:
    mean = np.float32(np.cumsum(np.abs(x), dtype=np.float64)[-1] / x.size)
    return np.where(x < 0, -mean, mean)


def topk(share: float) -> Codec:
    def code(x: Array) -> Array:
        kept = int(np.ceil(np.float64(np.float32(share)) * x.size))
        places = np.argsort(-np.abs(x), kind="stable")[: max(kept, 1)]
        decoded = np.zeros_like(x)
        decoded[places] = x[places]
        return decoded

    return code


def threshold(least: float) -> Codec:
    t = np.float32(least)
    return lambda x: np.where(np.abs(x) > t, np.copysign(t, x), np.float32(0))


CODECS: dict[str, tuple[Codec, bool]] = {
    "bf16": (cast(ml_dtypes.bfloat16), True),
    "fp16": (cast(np.float16), True),
    "int8": (int8, True),
    "onebit:0": (onebit(0), False),
    "twobit:0.5": (twobit(0.5), False),
    "sign": (sign, False),
    "topk:0.01": (topk(0.01), False),
    "threshold:0.25": (threshold(0.25), False),
    "exact": (lambda x: x, False),
}
"""By name, how it is simulated, and whether results are coded by it again."""


def blockwise(code: Codec, x: Array) -> Array:
    return np.concatenate([code(x[at : at + BLOCK]) for at in range(0, x.size, BLOCK)] or [x])


def canonical(values: list[Array]) -> Array:
    """The contract's order of adding."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return canonical(values[:half]) + canonical(values[half:])


def gradients(count: int, step: int) -> list[Array]:
    """All ranks' gradients of a step."""
    generator = np.random.default_rng((count, step))
    return [generator.standard_normal(count).astype(np.float32) for _ in range(group.size)]


def simulated(name: str, count: int, steps: int = STEPS) -> tuple[list[Array], list[Array]]:
    """The results of all steps, and what is left on each rank after them."""
    code, again = CODECS[name]
    left = [np.zeros(count, np.float32) for _ in range(group.size)]
    results = []
    for step in range(steps):
        whole = [gradient + before for gradient, before in zip(gradients(count, step), left)]
        decoded = [blockwise(code, x) for x in whole]
        left = [x - y for x, y in zip(whole, decoded)]
        result = canonical(decoded) / np.float32(group.size)
        results.append(blockwise(code, result) if again else result)
    return results, left


@case
def every_codec_is_what_numpy_says() -> None:
    simulated_ones = {name.partition(":")[0] for name in CODECS}
    # What randomk draws is not simulated: that it is the same on all ranks is tested in Rust.
    assert simulated_ones | {"randomk"} == {name.partition(":")[0] for name in _herringbone.codecs()}
    for name in CODECS:
        for count in (1, 1000, 3 * BLOCK + 17):
            results, left = simulated(name, count)
            tensor = f"{name} {count}"
            for step in range(STEPS):
                array = gradients(count, step)[group.rank]
                group.all_reduce(array, "average", compression=name, tensor=tensor)
                np.testing.assert_array_equal(array, results[step], f"{name} of {count}, step {step}")
            state = group.compression_state_dict()[tensor]
            assert state["steps"] == STEPS
            np.testing.assert_array_equal(state["left"], left[group.rank], name)


@case
def a_resumed_training_is_one_that_was_not_interrupted() -> None:
    results, _ = simulated("topk:0.01", 10_000, 6)
    states = []
    for first in (0, 3):
        if first:
            group.load_compression_state_dict(states[-1])
        for step in range(first, first + 3):
            array = gradients(10_000, step)[group.rank]
            group.all_reduce(array, "average", compression="topk:0.01", tensor="resumed")
            np.testing.assert_array_equal(array, results[step])
        states.append(group.compression_state_dict())
        group.load_compression_state_dict({})
        assert group.compression_state_dict() == {}


@case
def without_a_name_nothing_is_fed_back() -> None:
    for _ in range(2):
        array = np.full(10, 0.25, np.float32)
        group.all_reduce(array, compression="twobit:0.5", async_op=True).wait()
        assert not array.any()
    assert group.compression_state_dict() == {}


@case
def another_length_drops_what_is_left() -> None:
    for count in (5, 6):
        group.all_reduce(np.full(count, 0.25, np.float32), compression="twobit:0.5", tensor="grows")
        np.testing.assert_array_equal(group.compression_state_dict()["grows"]["left"], np.full(count, 0.25, np.float32))


def sent(codec: str, tensor: str, value: float, residuals: herringbone.Residuals | None = None) -> float:
    """What a sum of this value has in each element, for each rank."""
    array = np.full(5, value, np.float32)
    group.all_reduce(array, compression=codec, tensor=tensor, residuals=residuals)
    assert (array == array[0]).all()
    return float(array[0]) / group.size


@case
def what_is_left_of_a_name_belongs_to_one_owner_and_one_codec() -> None:
    one, other = herringbone.Residuals(), herringbone.Residuals()
    assert sent("twobit:0.5", "w", 0.25, one) == sent("twobit:0.5", "w", 0.25, other) == sent("twobit:0.5", "w", 0.25) == 0
    assert sent("exact", "w", 0.125) == 0.125, "the group's own belongs to another codec"
    assert sent("twobit:0.5", "w", 0.125) == 0, "and is not kept for when that comes again"
    assert sent("twobit:0.5", "w", 0.25, one) == 0.5 and one.state_dict()["w"]["codec"] == "twobit:0.5"
    apart = group.subgroup(list(range(group.size)))
    array = np.full(5, 0.25, np.float32)
    apart.all_reduce(array, compression="twobit:0.5", tensor="w", residuals=other)
    assert not array.any(), "another group"
    apart.close()
    other.forget("w")
    assert other.state_dict() == {}
    named: Any = "one"
    error_of(TypeError, lambda: sent("twobit:0.5", "w", 0.25, named), "residuals is a str")
    error_of(ValueError, lambda: group.all_reduce(array, compression="sign", residuals=one), "residuals without tensor")


@case
def a_factor_is_a_finite_number_as_a_float32() -> None:
    residuals = herringbone.Residuals()
    sent("twobit:0.5", "w", 0.25, residuals)
    for factor in (-1.0, 1e39, float("inf"), float("nan")):
        error_of(herringbone.ArgumentError, lambda factor=factor: residuals.scale(factor), "Residuals.scale: the factor is")
    residuals.scale(3e38)
    assert np.isfinite(residuals.state_dict()["w"]["left"]).all()
    residuals.scale(0.0)
    assert not residuals.state_dict()["w"]["left"].any()


@case
def a_state_finds_its_owner_and_its_codec() -> None:
    saving, loading = herringbone.Residuals(), herringbone.Residuals()
    sent("twobit:0.5", "w", 0.25, saving)
    state = saving.state_dict()
    loading.load_state_dict(state)
    assert sent("twobit:0.5", "w", 0.25) == 0 and sent("twobit:0.5", "w", 0.25, loading) == 0.5
    loading.load_state_dict(state)
    assert sent("twobit:1.0", "w", 0.75, loading) == 0, "another codec"
    # As earlier versions have saved it.
    group.load_compression_state_dict({"old": {"steps": 1, "left": state["w"]["left"]}})
    assert sent("twobit:0.5", "old", 0.25) == 0.5 and group.compression_state_dict()["old"]["steps"] == 2
    of_a_store = {"kvstore 0 'w'": state["w"]}
    error_of(ValueError, lambda: group.load_compression_state_dict(of_a_store), "kvstore 0 'w'", "remove it")
    group.load_compression_state_dict({})


@case
def a_lack_of_memory_is_an_error_on_all_ranks_and_the_group_goes_on() -> None:
    elements = MUCH // 4
    large, overlapping = np.full(elements, 0.25, np.float32), np.ones(elements + 1, np.float32)
    calls: list[Callable[[], Any]] = [
        lambda: group.all_reduce(large, compression="twobit:0.5", tensor="large"),
        lambda: group.all_reduce(overlapping[:-1], out=overlapping[1:]),
    ]
    for call in calls:
        check_out_of_memory(group.rank, call, herringbone.OutOfMemoryError)
    for call in calls:
        call()
    assert not large.any() and (overlapping[1:] == group.size).all()


@case
def what_makes_no_sense_is_refused() -> None:
    array = np.ones(4, np.float32)
    error = error_of(ValueError, lambda: group.all_reduce(array, compression="int9"), "int9", "topk:SHARE")
    assert str(error).count("int9") == 1, error
    error_of(TypeError, lambda: group.all_reduce(array, compression=8), "compression is a int")
    error_of(ValueError, lambda: group.all_reduce(array, tensor="w"), "without compression")
    ints = np.ones(4, np.int32)
    error_of(herringbone.UnsupportedError, lambda: group.all_reduce(ints, compression="int8"), "codecs are for f32")
    error_of(herringbone.UnsupportedError, lambda: group.all_reduce(array, "max", compression="int8"), "sums and averages")


@case
def a_damaged_state_is_refused_and_changes_nothing() -> None:
    group.all_reduce(np.full(3, 0.25, np.float32), compression="twobit:0.5", tensor="sound")
    left, before = np.zeros(3, np.float32), group.compression_state_dict()
    for state, kind, *words in (
        (None, TypeError, "NoneType", "compression_state_dict"),
        ({"sound": {"steps": 1}}, TypeError, "'sound'", "left"),
        ({3: {"steps": 1, "left": left}}, TypeError, "name is a int, not a text"),
        ({"sound": {"steps": 1, "left": left, "codec": "int9"}}, ValueError, "'sound'", "int9"),
        ({"sound": {"steps": -1, "left": left}}, ValueError, "steps", "-1"),
        ({"sound": {"steps": 1.5, "left": left}}, ValueError, "steps", "1.5"),
        ({"sound": {"steps": 1, "left": left.reshape(3, 1)}}, ValueError, "2 dimensions"),
        ({"sound": {"steps": 1, "left": left.astype("f8")}}, ValueError, "float64"),
        ({"sound": {"steps": 1, "left": left + np.float32("nan")}}, ValueError, "NaN", "damaged"),
    ):
        error_of(kind, lambda: group.load_compression_state_dict(state), "load_compression_state_dict", *words)
    after = group.compression_state_dict()
    assert after.keys() == before.keys() and (after["sound"]["left"] == np.float32(0.25)).all()


if __name__ == "__main__":
    group = herringbone.init(timeout=60)
    cases.run(CASES, group.rank)
