"""Members of a group of torch come and go, and the program forms it anew of those that it picks."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from conftest import WORKERS, Group

pytestmark = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure"), reason="torch has its reconfigure interface from 2.14 on"
)

KILLED = -signal.SIGKILL


class Job:
    """Processes that know the store of this one."""

    def __init__(self, group: Group, scenario: str) -> None:
        self.group, self.scenario = group, scenario
        self.store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False)

    def start(self, *members: int) -> None:
        for member in members:
            script = str(WORKERS / "reconfigured.py")
            self.group.start(script, str(self.store.port), str(member), self.scenario, forked=True)

    def finish(self) -> list[tuple[int, str]]:
        return self.group.finish(120)


@pytest.fixture
def killed() -> Iterator[Group]:
    """A job of which nothing is left at the end, what it has left behind included."""
    group = Group()
    yield group
    group.end()


def test_five_members_that_come_and_go(killed: Group) -> None:
    job = Job(killed, "five")
    job.start(*range(5))
    outcomes = job.finish()
    ends = sorted(status for status, _ in outcomes)
    assert ends == [KILLED] * 3 + [0, 0], "\n".join(output for _, output in outcomes)
    assert all("passed" in output for status, output in outcomes if status == 0)


def test_training_goes_on_without_a_member_and_with_a_new_one(killed: Group) -> None:
    job = Job(killed, "joining")
    job.start(0, 1, 2)
    job.store.wait(["a new one is wanted"], timedelta(seconds=100))
    job.start(3)
    outcomes = job.finish()
    for member, (status, output) in enumerate(outcomes):
        assert status == (KILLED if member == 1 else 0), output
        assert "passed" in output or member == 1


def test_a_member_that_dies_as_they_connect_and_one_that_is_interrupted(killed: Group) -> None:
    job = Job(killed, "connecting")
    job.start(0, 1, 2)
    for member, (status, output) in enumerate(job.finish()):
        assert status == (KILLED if member == 1 else 0), output
        assert "passed" in output or member == 1


def test_a_stopped_member_and_one_that_leaves_a_child_are_told(killed: Group) -> None:
    job = Job(killed, "stopped")
    job.start(0, 1, 2)
    job.store.wait(["passed"], timedelta(seconds=100))
