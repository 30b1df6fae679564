"""Where faults are injected: hosts, ranks of torch on them, reducers on hosts of their own."""

from __future__ import annotations

import contextlib
import pathlib
import re
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cables import Hosts
from jobs import doing

from lab.events import Rank, Ranks
from lab.job import Process, environment, start

TOKEN = "the-faults-of-these-tests"
HOSTS, REDUCERS = 3, 2
EACH = ((2, 2, 2), (1, 1, 1), (2, 2, 1))
"""How many ranks the hosts of a job may have."""
GLOO_SECONDS, OWN_SECONDS = 10, 60
"""The timeouts of operations. Gloo hears of many faults by it alone, so its is short here; ours is far off."""
COUNT = 250_000
FIRST_PORT, PORTS = 20_000, 10_000
START_SECONDS = 60


@dataclass
class Job:
    """A job that runs, and where its ranks are."""

    lab: Lab
    each: tuple[int, ...]
    ranks: list[Rank] = field(default_factory=list)

    def host_of(self, rank: int) -> int:
        """The host of a rank."""
        return [host for host, number in enumerate(self.each) for _ in range(number)][rank]

    def on(self, host: int) -> list[int]:
        """The ranks of a host."""
        return [rank for rank in range(len(self.ranks)) if self.host_of(rank) == host]

    def wait(self, event: str) -> None:
        """Waits until every rank has said so."""
        for rank in self.ranks:
            rank.wait(event, seconds=START_SECONDS)

    def stop(self) -> None:
        """Asks rank 0 to end the job for all."""
        self.lab.stop.touch()


class Lab:
    """Hosts with cables; each job starts in a moment. All of it ends with the block."""

    def __init__(self, log: pathlib.Path) -> None:
        self.log, self.stack, self.jobs = log, contextlib.ExitStack(), 0

    def __enter__(self) -> Lab:
        with self.stack:
            folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="herringbone-faults-"))
            self.folder = pathlib.Path(folder)
            self.hosts = self.stack.enter_context(Hosts(HOSTS + REDUCERS))
            self.ranks = self.stack.enter_context(Ranks(self.log))
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    @contextlib.contextmanager
    def job(self, program: list[str], backend: str, each: tuple[int, ...], reducers: Serving | None = None) -> Iterator[Job]:
        """Ranks that run a program, such as one of `jobs`; what is left of them ends with the block."""
        self.jobs += 1
        self.stop = self.folder / f"stop{self.jobs}"
        running = Job(self, each)
        own = backend == "herringbone"
        common = {
            "MASTER_ADDR": self.hosts.address(0),
            "MASTER_PORT": str(FIRST_PORT + self.jobs % PORTS),
            "WORLD_SIZE": str(sum(each)),
            "GLOO_SOCKET_IFNAME": self.hosts.interface,
            "HERRINGBONE_TOKEN": TOKEN,
            **(reducers.settings(each) if reducers and own else {}),
        }
        try:
            for rank in range(sum(each)):
                host = [host for host, number in enumerate(each) for _ in range(number)][rank]
                place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(each[host])}
                running.ranks.append(self.ranks.start(*program, host=self.hosts.network(host), **common, **place))
            yield running
        finally:
            self.ranks.end(running.ranks)

    def summing(self, backend: str, each: tuple[int, ...], reducers: Serving | None = None, **changed: Any) -> Any:
        """A job that adds up until it is stopped."""
        arguments = {**by(backend), "count": COUNT, "stop": str(self.folder / f"stop{self.jobs + 1}"), **changed}
        return self.job(doing("summing", **arguments), backend, each, reducers)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Serving]:
        """Reducers on hosts of their own."""
        with self.log.open("ab") as output:
            serving = Serving(self, output)
            try:
                serving.start()
                yield serving
            finally:
                for process in serving.running:
                    process.close()


def by(backend: str) -> dict[str, Any]:
    """The arguments of a job that say what carries it."""
    return {"backend": backend, "timeout": OWN_SECONDS if backend == "herringbone" else GLOO_SECONDS}


class Serving:
    """Reducers that run: each can be killed, stopped, and started again."""

    def __init__(self, lab: Lab, output: Any) -> None:
        self.lab, self.output = lab, output
        self.addresses = [f"{lab.hosts.address(HOSTS + number)}:7070" for number in range(REDUCERS)]
        self.running: list[Process] = []

    def start(self) -> None:
        """Start all; they listen when this returns."""
        self.running = [self.started(number) for number in range(REDUCERS)]
        for process in self.running:
            if "listening" not in process.stdout.readline():
                raise RuntimeError(f"a reducer did not start: see {self.lab.log}")

    def started(self, number: int) -> Process:
        """A reducer that begins."""
        words = ["-m", "herringbone", "serve", "--listen", self.addresses[number]]
        host = self.lab.hosts.network(HOSTS + number)
        return start(words, environment({"HERRINGBONE_TOKEN": TOKEN}), host=host, errors=self.output.fileno())

    def restart(self, number: int) -> None:
        """Start a reducer again, once it has ended."""
        self.running[number].wait()
        self.running[number] = self.started(number)

    def send(self, number: int, what: signal.Signals) -> None:
        """Sends a reducer a signal."""
        self.running[number].send_signal(what)

    def settings(self, each: tuple[int, ...]) -> dict[str, str]:
        """What makes a job use them."""
        several = len(set(each)) == 1 and each[0] > 1
        algorithm = "hierarchical(radix,reduction_server)" if several else "reduction_server"
        return {"HERRINGBONE_REDUCERS": ",".join(self.addresses), "HERRINGBONE_ALGORITHM": algorithm}


def listening(process: int) -> list[int]:
    """The TCP ports at which a process listens."""
    sockets = set()
    for descriptor in pathlib.Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.update(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and cells[9] in sockets:
                ports.add(int(cells[1].rsplit(":", 1)[1], 16))
    return sorted(ports)
