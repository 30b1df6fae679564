"""A program of the soak, without the simulator: `make rabit-soak` runs many."""

from __future__ import annotations

import pathlib
import sys

import pytest

pytest.importorskip("numpy")

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from killed_jobs import MODES, Ended, Job, Plan


@pytest.mark.full
@pytest.mark.parametrize("seed", range(len(MODES)))
def test_a_program_whose_processes_are_killed_at_random_comes_to_its_end(seed: int) -> None:
    counts = Job(Plan.of(seed)).run()
    assert counts["kills"] >= 5 and counts["processes that continued"] > 0


def test_a_process_that_nobody_has_killed_is_found() -> None:
    job = Job(Plan.of(0))
    for number, rank in enumerate(job.ranks):
        rank.pids, rank.model = [number + 1], "7 0"
    job.check(0)
    job.ranks[1].pids.append(99)
    with pytest.raises(Ended, match="were not killed"):
        job.check(0)
    job.killed.add(job.ranks[1].pids[0])
    job.check(0)
    job.ranks[0].model = "8 0"
    with pytest.raises(Ended, match="it ended with 0 and models"):
        job.check(0)
