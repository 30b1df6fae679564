"""Training by shards: the bits are those of one worker, on any number of workers and over any transport."""

from __future__ import annotations

import pytest
from conftest import WORKERS, Group, Run, cases_of, forked

KINDS = ["convolutional", "transformer", "bf16", "double", "convolutional/3/even", "checkpointed/1/even", "habits"]
STEPS = 4


def lines(size: int, *kinds: str, **variables: str) -> list[str]:
    """What each rank has printed of its steps, which is the same on all."""
    with Group() as group:
        group.torchrun(str(WORKERS / "sharded.py"), size, str(STEPS), *kinds, **variables)
        outcomes = group.finish(together=True)
    printed = [[line for line in output.splitlines() if line.startswith(("step", "state"))] for _, output in outcomes]
    assert [status for status, _ in outcomes] == [0] * size, outcomes[0][1][-3000:]
    assert all(lines == printed[0] for lines in printed)
    assert len(printed[0]) == len(kinds) * (STEPS + 1)
    return printed[0]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """Of one worker."""
    return lines(1, *KINDS)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_bits_are_those_of_one_worker(size: int, alone: list[str]) -> None:
    assert lines(size, *KINDS) == alone


def test_bits_are_the_same_with_reducers_and_idle_workers(alone: list[str], reducers: str) -> None:
    served = {"HERRINGBONE_REDUCERS": reducers, "HERRINGBONE_ALGORITHM": "reduction_server", "HERRINGBONE_TRANSPORT": "tcp"}
    expected = [line for line in alone if " convolutional/1 " in line]
    for size in (4, 9):
        assert lines(size, "convolutional", **served) == expected


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked(str(WORKERS / "shards_mistakes.py"), 2, tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("case", cases_of("shards_mistakes.py"))
def test_mistakes(mistakes: Run, case: str) -> None:
    mistakes.check(case)
