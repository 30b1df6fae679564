"""Table servers that are killed, stopped and started again: what workers were told was done is there, and counts once."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import herringbone
import numpy as np
import pytest
from lab.job import environment, python

SERVERS = 3


class Servers:
    """Servers that have copies of each other's ranges."""

    def __init__(self, count: int, replicas: int, *more: str) -> None:
        with contextlib.ExitStack() as bound:
            sockets = [bound.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
            self.addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
        self.more = ["--replicas", str(replicas), *more]
        self.processes: list[subprocess.Popen[str]] = [self._start(address) for address in self.addresses]

    def _start(self, address: str) -> subprocess.Popen[str]:
        command = [python(), "-m", "herringbone", "serve", "--tables", "--listen", address, "--patience", "1"]
        command += ["--servers", ",".join(self.addresses), *self.more]
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        return process

    def kill(self, place: int) -> None:
        self.processes[place].kill()
        self.processes[place].wait()

    def start(self, place: int) -> None:
        self.processes[place] = self._start(self.addresses[place])

    def connect(self, rank: int = 0, workers: int = 1) -> herringbone.ParameterServer:
        return herringbone.ParameterServer(self.addresses, rank=rank, workers=workers, timeout=60)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def three() -> Iterator[Servers]:
    servers = Servers(SERVERS, 1)
    yield servers
    servers.close()


def until(done: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_servers_are_killed_and_come_back_while_a_worker_pushes(three: Servers) -> None:
    """Each push adds 1 to all rows, so what a pull sees is how many pushes counted."""
    rows, pushed, waited = 999, 0, [0.0]
    is_over = threading.Event()
    with three.connect() as servers:
        table = servers.table("t", rows=rows, width=3, dtype=np.float64)

        def push() -> None:
            nonlocal pushed
            while not is_over.is_set():
                began = time.monotonic()
                table.push_range(0, np.ones((rows, 3)))
                pushed += 1
                waited.append(time.monotonic() - began)

        pusher = threading.Thread(target=push)
        pusher.start()
        for place in [0, 2, 1, 0]:
            until(lambda before=pushed: pushed > before + 20)  # type: ignore[misc]
            three.kill(place)
            until(lambda before=pushed: pushed > before + 20)  # type: ignore[misc]
            three.start(place)
            # It has to have its copies back before the next one is lost.
            time.sleep(1)
        is_over.set()
        pusher.join()
        assert (table.pull_range(0, rows) == pushed).all(), f"{pushed} pushes"
        assert max(waited) < 5, "on a busy machine; a second else"


@pytest.mark.full
def test_a_server_that_is_stopped_and_wakes_up_acknowledges_nothing(three: Servers) -> None:
    with three.connect() as servers:
        table = servers.table("t", rows=300, width=1, dtype=np.float64, consistency="sync")
        table.push_range(0, np.ones((300, 1)))
        three.processes[1].send_signal(signal.SIGSTOP)
        try:
            for _ in range(5):
                table.push_range(0, np.ones((300, 1)))
        finally:
            three.processes[1].send_signal(signal.SIGCONT)
        for _ in range(20):
            table.push_range(0, np.ones((300, 1)))
            assert np.unique(table.pull_range(0, 300)).tolist() == [table.step]


def test_of_two_servers_one_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Servers(2, 1)
    try:
        with two.connect() as servers:
            embeddings = servers.table("e", rows=1 << 40, width=4, sparse=True, optimizer="adam", initializer="normal", seed=5)
            keys = np.arange(0, 1 << 40, 1 << 32, dtype=np.uint64)
            for _ in range(3):
                embeddings.push(keys, np.ones((len(keys), 4), np.float32))
            before = embeddings.pull(keys)
            for victim in [0, 1]:
                two.kill(victim)
                began = time.monotonic()
                assert (embeddings.pull(keys) == before).all()
                assert time.monotonic() - began < 5
                two.start(victim)
                embeddings.push(keys, np.ones((len(keys), 4), np.float32))
                before = embeddings.pull(keys)
                time.sleep(1.5)
    finally:
        two.close()


def test_a_snapshot_comes_back_on_another_number_of_servers(tmp_path: pathlib.Path) -> None:
    keys = np.arange(0, 10_000, 7)
    gradients = np.random.default_rng(3).standard_normal((2, len(keys), 8)).astype(np.float32)

    def open_tables(servers: herringbone.ParameterServer) -> list[herringbone.Table]:
        common: dict[str, Any] = {"rows": 10_000, "width": 8, "optimizer": "adam", "consistency": "sync", "restore": True}
        return [servers.table("sparse", sparse=True, **common), servers.table("dense", **common)]

    def train(group: Servers, steps: int, saves_at: int | None) -> list[Any]:
        with group.connect(0, 2) as one, group.connect(1, 2) as two:
            results: list[Any] = []
            # A worker that has left before is waited for only once it is back.
            both_are_here = threading.Barrier(2)

            def work(rank: int, servers: herringbone.ParameterServer) -> None:
                tables = open_tables(servers)
                both_are_here.wait(60)
                for table in tables:
                    while table.step < steps:
                        if rank == 0 and table.step == saves_at:
                            saver = threading.Thread(target=table.snapshot)
                            saver.start()
                        table.push(keys, gradients[rank] * (table.step + 1))
                    rows = table.pull(keys)
                    if rank == 0:
                        results.append(rows)
                        if saves_at is not None:
                            saver.join()

            workers = [threading.Thread(target=work, args=pair) for pair in [(0, one), (1, two)]]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            return results

    with contextlib.closing(Servers(2, 1, "--data", str(tmp_path))) as two:
        expected = train(two, 9, 4)
    assert len(list(tmp_path.rglob("*.table"))) == 4
    with contextlib.closing(Servers(3, 1, "--data", str(tmp_path))) as three:
        with three.connect(0, 2) as servers:
            # A thread takes the snapshot, which may see a later step.
            assert all(4 <= table.step <= 9 for table in open_tables(servers))
        resumed = train(three, 9, None)
    assert all(np.array_equal(one, other) for one, other in zip(resumed, expected, strict=True))


def test_a_list_that_differs_is_refused(three: Servers) -> None:
    with pytest.raises(herringbone.ConfigError, match="name the servers in the same order as their own --servers"):
        herringbone.ParameterServer(three.addresses[::-1], rank=0, workers=1, timeout=20)
    assert os.environ.get("HERRINGBONE_TABLES") is None


def test_status_shows_owners_and_who_is_behind(three: Servers) -> None:
    with three.connect(0, 2) as first, three.connect(1, 2) as second:
        tables = [servers.table("lagging", rows=90, width=2, dtype=np.float64, consistency=2) for servers in (first, second)]
        for worker, steps in enumerate((3, 1)):
            for _ in range(steps):
                tables[worker].push(np.array([4, 40, 80], np.uint64), np.ones((3, 2)))

        def status(*options: str) -> str:
            command = [python(), "-m", "herringbone", "status", three.addresses[0], *options]
            return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout

        page = status()
        assert "3 of 3 servers answer, 1 copy of each range" in page, page
        [row] = [line for line in page.splitlines() if line.startswith(" lagging  dense")]
        assert "90 of 90" in row and "rank 1: 2" in row, page
        three.kill(1)
        owners: list[int | None] = []

        def is_taken_over() -> bool:
            nonlocal owners
            members = json.loads(status("--json"))["members"]
            answers = [member["tables"] for member in members if member["answers"]]
            assert len(members) == 3
            owners = [entry["owner"] for entry in answers[0]["ranges"]] if len(answers) == 2 else []
            return 1 not in owners and len(owners) == 3

        until(is_taken_over)
        assert owners == [0, 2, 2]


def test_after_all_servers_were_started_anew_an_old_table_is_no_other_one(three: Servers) -> None:
    shape: dict[str, Any] = {"rows": 30, "dtype": np.float64}
    with three.connect() as servers:
        old = servers.table("old", **shape)
        old.push_range(0, np.ones((30, 1)))
        for place in range(SERVERS):
            three.kill(place)
        for place in range(SERVERS):
            three.start(place)
        new = servers.table("new", **shape)
        new.push_range(0, np.full((30, 1), 100.0))
        with pytest.raises(herringbone.TableError, match="no such table"):
            old.push_range(0, np.ones((30, 1)))
        assert (new.pull_range(0, 30) == 100).all()
        again = servers.table("old", **shape)
        again.push_range(0, np.ones((30, 1)))
        assert (again.pull_range(0, 30) == 1).all()
