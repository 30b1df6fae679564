"""Starting groups of real processes, few times, with many cases in each."""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

from ports import free_port

from lab.job import PATIENCE_SECONDS, Job, environment, python

START_SECONDS, clean_environment = PATIENCE_SECONDS, environment


class Group(Job):
    """A job whose scripts are these workers."""

    def start_ranks(self, script: str, size: int, *arguments: str, forked: bool | None = None, **variables: str) -> None:
        super().start_ranks(str(WORKERS / script), size, *arguments, forked=forked, **variables)


@pytest.fixture
def group() -> Iterator[Group]:
    """A job that is over at the end of the test."""
    with Group() as group:
        yield group


@dataclass(frozen=True)
class Run:
    """What the cases of one job have given on each rank."""

    size: int
    ranks: list[dict[str, str]]
    output: str

    def check(self, case: str) -> None:
        """Fail unless ``case`` has passed on all ranks."""
        if not any(case in ranks for ranks in self.ranks):
            reason = "not reached: an earlier case has failed, or the job did not start\n"
            pytest.fail(reason + self.output[-800:], pytrace=False)
        outcomes = [ranks.get(case, "not reached") for ranks in self.ranks]
        wrong = {rank: text for rank, text in enumerate(outcomes) if text != "passed"}
        if wrong:
            # A summary of a run shows the first line alone.
            heading = "; ".join(f"rank {rank}: {text.splitlines()[-1]}" for rank, text in wrong.items())
            whole = "\n".join(f"rank {rank}:\n{text}" for rank, text in wrong.items())
            pytest.fail(f"{heading}\n{whole}\n--- output ---\n{self.output[-6000:]}", pytrace=False)


def torchrun(script: str, size: int, folder: Path, forked: bool = True, **environment: str) -> Run:
    """Run the cases of ``script`` under torchrun; ``forked`` says whether torchrun and what it starts are."""
    if forked:
        environment["PYTHON_EXEC"] = python()
    with Group() as group:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        group.start(*launcher, str(WORKERS / script), forked=forked, RESULTS=str(folder), **environment)
        [(_, output)] = group.finish()
    return collect(size, folder, output)


def forked(script: str, size: int, folder: Path, **environment: str) -> Run:
    """Like :func:`torchrun`, where it does not matter how ranks begin: they are forked from a process that has torch."""
    with Group() as group:
        group.torchrun(str(WORKERS / script), size, RESULTS=str(folder), **environment)
        group.finish(together=True)
    return collect(size, folder, "".join(group.lines))


def horovodrun(script: str, size: int, folder: Path, python: str, **environment: str) -> Run:
    """Run the cases of ``script`` under horovodrun, with this Python."""
    with Group() as group:
        command = ["-m", "herringbone", "horovodrun", "-np", str(size), python, str(WORKERS / script)]
        group.start(*command, RESULTS=str(folder), **environment)
        [(_, output)] = group.finish()
    return collect(size, folder, output)


def outlived(size: int, act: Callable[[int], None], *arguments: str, **variables: str) -> tuple[str, str]:
    """Train, and act after each step; the digest that all ranks agree on, and what rank 0 has printed."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    seen = []
    with Group() as group:
        group.start_ranks("outliving.py", size, *arguments, **place, **variables)
        for line in group.processes[0].stdout:
            seen.append(line)
            if line.startswith("step "):
                act(int(line.split()[1]))
        outcomes = group.finish()
    outputs = ["".join(seen)] + [output for _, output in outcomes[1:]]
    assert [status for status, _ in outcomes] == [0] * size, "\n".join(outputs)
    digests = {output.rsplit("digest ", 1)[1].split()[0] for output in outputs}
    assert len(digests) == 1
    return digests.pop(), outputs[0]


def collect(size: int, folder: Path, output: str) -> Run:
    """Read what ``cases.run`` has written on each rank."""
    files = [folder / f"{rank}.json" for rank in range(size)]
    return Run(size, [json.loads(file.read_text()) if file.exists() else {} for file in files], output)


def cases_of(script: str) -> list[str]:
    """The names of the cases of a worker script."""
    return list(importlib.import_module(script.removesuffix(".py")).CASES)


@pytest.fixture(scope="session")
def reducers() -> Iterator[str]:
    """Two running reducers, as a value of ``HERRINGBONE_REDUCERS``."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with Group() as group:
        for address in addresses:
            group.start("-m", "herringbone", "serve", "--listen", address)
        yield ",".join(addresses)


@pytest.fixture
def far(tmp_path: Path) -> str:
    """A search path whose ssh runs its command on this machine, without this process's environment."""
    ssh = tmp_path / "ssh"
    log = tmp_path / "ssh.log"
    ssh.write_text(f'#!/bin/sh\necho "$@" >>{log}\nwhile [ "$1" != sh ]; do shift; done\nexec env -i PATH="$PATH" "$@"\n')
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    return f"{tmp_path}:{os.environ['PATH']}"
