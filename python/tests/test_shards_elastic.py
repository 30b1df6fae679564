"""Workers die and come within a training by shards, and it moves to other numbers of workers: the bits are those of one worker."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from conftest import ROOT, Group, free_port

from lab.job import place
from lab.process import Process

EXAMPLE = ROOT / "examples" / "shards.py"
STEPS = 80
STEP = re.compile(r"step (\d+): loss (\S+), digest (\w+), (\d+) of 8 shards")


def begin(group: Group, rank: int, size: int, store: str, *arguments: str) -> Process:
    words = [str(EXAMPLE), "--batch", "2", *arguments]
    return group.start(*words, forked=True, HERRINGBONE_STORE=store, HERRINGBONE_TIMEOUT_S="60", **place(rank, size))


def wait_for_step(process: Process, number: int) -> list[re.Match[str]]:
    """What a process has said of its steps, until it has made so many."""
    found = []
    for line in process.stdout:
        step = STEP.match(line)
        if step:
            found.append(step)
            if int(step[1]) >= number:
                break
    assert found and int(found[-1][1]) >= number, f"no step {number}"
    return found


def run(size: int, *arguments: str) -> list[re.Match[str]]:
    """All steps of all ranks of a job that nothing happens to."""
    with Group() as group:
        store = f"127.0.0.1:{free_port()}"
        for rank in range(size):
            begin(group, rank, size, store, *arguments)
        outcomes = group.finish()
    assert [status for status, _ in outcomes] == [0] * size, outcomes[0][1][-2000:]
    return [step for _, output in outcomes for step in map(STEP.match, output.splitlines()) if step]


@pytest.mark.full
def test_killed_and_new_workers_change_no_bit(tmp_path: Path) -> None:
    alone = {step[1]: (step[2], step[3]) for step in run(1, "--steps", str(STEPS))}
    assert len(alone) == STEPS
    store = f"127.0.0.1:{free_port()}"
    with Group() as group:
        ranks = [begin(group, rank, 3, store, "--elastic", "--steps", str(STEPS)) for rank in range(3)]
        said = wait_for_step(ranks[0], 4)
        ranks[1].send_signal(signal.SIGKILL)
        said += wait_for_step(ranks[0], 12)
        ranks[1] = begin(group, 1, 3, store, "--elastic", "--steps", str(STEPS))
        said += wait_for_step(ranks[1], 1)
        ranks[0].send_signal(signal.SIGKILL)
        said += wait_for_step(ranks[2], STEPS)
        assert [ranks[rank].wait() for rank in (1, 2)] == [0, 0]
    assert all(alone[step[1]] == (step[2], step[3]) for step in said)
    assert len({step[4] for step in said}) > 1, "all ranks have carried as many shards all the time"

    saved = str(tmp_path / "checkpoint")
    restarted = [
        step for size, steps in ((2, 10), (1, 15), (3, 25)) for step in run(size, "--steps", str(steps), "--checkpoint", saved)
    ]
    assert {int(step[1]) for step in restarted} == set(range(1, 26)), "a step was made twice or never"
    assert all(alone[step[1]] == (step[2], step[3]) for step in restarted)
