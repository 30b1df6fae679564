"""Jobs that call, make groups and lose workers again and again, and what their processes have more afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from counters import Taken, left_on_the_machine
from ports import free_port

HERE = pathlib.Path(__file__).resolve().parent
RANKS = 4
WARM_OPERATIONS, WARM_GROUPS, WARM_KILLS = 1_800, 40, 4
"""What happens before the first count, after which nothing is made for the first time."""
LIMIT_KIB = 4 << 10
"""Resident memory that a process may have more: allocators do not give everything back at once."""
WAYS = {"shared memory": "shm", "TCP and a reducer": "tcp"}


class Leak(AssertionError):
    """Something was left, or a rank failed."""


def is_too_much(name: str, number: int) -> bool:
    """Whether a process may not have so much more of something."""
    return number > (LIMIT_KIB if name == "kib" else 0)


@dataclass
class Phase:
    """What one kind of work has left, by process."""

    what: str
    way: str
    amount: int
    seconds: float
    more: dict[str, dict[str, int]]

    def wrong(self) -> list[str]:
        """What a process has more than it may."""
        found = []
        for process, more in self.more.items():
            for name, number in more.items():
                if is_too_much(name, number):
                    found.append(f"{self.what} over {self.way}: {process} has {number} {name} more")
        return found


@dataclass
class Process:
    """A rank that does what it is told."""

    process: subprocess.Popen[str]

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Leak(f"a rank ended with {self.process.wait()} instead of answering")
        return line.strip()

    def taken(self) -> Taken:
        return Taken(**json.loads(self.hear()))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Job:
    """Four ranks, which form one world after the other, and a reducer where they meet over TCP."""

    way: str
    environment: dict[str, str] = field(default_factory=dict)
    reducer: subprocess.Popen[bytes] | None = None
    ranks: list[Process] = field(default_factory=list)

    def begin(self) -> None:
        foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "SLURM_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.environment = {**kept, "OMP_NUM_THREADS": "1", "HERRINGBONE_TRANSPORT": WAYS[self.way]}
        self.environment["HERRINGBONE_TOKEN"] = "a token of the soak"
        if WAYS[self.way] == "tcp":
            address = f"127.0.0.1:{free_port()}"
            command = [sys.executable, "-m", "herringbone", "serve", "--listen", address]
            self.reducer = subprocess.Popen(command, env=self.environment, stdout=subprocess.DEVNULL)
            self.environment["HERRINGBONE_REDUCERS"] = address
            while socket.socket().connect_ex(("127.0.0.1", int(address.split(":")[1]))):
                if self.reducer.poll() is not None:
                    raise RuntimeError(f"the reducer ended with {self.reducer.returncode} before anybody could reach it")
                time.sleep(0.05)
        self.ranks = [self.rank() for _ in range(RANKS)]

    def rank(self) -> Process:
        pipe = subprocess.PIPE
        # What a rank warns of is that another one died.
        environment = {**self.environment, "HERRINGBONE_LOG": "off"}
        command = [sys.executable, str(HERE / "ranks.py")]
        return Process(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))

    def all(self, *words: object) -> dict[str, Taken]:
        """All ranks do something; what each process has then."""
        for rank in self.ranks:
            rank.tell(*words)
        return self.counted([rank.taken() for rank in self.ranks])

    def counted(self, ranks: list[Taken]) -> dict[str, Taken]:
        found = {f"rank {number}": taken for number, taken in enumerate(ranks)}
        if self.reducer is not None:
            found["the reducer"] = Taken.of(self.reducer.pid)
        return found

    def form(self) -> dict[str, Taken]:
        store = f"127.0.0.1:{free_port()}"
        for number, rank in enumerate(self.ranks):
            rank.tell("form", number, RANKS, store)
        return self.counted([rank.taken() for rank in self.ranks])

    def lose_one(self, number: int) -> None:
        """The last rank is killed while all sum. The others go on without it, and end; a new process takes its place."""
        victim = self.ranks[-1]
        for rank in self.ranks:
            rank.tell("sum")
        for rank in self.ranks:
            rank.hear()
        time.sleep(0.001 * (number * 7 % 20))
        victim.process.send_signal(signal.SIGKILL)
        victim.end()
        for rank in self.ranks[:-1]:
            rank.taken()
        self.ranks[-1] = self.rank()

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()
        if self.reducer is not None:
            self.reducer.kill()
            self.reducer.wait()


@contextlib.contextmanager
def job(way: str) -> Iterator[Job]:
    found = Job(way)
    try:
        found.begin()
        yield found
    finally:
        found.end()


def compared(what: str, way: str, amount: int, began: float, counts: tuple[dict[str, Taken], dict[str, Taken]]) -> Phase:
    before, after = counts
    more = {process: after[process].more_than(before[process]) for process in before}
    return Phase(what, way, amount, time.monotonic() - began, more)


def lasting(phase: Callable[[], Phase]) -> Phase:
    """A kind of work, done once more if it left too much memory: a leak grows again, and what an allocator keeps does not."""
    first = phase()
    names = {name for more in first.more.values() for name, number in more.items() if is_too_much(name, number)}
    return phase() if names == {"kib"} else first


def work(way: str, operations: int, groups: int) -> Iterator[Phase]:
    """Calls of all kinds, and groups, in one world."""
    with job(way) as ranks:
        ranks.form()

        def phase(what: str, warm: int, amount: int) -> Phase:
            before, began = ranks.all(what, warm), time.monotonic()
            return compared(what, way, amount, began, (before, ranks.all(what, amount)))

        yield lasting(lambda: phase("operations", WARM_OPERATIONS, operations))
        yield lasting(lambda: phase("groups", WARM_GROUPS, groups))
        ranks.all("close")


def kills(way: str, number: int) -> Iterator[Phase]:
    """Workers that are killed; the counts are of ranks that have closed, with the reducer, between two worlds."""
    with job(way) as ranks:

        def counted(rounds: int) -> dict[str, Taken]:
            for turn in range(rounds):
                ranks.form()
                ranks.lose_one(turn)
            ranks.form()
            taken = ranks.all("close")
            # It is another process than before.
            del taken[f"rank {RANKS - 1}"]
            return taken

        def phase() -> Phase:
            before, began = counted(WARM_KILLS), time.monotonic()
            return compared("workers killed", way, number, began, (before, counted(number)))

        yield lasting(phase)


def soak(operations: int, groups: int, killed: int) -> Iterator[Phase]:
    """All of it: half over each way."""
    before = left_on_the_machine()
    for way in WAYS:
        yield from work(way, -(-operations // len(WAYS)), -(-groups // len(WAYS)))
        yield from kills(way, -(-killed // len(WAYS)))
    left = [name for name in left_on_the_machine() if name not in before]
    if left:
        raise Leak(f"left on the machine: {left}")
