"""Ranks that do not belong where they come: each is told so at once, and those that belong go on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS, clean_environment, free_port

from lab.job import python

AT_ONCE = 10.0
"""Within so many seconds a rank that does not belong is refused, also on a busy machine: long before it gives up."""

FACES = ["numpy", "torch"]


@dataclass
class Rank:
    """A process that wants to take part."""

    process: subprocess.Popen[str]

    def hear(self) -> dict[str, Any]:
        """What became of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()} before it said what became of it"
        return dict(json.loads(line))

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def refused(self, *parts: str, within: float = AT_ONCE) -> None:
        """Fail unless it was refused within so many seconds, with an error that says all parts."""
        reported = self.hear()
        assert "error" in reported, reported
        assert all(part in reported["error"] for part in parts), reported
        assert reported["seconds"] < within, reported


@dataclass
class Meeting:
    """An address at which ranks meet, with one token."""

    face: str
    limit: float = 60
    file: Path | None = None
    port: int = field(default_factory=free_port)
    ranks: list[Rank] = field(default_factory=list)

    def comes(self, rank: int, size: int, **environment: str) -> Rank:
        place = {"RANK": str(rank), "WORLD_SIZE": str(size), "HERRINGBONE_TOKEN": "a token of the tests"}
        if self.face == "torch":
            place.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))
        else:
            place["HERRINGBONE_STORE"] = f"127.0.0.1:{self.port}"
        if self.file is not None:
            place["STORE_FILE"] = str(self.file)
        batch = ("SLURM_", "LSB_", "PBS_", "CLOUD_ML_")
        variables = clean_environment({**place, **environment})
        variables = {name: value for name, value in variables.items() if name in environment or not name.startswith(batch)}
        command = [sys.executable if self.face == "numpy" else python(), str(WORKERS / "coming.py"), self.face, str(self.limit)]
        pipe = subprocess.PIPE
        self.ranks.append(Rank(subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)))
        return self.ranks[-1]


@pytest.fixture
def meetings() -> Iterator[list[Meeting]]:
    """Meetings that are over at the end of the test."""
    meetings: list[Meeting] = []
    yield meetings
    for rank in [rank for meeting in meetings for rank in meeting.ranks]:
        rank.process.kill()
        rank.process.communicate()


@pytest.fixture(params=FACES)
def meeting(request: pytest.FixtureRequest, meetings: list[Meeting]) -> Meeting:
    return begin(request.param, meetings)


def begin(face: str, meetings: list[Meeting]) -> Meeting:
    pytest.importorskip(face)
    meetings.append(Meeting(face))
    return meetings[0]


def sums(*ranks: Rank) -> None:
    """Ranks of one world sum, twice."""
    size = float(len(ranks))
    assert [rank.hear()["sum"] for rank in ranks] == [size] * len(ranks)
    for rank in ranks:
        rank.go_on()
    assert [rank.hear()["sum"] for rank in ranks] == [size] * len(ranks)
    assert [rank.process.wait(60) for rank in ranks] == [0] * len(ranks)


SOURCES = [
    ("numpy", "HERRINGBONE_JOB"),
    ("numpy", "TORCHELASTIC_RUN_ID"),
    ("numpy", "SLURM_JOB_ID"),
    ("torch", "TORCHELASTIC_RUN_ID"),
]


@pytest.mark.parametrize(("face", "source"), SOURCES)
def test_a_rank_of_another_job_is_told_which_job_it_met(meetings: list[Meeting], face: str, source: str) -> None:
    """It comes first, and would have been taken for the right one."""
    meeting = begin(face, meetings)
    # torchrun's ranks that meet at an address of their own.
    more = {"TORCHELASTIC_USE_AGENT_STORE": "False"} if source.startswith("TORCH") else {}
    first = meeting.comes(0, 2, **{source: "17", **more})
    reported = (f"rank 1 is of the job {source}=18 and has met the job {source}=17", "a port of its own")
    meeting.comes(1, 2, **{source: "18", **more}).refused(*reported)
    last = meeting.comes(1, 2, **{source: "17", **more})
    assert [rank.hear()["sum"] for rank in (first, last)] == [2.0, 2.0]
    if meeting.face == "numpy":
        # The world has formed; torch's own store would let nobody in who is late.
        meeting.comes(1, 2, **{source: "18", **more}).refused(*reported)
    for rank in (first, last):
        rank.go_on()
    assert [rank.hear()["sum"] for rank in (first, last)] == [2.0, 2.0]


def test_a_rank_without_a_job_takes_that_of_rank_0(meeting: Meeting) -> None:
    sums(meeting.comes(0, 2, SLURM_JOB_ID="17"), meeting.comes(1, 2))


def test_where_rank_0_knows_no_job_two_others_do_not_mix(meeting: Meeting) -> None:
    world = [meeting.comes(0, 3), meeting.comes(1, 3, SLURM_JOB_ID="17")]
    if meeting.face == "numpy":
        # Only the order of coming decides, and rank 0 says when rank 1 has come.
        waits_for("rank 2 is", meeting)
        meeting.comes(2, 3, SLURM_JOB_ID="18").refused("of the job SLURM_JOB_ID=18 and has met the job SLURM_JOB_ID=17")
    sums(*world, meeting.comes(2, 3, SLURM_JOB_ID="17"))


def waits_for(missing: str, meeting: Meeting) -> None:
    """Wait until rank 0 waits for these alone."""
    command = [sys.executable, "-m", "herringbone", "status", f"127.0.0.1:{meeting.port}"]
    environment = clean_environment({"HERRINGBONE_TOKEN": "a token of the tests"})
    for _ in range(100):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        if f": {missing} missing\n" in done.stdout:
            return
    pytest.fail(f"rank 0 does not wait for {missing}: {done.stdout}{done.stderr}")


def test_a_second_process_with_a_rank_is_refused(meeting: Meeting) -> None:
    world = [meeting.comes(rank, 3) for rank in (0, 1)]
    if meeting.face == "numpy":
        waits_for("rank 2 is", meeting)
        meeting.comes(1, 3).refused("two processes have rank 1, at 127.0.0.1:")
    world.append(meeting.comes(2, 3))
    sums(*world)


def test_a_rank_that_the_world_does_not_have_is_refused(meeting: Meeting) -> None:
    first = meeting.comes(0, 2)
    meeting.comes(5, 2).refused("rank 5", "ranks are 0 to the world's size - 1")
    sums(first, meeting.comes(1, 2))


def test_a_rank_that_was_told_another_size_is_refused(meeting: Meeting) -> None:
    first = meeting.comes(0, 2)
    meeting.comes(1, 3).refused("rank 1 has a world of 3, and other ranks have 2")
    sums(first, meeting.comes(1, 2))


def test_ranks_that_do_not_come_are_named_on_every_rank(meeting: Meeting, tmp_path: Path) -> None:
    meeting.limit = 3
    if meeting.face == "torch":
        # torch's own TCPStore gives up before, and names nobody.
        meeting.file = tmp_path / "store"
    for rank in [meeting.comes(rank, 5) for rank in (0, 1, 3)]:
        rank.refused("ranks 2, 4", "did not come", within=3 + AT_ONCE)
