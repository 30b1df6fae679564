"""A host whose port becomes slow while a job runs: with HERRINGBONE_REBALANCE=1 it carries less, and more again once the port is fast."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import WORKERS, Group

from lab.hosts import Namespaces, NoNamespaces
from lab.job import python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTS, FAST, SLOW = 4, 500, 100
HEADERS = 1.08
"""What headers, acknowledgements and control messages add to the payload at most."""
INPUTS = 5
PATIENCE = 120
"""Seconds in which something happens on a busy machine. That it happens is tested, not when."""


class Job:
    """A job of one rank on each host that all-reduces until it is stopped."""

    def __init__(self, folder: Path, spaces: Namespaces, ranks: Group) -> None:
        self.folder, self.spaces, self.ranks = folder, spaces, ranks

    def steps(self, rank: int = HOSTS - 1) -> list[dict[str, Any]]:
        """What a rank has done so far."""
        file = self.folder / f"{rank}.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        with contextlib.suppress(json.JSONDecodeError):
            return [json.loads(line) for line in lines]
        return [json.loads(line) for line in lines[:-1]]

    def wait(self, what: str, until: Callable[[list[dict[str, Any]]], bool]) -> int:
        """Wait until the last rank's steps say so; how many there are then."""
        limit = time.monotonic() + PATIENCE
        while not until(steps := self.steps()):
            assert time.monotonic() < limit, f"no {what} in {PATIENCE} s: {steps[-3:]} {''.join(self.ranks.lines)}"
            time.sleep(0.1)
        return len(steps)

    def run(self, more: int) -> int:
        """Wait for so many more steps; how many there are then."""
        goal = len(self.steps()) + more
        return self.wait(f"step {goal}", lambda steps: len(steps) >= goal)

    def stop(self) -> list[list[dict[str, Any]]]:
        """The steps of all ranks."""
        (self.folder / "stop").touch()
        statuses = {status for status, _ in self.ranks.finish()}
        assert statuses == {0}, "".join(self.ranks.lines)
        return [self.steps(rank) for rank in range(HOSTS)]


@contextlib.contextmanager
def job(folder: Path, **environment: str) -> Iterator[Job]:
    """A job whose hosts' ports are all fast at first."""
    folder.mkdir()
    try:
        with Namespaces(HOSTS, FAST) as spaces, Group() as ranks:
            common = {"WORLD_SIZE": str(HOSTS), "LOCAL_WORLD_SIZE": "1", "HERRINGBONE_STORE": f"{spaces.address(0)}:29501"}
            common |= {"MASTER_ADDR": spaces.address(0), "MASTER_PORT": "29500", "RESULTS": str(folder)}
            common |= {"HERRINGBONE_TOKEN": "rebalancing-of-tests", "PYTHON_EXEC": python(), **environment}
            for rank, host in enumerate(spaces.hosts):
                place = {"RANK": str(rank), "LOCAL_RANK": "0", "HOST_ADDRESS": spaces.address(rank)}
                ranks.start(str(WORKERS / "following_ports.py"), host=host, forked=None, **common, **place)
            yield Job(folder, spaces, ranks)
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")


def bits(steps: list[dict[str, Any]]) -> list[str]:
    """The result of each of the inputs, which is always the same."""
    found: list[set[str]] = [set() for _ in range(INPUTS)]
    for step in steps:
        found[step["step"] % INPUTS].add(step["digest"])
    assert all(len(digests) == 1 for digests in found), "an input has several results"
    return [digests.pop() for digests in found]


def carried(steps: list[dict[str, Any]]) -> float:
    """How many times the buffer goes out of the host in a step, in the median."""
    return float(sorted(step["out"] for step in steps)[len(steps) // 2])


@pytest.mark.full
def test_a_host_that_becomes_slow_carries_less_until_it_is_fast_again(tmp_path: Path) -> None:
    with job(tmp_path / "blind") as blind:
        blind.run(10)
        blind.spaces.limit(HOSTS - 1, SLOW)
        blind.run(6)
        unchanged = blind.stop()
    assert {step["plan"].partition(":")[0] for step in unchanged[-1]} == {"radix(2,2)"}
    with job(tmp_path / "follows", HERRINGBONE_REBALANCE="1") as follows:
        follows.run(20)
        follows.spaces.limit(HOSTS - 1, SLOW)
        changed = follows.wait("plan by shares", lambda steps: steps[-1]["plan"].startswith("weighted"))
        slow_until = follows.run(8)
        follows.spaces.limit(HOSTS - 1, FAST)
        follows.wait("plan for equal ports", lambda steps: not steps[-1]["plan"].startswith("weighted"))
        restored = follows.run(1)
        follows.run(8)
        ranks = follows.stop()
    slow = ranks[-1]
    assert len({json.dumps([step["plan"] for step in steps]) for steps in ranks}) == 1, "all ranks plan each call alike"
    assert 1.45 < carried(slow[:20]) < 1.5 * HEADERS
    assert 0.99 < carried(slow[changed:slow_until]) < 1.25, "it owns nothing, or little"
    assert 1.45 < carried(slow[restored:]) < 1.5 * HEADERS
    assert slow[-1]["changes"] <= 4, slow[-1]
    assert bits(slow) == bits(unchanged[-1]) == bits(ranks[0])


@pytest.mark.full
def test_a_rate_that_flaps_changes_plans_rarely(tmp_path: Path) -> None:
    with job(tmp_path / "flaps", HERRINGBONE_REBALANCE="1") as flaps:
        flaps.run(5)
        for at in range(100):
            flaps.spaces.limit(HOSTS - 1, FAST if at % 2 else SLOW)
            time.sleep(0.3)
        flaps.run(1)
        ranks = flaps.stop()
    assert {steps[-1]["changes"] for steps in ranks}.issubset({0, 1, 2}), [steps[-1] for steps in ranks]
    assert bits(ranks[0]) == bits(ranks[-1])
