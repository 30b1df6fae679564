"""Ranks die, and those that are left go on in the same processes."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from conftest import Group, free_port
from test_admin import metrics, value


class Job:
    """Ranks that sum and go on with those that are left."""

    def __init__(self, ranks: int, least: int = 1, **settings: str) -> None:
        self.group = Group()
        place = {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_TIMEOUT_S": "30"}
        self.group.start_ranks("shrinking.py", ranks, str(least), **place, **settings)
        self.said: list[list[str]] = [[] for _ in range(ranks)]
        for rank in range(ranks):
            self.hear(rank, "began")
        time.sleep(0.2)

    def hear(self, rank: int, word: str) -> str:
        """The next line of a rank that begins with a word."""
        stdout = self.group.processes[rank].stdout
        for line in stdout:
            self.said[rank].append(line)
            if line.startswith(word):
                return line.strip()
        pytest.fail(f"rank {rank} ended before it said {word!r}:\n{''.join(self.said[rank])}")

    def signal(self, rank: int, what: signal.Signals) -> None:
        self.group.processes[rank].send_signal(what)


@pytest.fixture
def begin() -> Iterator[Callable[..., Job]]:
    """Begins jobs that are over at the end of the test."""
    with ExitStack() as ends:

        def begin(ranks: int, **settings: Any) -> Job:
            job = Job(ranks, **settings)
            ends.callback(job.group.end)
            return job

        yield begin


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_those_that_are_left_go_on(begin: Callable[..., Job], transport: str) -> None:
    job = begin(4, HERRINGBONE_TRANSPORT=transport)
    left = [0, 1, 2, 3]
    for victim in (2, 3, 1):
        job.signal(victim, signal.SIGKILL)
        left.remove(victim)
        for place, rank in enumerate(left):
            assert job.hear(rank, "lost") == f"lost [{victim}]"
            line = job.hear(rank, "goes on")
            found = re.fullmatch(r"goes on as rank (\d+) of (\[[\d, ]+\]) after ([\d.]+) s", line)
            assert found is not None, line
            assert (int(found[1]), found[2]) == (place, str(left))
    for rank in left:
        job.hear(rank, "done")


def test_metrics_are_of_those_that_are_left(begin: Callable[..., Job]) -> None:
    job = begin(3, HERRINGBONE_ADMIN="127.0.0.1:0")
    found = re.search(r"live page and metrics at http://127\.0\.0\.1:(\d+)/", "".join(job.said[0]))
    assert found is not None, job.said[0]
    assert value(metrics(int(found[1])), "herringbone_ranks") == 3
    job.signal(1, signal.SIGKILL)
    job.hear(0, "goes on")
    assert value(metrics(int(found[1])), "herringbone_ranks") == 2
    assert value(metrics(int(found[1])), "herringbone_group_generation") == 0
    for rank in (0, 2):
        job.hear(rank, "done")


def test_two_at_once(begin: Callable[..., Job]) -> None:
    job = begin(5)
    job.signal(1, signal.SIGKILL)
    job.signal(4, signal.SIGKILL)
    for rank in (0, 2, 3):
        while "of [0, 2, 3]" not in job.hear(rank, "goes on"):
            pass
        job.hear(rank, "done")


@pytest.mark.parametrize("victim", [1, 0])
def test_a_rank_that_does_not_call_is_named(begin: Callable[..., Job], victim: int) -> None:
    """By rank 0, and by the rank that takes its part."""
    job = begin(4, SULKS="3", PATIENCE="3")
    job.signal(victim, signal.SIGKILL)
    decides = 0 if victim else 1
    for rank in {0, 1, 2} - {victim}:
        line = job.hear(rank, "ends")
        assert rank != decides or "3 to call shrink" in line, line


def test_too_few_are_told_so(begin: Callable[..., Job]) -> None:
    job = begin(3, least=3)
    job.signal(1, signal.SIGKILL)
    for rank in (0, 2):
        assert "2 of at least 3 are left (ranks 0, 2)" in job.hear(rank, "ends")


def test_who_cannot_know_does_not_go_on(begin: Callable[..., Job]) -> None:
    """A rank that is only silent may live: of two ranks none goes on by itself."""
    job = begin(2)
    job.signal(1, signal.SIGSTOP)
    assert "the other side of a network split" in job.hear(0, "ends")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("victims", [(0,), (0, 1), (0, 3)])
def test_without_rank_0_the_lowest_that_is_left_takes_its_part(
    begin: Callable[..., Job], transport: str, victims: tuple[int, ...]
) -> None:
    job = begin(5, HERRINGBONE_TRANSPORT=transport)
    for victim in victims:
        job.signal(victim, signal.SIGKILL)
    left = [rank for rank in range(5) if rank not in victims]
    for rank in left:
        while f"of {left}" not in job.hear(rank, "goes on"):
            pass
        job.hear(rank, "done")


def test_one_rank_0_after_the_other(begin: Callable[..., Job]) -> None:
    job = begin(4)
    for victim in range(3):
        job.signal(victim, signal.SIGKILL)
        left = list(range(victim + 1, 4))
        for place, rank in enumerate(left):
            assert f"as rank {place} of {left}" in job.hear(rank, "goes on")
    job.hear(3, "done")


@pytest.mark.parametrize("pause", [0.03, 0.1, 0.3])
@pytest.mark.parametrize("second", [1, 2])
def test_deaths_that_follow_rank_0s_at_once(begin: Callable[..., Job], second: int, pause: float) -> None:
    """Also of the rank that would take its part: whoever is left knows that the processes of its host have ended."""
    job = begin(3, HERRINGBONE_TRANSPORT="shm")
    job.signal(0, signal.SIGKILL)
    time.sleep(pause)
    job.signal(second, signal.SIGKILL)
    left = 3 - second
    while f"as rank 0 of [{left}]" not in job.hear(left, "goes on"):
        pass
    job.hear(left, "done")


def test_a_rank_0_that_was_only_stopped_does_not_go_on_beside_the_others(begin: Callable[..., Job]) -> None:
    job = begin(3)
    job.signal(0, signal.SIGSTOP)
    for place, rank in enumerate((1, 2)):
        assert f"as rank {place} of [1, 2]" in job.hear(rank, "goes on")
    job.signal(0, signal.SIGCONT)
    assert "the other side of a network split" in job.hear(0, "ends")
    for rank in (1, 2):
        job.hear(rank, "done")
