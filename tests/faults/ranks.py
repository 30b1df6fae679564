"""Ranks of a job as processes on hosts: started, heard, and ended with the block that started them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 120
"""The import of torch on a busy machine."""
END_SECONDS = 10

Event = dict[str, Any]


class Silence(Exception):
    """A rank did not say in time what it had to: it hangs, or has ended."""


class Rank:
    """One process, and all that it has said so far."""

    def __init__(self, number: int, changed: threading.Condition) -> None:
        self.number, self.changed = number, changed
        self.events: list[Event] = []

    def first(self, *names: str) -> Event | None:
        """The first event of one of these names, if it has come."""
        return next((event for event in list(self.events) if event["event"] in names), None)

    def wait(self, *names: str, seconds: float = 60) -> Event:
        """Waits for it."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.first(*names) or self.first("ended"), seconds):
                raise Silence(f"a rank said none of {', '.join(names)} within {seconds:.0f} s: {self.events[-3:]}")
        found = self.first(*names)
        if found is None:
            raise Silence(f"a rank ended before it said any of {', '.join(names)}: {self.events[-3:]}")
        return found

    @property
    def process(self) -> int:
        """Its process id."""
        return int(self.wait("started")["process"])

    @property
    def status(self) -> int | None:
        """Its exit status, below 0 for a signal; None while it runs."""
        ended = self.first("ended")
        return ended["status"] if ended else None

    def send(self, what: signal.Signals) -> float:
        """Sends a signal, and returns when."""
        now = time.monotonic()
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process, what)
        return now


class Ranks:
    """Processes forked from one that has imported `modules`; `prefix` is what its command begins with."""

    def __init__(self, modules: list[str], log: pathlib.Path, prefix: Callable[[list[str]], list[str]] = list) -> None:
        self.modules, self.log, self.prefix = modules, log, prefix
        self.ranks: list[Rank] = []
        self.changed = threading.Condition()

    def __enter__(self) -> Ranks:
        foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "GLOO_", "TORCH_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.output: IO[bytes] = self.log.open("ab")
        self.forker = subprocess.Popen(
            self.prefix([sys.executable, str(HERE / "forker.py"), *self.modules]),
            env={**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.output,
            start_new_session=True,
        )
        threading.Thread(target=self._hear, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self.ranks)
        assert self.forker.stdin is not None
        self.forker.stdin.close()
        self.forker.wait()
        self.output.close()

    def start(
        self, job: str, network: int | None = None, environment: dict[str, str] | None = None, **arguments: Any
    ) -> Rank:
        """Starts one more rank: `job` names a function of `jobs`."""
        rank = Rank(len(self.ranks), self.changed)
        self.ranks.append(rank)
        request = {"number": rank.number, "job": job, "network": network}
        line = json.dumps({**request, "environment": environment or {}, "arguments": arguments})
        assert self.forker.stdin is not None
        self.forker.stdin.write(line.encode() + b"\n")
        self.forker.stdin.flush()
        return rank

    def finish(self, ranks: list[Rank], seconds: float = 60) -> list[int | None]:
        """Waits for the end of ranks; None is the status of one that hangs, which is ended."""
        deadline = time.monotonic() + seconds
        with self.changed:
            for rank in ranks:
                left = max(0.0, deadline - time.monotonic())
                self.changed.wait_for(partial(rank.first, "ended"), left)
        statuses = [rank.status for rank in ranks]
        self.end(ranks)
        return statuses

    def end(self, ranks: list[Rank]) -> None:
        """Ends ranks at once."""
        for rank in ranks:
            rank.send(signal.SIGKILL)
        with self.changed:
            for rank in ranks:
                self.changed.wait_for(partial(rank.first, "ended"), END_SECONDS)

    def _hear(self) -> None:
        assert self.forker.stdout is not None
        for line in self.forker.stdout:
            event = json.loads(line)
            with self.changed:
                self.ranks[event["number"]].events.append(event)
                self.changed.notify_all()
        with self.changed:
            for rank in self.ranks:
                if rank.status is None:
                    rank.events.append({"event": "ended", "status": -signal.SIGKILL, "time": time.monotonic()})
            self.changed.notify_all()
