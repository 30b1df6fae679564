"""Ranks that report events to a test that watches them: an event is a line of their standard output.

A rank reports an event with `say`. `Ranks` starts ranks, on hosts and at any time, and waits for their events.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from .job import PATIENCE_SECONDS, Process, environment, start

MARK = "\x1e"
"""The prefix of an event, as in RFC 7464; any other line is a program's."""

Event = dict[str, Any]


class Silence(Exception):
    """A rank did not report an expected event in time: it hangs, or has ended."""


def say(event: str, **values: object) -> None:
    """In a rank: one event, written at once."""
    line = json.dumps({"event": event, "time": time.monotonic(), **values})
    os.write(1, f"{MARK}{line}\n".encode())


class Rank:
    """One process, and all its events so far."""

    def __init__(self, ranks: Ranks, process: Process) -> None:
        self._ranks, self.process = ranks, process
        self._events: list[Event] = []
        self._lines: list[str] = []

    @property
    def events(self) -> list[Event]:
        """The events, in the order in which they were reported."""
        self.hear()
        return self._events

    @property
    def lines(self) -> list[str]:
        """Its other output, without errors."""
        self.hear()
        return self._lines

    @property
    def status(self) -> int | None:
        """Its exit status, below 0 for a signal; None while it runs."""
        return self.process.poll()

    def hear(self) -> None:
        """Read its output so far."""
        output = self.process.stdout
        if not output.ended:
            output.take()
        while b"\n" in output.held:
            text, _, event = output.readline().partition(MARK)
            if event:
                self._events.append(json.loads(event))
            if text:
                self._lines.append(text.rstrip("\n"))

    def first(self, *names: str) -> Event | None:
        """The first event of one of these names, if it has come."""
        return next((event for event in self.events if event["event"] in names), None)

    def wait(self, *names: str, seconds: float = 60) -> Event:
        """Wait for it.

        Raises:
            Silence: it has not come.
        """
        in_time = self._ranks.wait(lambda: self.first(*names) or self.status is not None, seconds)
        if found := self.first(*names):
            return found
        why = "ended before it said any of" if in_time else f"said within {seconds:.0f} s none of"
        raise Silence(f"a rank {why} {', '.join(names)}: {self.events[-3:]}")

    def send(self, what: signal.Signals) -> float:
        """Send a signal, and return the time."""
        now = time.monotonic()
        self.process.send_signal(what)
        return now


class Ranks:
    """Ranks that begin at any time, and are over at the end of a block; their errors go to a file, or to our own."""

    def __init__(self, log: Path = Path("/dev/stderr")) -> None:
        self.log = log
        self._running: list[Rank] = []

    def __enter__(self) -> Ranks:
        self._errors: IO[bytes] = self.log.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        self.end(self._running)
        self._errors.close()

    def start(self, *words: str, host: int | None = None, forked: bool | None = True, **variables: str) -> Rank:
        """Start one more; ``host`` is a process whose network it gets."""
        process = start(list(words), environment(variables), host=host, forked=forked, errors=self._errors.fileno())
        self._running.append(Rank(self, process))
        return self._running[-1]

    def wait(self, is_over: Callable[[], object], seconds: float) -> bool:
        """Read all ranks' output until a condition holds, which is checked whenever one has reported something or ended."""
        deadline = time.monotonic() + seconds
        while not is_over():
            if (left := deadline - time.monotonic()) <= 0:
                return False
            sources: list[Any] = [rank.process.handle for rank in self._running if rank.status is None]
            sources += [rank.process.stdout for rank in self._running if not rank.process.stdout.ended]
            wait(sources, left)
            for rank in self._running:
                rank.hear()
        return True

    def finish(self, ranks: list[Rank], seconds: float = 60) -> list[int | None]:
        """Wait for the end of ranks; a rank that hangs is ended, and its status is None."""
        self.wait(lambda: all(rank.status is not None for rank in ranks), seconds)
        statuses = [rank.status for rank in ranks]
        self.end(ranks)
        return statuses

    def end(self, ranks: list[Rank]) -> None:
        """End ranks at once, with all processes that they have started."""
        for rank in ranks:
            if rank.process.handle >= 0:
                rank.process.end_session()
        for rank in ranks:
            rank.process.is_over(PATIENCE_SECONDS)
            rank.hear()
            rank.process.close()
        self._running = [rank for rank in self._running if rank not in ranks]
