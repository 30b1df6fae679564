"""Reducers come to a training job that runs, come back, and end in order: same bits, and no user's code notices."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
from conftest import Group, free_port, outlived

from lab.job import Process

RANKS = 3
STEPS = 90
SECRET = "sixteen characters or more"


class Served(Group):
    """Reducers that were started, by a name."""

    named: dict[str, Process]

    def __init__(self) -> None:
        super().__init__()
        self.named = {}

    def serve(self, name: str, address: str, *more: str) -> None:
        words = ["-m", "herringbone", "serve", "--listen", address, *more]
        self.named[name] = self.start(*words, HERRINGBONE_TOKEN=SECRET)

    def __getitem__(self, name: str) -> Process:
        return self.named[name]


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


def trained(settings: dict[str, str], acts: dict[int, Callable[[], None]]) -> tuple[str, str]:
    """Train, acting after some steps; as of :func:`outlived`."""
    more = {"HERRINGBONE_LOG": "info", "HERRINGBONE_TOKEN": SECRET, **settings}
    return outlived(RANKS, lambda step: acts.get(step, lambda: None)(), str(STEPS), **more)


def test_reducers_come_and_go(served: Served) -> None:
    named, other = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    served.serve("named", named)

    def kill() -> None:
        served["named"].kill()
        served["named"].wait()

    def start_again() -> None:
        served.serve("again", named)

    def join() -> None:
        served.serve("joined", other, "--join", named)

    def drain() -> None:
        served["again"].send_signal(signal.SIGTERM)

    settings = {"HERRINGBONE_REDUCERS": named, "HERRINGBONE_ALGORITHM": "reduction_server"}
    digest, output = trained(settings, {5: kill, 10: start_again, 35: join, 70: drain})
    assert digest == trained({}, {})[0]
    reported = [line.split("] ", 1)[1] for line in output.splitlines() if "the reducer at" in line and "joins" not in line]
    assert reported[0].startswith(f"the reducer at {named} is lost"), output
    assert reported[1] == f"the reducer at {named} is used from now on: continuing with one reducer", output
    assert reported[2] == f"the reducer at {other} is used from now on: continuing with 2 reducers", output
    assert reported[3] == f"the reducer at {named} is lost: it was told to end; continuing with one reducer", output
    assert served["again"].wait(10) == 0
    served["joined"].send_signal(signal.SIGTERM)
    text = "".join(served["joined"].stdout)
    assert served["joined"].wait(10) == 0
    assert "takes part in the job of rank 0 at" in text
    assert "1 job, 0 bytes" not in text


def test_a_reducer_that_comes_late_is_used(served: Served) -> None:
    """The plan needs none on one host, so it is only greeted; what is wrong with it is said when the job begins."""
    named = f"127.0.0.1:{free_port()}"

    def start() -> None:
        served.serve("named", named)

    _, output = trained({"HERRINGBONE_REDUCERS": named}, {5: start})
    assert f"] the reducer at {named} is not used, and is called again and again: Connection refused" in output
    assert f"the reducer at {named} is used from now on: continuing with one reducer" in output
