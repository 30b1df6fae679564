"""Starting groups of real processes, few times, with many cases in each."""

from __future__ import annotations

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

WORKERS = Path(__file__).parent / "workers"
START_SECONDS = 240
END_SECONDS = 20
"""A group that takes longer hangs: a start is 8 to 15 s on two cores."""

sys.path.insert(0, str(WORKERS))
sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from ports import free_port


def clean_environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """This environment without settings of a job that the tests may run inside of.

    Output stays buffered: an unbuffered ``print`` writes a line and its end one after the other, and the processes of a job
    that share a pipe would write in between. What has to be seen at once is flushed.
    """
    foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "OMP_NUM_THREADS": "1", **extra}


@dataclass
class Group:
    """Processes of one job, one per rank, and what they print."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start one more process."""
        process = subprocess.Popen(
            [sys.executable, *command],
            env=clean_environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def start_ranks(self, script: str, size: int, *arguments: str, **environment: str) -> None:
        """Start ``script`` once per rank, with the variables that torchrun would set."""
        common = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        for rank in range(size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.start(str(WORKERS / script), *arguments, **common, **place, **environment)

    def finish(self, seconds: float = START_SECONDS) -> list[tuple[int, str]]:
        """Wait for all and return exit status and output of each."""
        deadline = time.monotonic() + seconds
        outcomes = []
        for process in self.processes:
            try:
                output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill()
                output, _ = process.communicate()
                output += f"\n(killed after {seconds} s)"
            outcomes.append((process.returncode, output))
        return outcomes

    def kill(self) -> None:
        """End what is left, with the children; a launcher ends its own, which are in sessions of theirs."""
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def group() -> Iterator[Group]:
    """A job that is over at the end of the test."""
    group = Group()
    yield group
    group.kill()


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
        wrong = [f"rank {rank}:\n{text}" for rank, text in enumerate(outcomes) if text != "passed"]
        if wrong:
            pytest.fail("\n".join(wrong) + "\n--- output ---\n" + self.output[-6000:], pytrace=False)


def torchrun(script: str, size: int, folder: Path, **environment: str) -> Run:
    """Run the cases of ``script`` under torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    return _run(launcher, script, size, folder, environment)


def forked(script: str, size: int, folder: Path, **environment: str) -> Run:
    """Like :func:`torchrun`, where it does not matter that ranks begin as Python does: they import torch once for all."""
    return _run([str(WORKERS / "forking.py"), str(size)], script, size, folder, environment)


def _run(launcher: list[str], script: str, size: int, folder: Path, environment: Mapping[str, str]) -> Run:
    group = Group()
    try:
        group.start(*launcher, str(WORKERS / script), RESULTS=str(folder), **environment)
        [(_, output)] = group.finish()
    finally:
        group.kill()
    return collect(size, folder, output)


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
    group = Group()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for address in addresses:
        group.start("-m", "herringbone", "serve", "--listen", address)
    yield ",".join(addresses)
    group.kill()


@pytest.fixture
def far(tmp_path: Path) -> str:
    """A search path whose ssh runs its command on this machine, without this process's environment."""
    ssh = tmp_path / "ssh"
    log = tmp_path / "ssh.log"
    ssh.write_text(
        f'#!/bin/sh\necho "$@" >>{log}\nwhile [ "$1" != sh ]; do shift; done\nexec env -i PATH="$PATH" "$@"\n'
    )
    ssh.chmod(ssh.stat().st_mode | stat.S_IXUSR)
    return f"{tmp_path}:{os.environ['PATH']}"
