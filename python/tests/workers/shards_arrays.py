"""Sums of shards on numpy arrays, in processes that never import torch; the oracle is the canonical tree, in numpy."""

from __future__ import annotations

import os
import sys

import cases
import ml_dtypes
import numpy as np
from cases import error_of

import herringbone

CASES, case = cases.registry()


def gradient(shard: int, count: int = 1000, dtype: object = np.float32) -> np.ndarray:
    """What a shard gives: numbers of all magnitudes."""
    generator = np.random.default_rng(shard)
    return (generator.standard_normal(count) * 10.0 ** generator.integers(-3, 4, count)).astype(dtype)


def canonical(values: list[np.ndarray | None]) -> np.ndarray | None:
    """The binary trie over the shards, of which each half is added first; who gives nothing is left out."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    first, second = canonical(values[:half]), canonical(values[half:])
    if first is None or second is None:
        return second if first is None else first
    return first + second


def check(shards: int, absent: set[int], dtype: object, wide: object, runs: object = "aligned") -> None:
    sums = herringbone.ShardGroup(group, shards, runs=runs)  # type: ignore[arg-type]
    gives = lambda shard: None if shard in absent else gradient(shard, dtype=dtype).reshape(10, -1)
    total = canonical([None if shard in absent else gives(shard).astype(wide) for shard in range(shards)])
    for op in ("sum", "average"):
        result = sums.all_reduce({shard: gives(shard) for shard in sums.mine}, op)
        assert result is not None and total is not None
        expected = (total if op == "sum" else total / wide(shards)).astype(dtype)
        assert result.dtype == dtype and result.shape == (10, 100)
        assert (result.view(np.uint8) == expected.view(np.uint8)).all(), (shards, absent, dtype, op)


@case
def test_sums_have_the_bits_of_the_canonical_tree() -> None:
    for shards in (1, 3, 8, 13, 16):
        check(shards, set(), np.float32, np.float32)
        check(shards, {shards - 1} if shards > 1 else set(), np.float32, np.float32, "even")
    check(23, {4, 7}, np.float32, np.float32, [23 - 5 * (group.size - 1)] + [5] * (group.size - 1))
    check(3, set(), ml_dtypes.bfloat16, np.float32, [3] + [0] * (group.size - 1))
    check(8, {2, 3, 7}, np.float32, np.float32)
    check(8, set(), np.float64, np.float64)
    check(8, {0}, ml_dtypes.bfloat16, np.float32)
    check(8, {1, 5}, np.float16, np.float32)


@case
def test_nothing_is_nothing_and_minus_zero_stays() -> None:
    sums = herringbone.ShardGroup(group, 8)
    assert sums.all_reduce(dict.fromkeys(sums.mine)) is None
    zero = np.array(-0.0, np.float32)
    total = sums.all_reduce({shard: zero if shard == 3 else None for shard in sums.mine})
    assert total is not None and total.shape == () and np.signbit(total)


@case
def test_numbers_have_a_mean() -> None:
    sums = herringbone.ShardGroup(group, 6)
    numbers = [0.1 * shard for shard in range(6)]
    mean = sums.mean({shard: numbers[shard] for shard in sums.mine})
    assert mean == float(canonical([np.float64(number) for number in numbers])) / 6
    assert sums.mean(dict.fromkeys(sums.mine)) is None


@case
def test_runs_are_said() -> None:
    text = herringbone.ShardGroup(group, 8).explain()
    assert text.startswith(f"8 shards on {group.size} ranks (rank 0: ") and "one partial sum" in text, text
    assert "as short as possible" in herringbone.ShardGroup(group, 8, runs="even").explain()


@case
def test_mistakes_are_named_and_the_group_is_usable_after_them() -> None:
    wrong = herringbone.errors.ArgumentError
    sums = herringbone.ShardGroup(group, 2 * group.size)
    mine = {shard: gradient(shard) for shard in sums.mine}
    error_of(wrong, lambda: sums.all_reduce({**mine, 99: gradient(1)}), "has [99]", "group.mine")
    error_of(wrong, lambda: sums.all_reduce({}), f"lacks {list(sums.mine)}")
    error_of(TypeError, lambda: sums.all_reduce(list(mine.values())), "not a dictionary")
    longer = {shard: gradient(shard, 1001 if group.rank == 1 else 1000) for shard in sums.mine}
    error_of(wrong, lambda: sums.all_reduce(longer), "from [1000] to [1001]", "nothing was summed")
    other = {shard: gradient(shard, dtype=np.float64 if group.rank == 1 else np.float32) for shard in sums.mine}
    error_of(wrong, lambda: sums.all_reduce(other), "types, f32 and f64")
    mixed = {**mine, sums.mine[0]: gradient(0, 7)} if group.rank == 0 else mine
    text = "the shards give float32[7] and float32[1000]" if group.rank == 0 else "another rank could not take part"
    error_of(wrong, lambda: sums.all_reduce(mixed), text)
    error_of(herringbone.UnsupportedError, lambda: sums.all_reduce(mine, "max"), "sum or average")
    error_of(ValueError, lambda: sums.all_reduce(mine, "maximal"), "did you mean")
    assert sums.all_reduce(mine) is not None


@case
def test_what_is_no_number_of_shards_is_refused() -> None:
    error_of(herringbone.errors.ArgumentError, lambda: herringbone.ShardGroup(group, 0), "from 1 to 1048576")
    error_of(TypeError, lambda: herringbone.ShardGroup(group, "8"), "shards")  # type: ignore[arg-type]
    error_of(TypeError, lambda: herringbone.ShardGroup(8, group), "communicator")  # type: ignore[arg-type]
    for runs, text in (
        ("odd", "'aligned', 'even'"),
        ([8, 1], "make up 8"),
        ([-1, 9], "make up 8"),
        ([8, 0, 0, 0, 0, 0], "6 runs"),
    ):
        kind = herringbone.ConfigError if "runs" in text else herringbone.errors.ArgumentError
        error_of(kind, lambda: herringbone.ShardGroup(group, 8, runs=runs), text)  # type: ignore[arg-type]


@case
def test_other_shards_on_a_rank_are_named() -> None:
    shards = 8 if group.rank == 0 else 16
    sums = herringbone.ShardGroup(group, shards)
    values = {shard: gradient(shard) for shard in sums.mine}
    error_of(herringbone.errors.MismatchError, lambda: sums.all_reduce(values), "shards 8", "shards 16")


if __name__ == "__main__":
    with herringbone.init() as group:
        cases.run(CASES, group.rank)
    assert "torch" not in sys.modules
    assert os.environ["RESULTS"]
