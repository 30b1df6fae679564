"""Jobs: their processes are started here, heard, and ended.

A job whose program imports torch is forked by a server that has imported it, which saves each rank 2 to 4 s of a core. It
begins as fresh processes where the server refuses: see `Process.why`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import selectors
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from .process import PATIENCE_SECONDS, Forked, Fresh, Output, Process, Refused
from .rank import Request
from .shelf import STAGES

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["END_SECONDS", "PATIENCE_SECONDS", "Job", "Process", "environment", "python", "start"]

ROOT = Path(__file__).resolve().parent.parent
END_SECONDS = 20
"""For processes that were asked to end, and for those that a rank has left behind."""
HOST = "127.0.0.1"
FOREIGN = re.compile(
    r"(HERRINGBONE|MASTER|TORCHELASTIC|LOCAL|GROUP|ROLE|OMPI|SLURM|PYTEST|KMP)_|RANK$|WORLD_SIZE$"
    r"|(PYTHONUNBUFFERED|TORCHINDUCTOR_CACHE_DIR|COLUMNS|LINES)$"
)
"""Settings of a job that this process may be in itself, and of pytest, of which programs shall not know; and what
torch, scikit-learn and the library of terminals set."""
STAND_IN = "python"
PLACE = "LAB_SERVER"
"""Where a server listens that this process has not started."""


class BegunAfresh(UserWarning):
    """A process costs seconds of a core, because the server could not make it."""


def environment(extra: Mapping[str, str] = {}) -> dict[str, str]:
    """What a process of a job gets: :func:`bare_environment`, and that the thousands of failures of tests leave no records."""
    return {**bare_environment(), "HERRINGBONE_FLIGHT": "off", **extra}


def bare_environment() -> dict[str, str]:
    """This environment without settings of a job that this process may run inside of.

    Output stays buffered: an unbuffered ``print`` writes a line and its end one after the other, and processes that share a
    pipe, such as those of a launcher, would write in between. What has to be seen at once is flushed.
    """
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    return {**kept, "OMP_NUM_THREADS": "1"}


class Server:
    """The process that forks ranks; it ends with this one, or with a block."""

    def __init__(self, first: str = "") -> None:
        """``first`` is what it does before it serves."""
        self._folder = tempfile.TemporaryDirectory(prefix="lab-")
        self.place = str(Path(self._folder.name, "socket"))
        program = Path(self._folder.name, STAND_IN)
        stand_in = f"import sys; sys.path.append({str(ROOT)!r}); from lab.stand_in import main; main({self.place!r})"
        # The system takes no long path in the first line of a script, nor one with spaces; a shell does.
        program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-ISB", "-c", stand_in])} "$@"\n')
        program.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.place)
            listener.listen(128)
            self._popen = subprocess.Popen(
                [sys.executable, "-c", f"{first}\nfrom lab.server import main; main()", str(listener.fileno())],
                cwd=ROOT,
                env=bare_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End it as no test should."""
        self._popen.kill()

    def close(self) -> None:
        """End it, and all its ranks."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()
        self._folder.cleanup()


@functools.cache
def server() -> str:
    """Where the server listens; the first call starts it."""
    if place := os.environ.get(PLACE):
        return place
    started = Server()
    atexit.register(started.close)
    return started.place


@functools.cache
def has_torch() -> bool:
    """Whether this Python has what the server imports. Where it has not, all processes are fresh ones."""
    return all(importlib.util.find_spec(stage.partition(".")[0]) for stage in STAGES)


def python() -> str:
    """A program to give launchers for Python, whose processes the server forks."""
    if not has_torch():
        return sys.executable
    return str(Path(server()).parent / STAND_IN)


def start(
    words: list[str],
    variables: Mapping[str, str],
    folder: str | None = None,
    host: int | None = None,
    forked: bool | None = None,
    place: str | None = None,
    errors: int | None = None,
) -> Process:
    """Start this Python with these words and variables; both its outputs are one, unless ``errors`` is a descriptor for one.

    ``host`` is a process whose network it gets. ``forked`` says whether a server makes it, by default if it names torch, and
    ``place`` where another server than ours listens.
    """
    request = Request.of(words, dict(variables), folder, host)
    into, out_of = os.pipe()
    output = Output(into)
    with open(os.devnull) as nothing, contextlib.ExitStack() as stack:
        stack.callback(os.close, out_of)
        descriptors = [nothing.fileno(), out_of, out_of if errors is None else errors]
        why = None
        if has_torch() and (names_torch(request) if forked is None else forked):
            try:
                return Forked(request, output, descriptors, place or server())
            except Refused as refusal:
                why = str(refusal)
                warnings.warn(f"{request.words[0]} begins as a fresh process: {why}", BegunAfresh, stacklevel=2)
        return Fresh(request, output, descriptors, why)


def names_torch(request: Request) -> bool:
    """Whether the program does."""
    first, *more = request.program
    if first.startswith("-"):
        return first in ("-c", "-m") and "torch" in more[0]
    script = Path(request.folder, first)
    return script.is_file() and "torch" in script.read_text()


class Job:
    """Processes, one per rank, and what they print: they are over at the end of a block."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.lines: list[str] = []
        """Of all processes, in the order in which they came; `finish` fills it."""
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(
        self, *words: str, folder: str | None = None, host: int | None = None, forked: bool | None = False, **variables: str
    ) -> Process:
        """Start one more process, by default as a user would."""
        return self._add(list(words), variables, folder, host, forked)

    def start_ranks(self, script: str, size: int, *arguments: str, forked: bool | None = None, **variables: str) -> None:
        """Start a script once per rank, with the variables that a launcher would set."""
        for rank in range(size):
            self._add([script, *arguments], {**place(rank, size), **variables}, forked=forked)

    def torchrun(self, script: str, size: int, *arguments: str, folder: str | None = None, **variables: str) -> None:
        """Start a script as torchrun would, which keeps the store where ranks meet; `finish` it `together`."""
        import torch.distributed as dist

        listener = socket.create_server((HOST, 0))
        port = listener.getsockname()[1]
        # Its stub does not know all that it takes.
        stores: Any = dist
        store = stores.TCPStore(HOST, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
        self._stack.callback(lambda: store)
        words = {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "ROLE_NAME": "default"}
        words |= {"TORCHELASTIC_RUN_ID": uuid4().hex, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        words |= {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}
        for rank in range(size):
            own = {**place(rank, size), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
            own |= {"ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": str(size)}
            self._add([script, *arguments], {**words, **own, **variables}, folder)

    def _add(
        self,
        words: list[str],
        variables: Mapping[str, str],
        folder: str | None = None,
        host: int | None = None,
        forked: bool | None = None,
    ) -> Process:
        process = start(words, environment(variables), folder, host, forked)
        self.processes.append(process)
        return process

    def finish(self, seconds: float = PATIENCE_SECONDS, together: bool = False) -> list[tuple[int, str]]:
        """Wait for all and return exit status and output of each; what is left behind after the limit is ended.

        ``together``: the first that fails ends the others, as torchrun does.
        """
        return Ending(self, seconds, together).outcomes()

    def kill(self) -> None:
        """End what is left, with the children; a launcher ends its own, which are in sessions of theirs."""
        left = [process for process in self.processes if not process.is_over()]
        for process in left:
            process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in left:
            process.is_over(max(0.0, deadline - time.monotonic()))
        self.end()

    def end(self) -> None:
        """End what is left at once."""
        for process in self.processes:
            process.close()
        self._stack.close()


def place(rank: int, size: int) -> dict[str, str]:
    """What a rank on one host is told of itself."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {name: str(number) for name, number in numbers.items()}


class Ending:
    """The wait for the end of a job. It never is longer than its limit, whoever still holds a pipe."""

    def __init__(self, job: Job, seconds: float, together: bool) -> None:
        self.job, self.seconds, self.together = job, seconds, together
        self.deadline = time.monotonic() + seconds
        self.texts: list[list[str]] = [[] for _ in job.processes]
        self.running: set[int] = set()
        self.heard: set[int] = set()
        self.selector = selectors.DefaultSelector()
        for number, process in enumerate(job.processes):
            if process.poll() is None:
                self.running.add(number)
                self.selector.register(process.handle, selectors.EVENT_READ, number)
            if not process.stdout.ended:
                self.heard.add(number)
                self.selector.register(process.stdout, selectors.EVENT_READ, number)
            self.take(number)

    def outcomes(self) -> list[tuple[int, str]]:
        """Of each process."""
        with self.selector:
            while (self.running or self.heard) and (left := self.deadline - time.monotonic()) > 0:
                for key, _ in self.selector.select(left):
                    if key.fileobj is self.job.processes[key.data].stdout:
                        self.take(key.data)
                    else:
                        self.ended(key.data)
        why = f"(killed after {self.seconds} s)" if self.running else "(killed: what a rank has left behind)"
        for number in self.running | self.heard:
            process = self.job.processes[number]
            process.end_session()
            process.wait()
            process.stdout.take()
            self.say(number, process.stdout.rest() + f"\n{why}")
        return [(process.wait(), "".join(text)) for process, text in zip(self.job.processes, self.texts, strict=True)]

    def take(self, number: int) -> None:
        """Take whole lines from a process, and at its end all."""
        output = self.job.processes[number].stdout
        output.take()
        while b"\n" in output.held:
            self.say(number, output.readline())
        if output.ended and number in self.heard:
            self.heard.remove(number)
            self.selector.unregister(output)
            self.say(number, output.rest())

    def say(self, number: int, text: str) -> None:
        """A process has printed this."""
        if text:
            self.texts[number].append(text)
            self.job.lines.append(text)

    def ended(self, number: int) -> None:
        """A process has; those that it leaves behind have some time."""
        process = self.job.processes[number]
        self.running.remove(number)
        self.selector.unregister(process.handle)
        status = process.wait()
        if self.together and status != 0:
            self.together = False
            self.job.lines.append(f"rank {number} ended with {status}\n")
            for other in self.running:
                self.job.processes[other].terminate()
        if not self.running:
            self.deadline = min(self.deadline, time.monotonic() + END_SECONDS)
