"""What a job shows over HTTP while it runs: metrics, its state, its health; and strangers who ask for it."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Group, free_port

from lab.job import Process

RANKS, SUMS, COUNT = 3, 20, 10_000
SECRET, ADMIN = "sixteen characters or more", "another text of sixteen characters"
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


class Shown:
    """A job of ranks and a reducer, each of which shows itself at a port of its own."""

    def __init__(self, group: Group, folder: Path) -> None:
        self.group, self.folder = group, folder
        self.reducer = f"127.0.0.1:{free_port()}"
        settings = {"HERRINGBONE_ADMIN_TOKEN": ADMIN, "HERRINGBONE_TOKEN": SECRET}
        # The server is asked by an option, and ranks by a variable.
        group.start("-m", "herringbone", "serve", "--listen", self.reducer, "--admin", "127.0.0.1:0", **settings)
        self.reducer_port = self.port(group.processes[0])
        self.ranks = self.start_job(RANKS)
        self.ports = [self.port(rank) for rank in self.ranks]
        for rank in self.ranks:
            self.hear(rank, "summed")

    def start_job(self, ranks: int) -> list[Process]:
        """The ranks of a job with the reducer."""
        settings = {"HERRINGBONE_ADMIN_TOKEN": ADMIN, "HERRINGBONE_TOKEN": SECRET}
        settings |= {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_ADMIN": "127.0.0.1:0"}
        settings |= {"HERRINGBONE_REDUCERS": self.reducer, "HERRINGBONE_ALGORITHM": "reduction_server"}
        settings |= {"HERRINGBONE_JOB": "shown-7", "HERRINGBONE_TIMEOUT_S": "60", "HERRINGBONE_PATIENCE_S": "30"}
        before = len(self.group.processes)
        self.group.start_ranks("shown.py", ranks, str(self.folder), **settings)
        return self.group.processes[before:]

    def hear(self, process: Process, word: str) -> str:
        """The next line of a process with a word."""
        said = []
        for line in process.stdout:
            said.append(line)
            if word in line:
                return line
        pytest.fail(f"ended before it said {word!r}:\n{''.join(said)}")

    def port(self, process: Process) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.hear(process, "live page and metrics"))
        assert found is not None
        return int(found[1])


@pytest.fixture
def shown(group: Group, tmp_path: Path) -> Iterator[Shown]:
    yield Shown(group, tmp_path)


def get(port: int, path: str, token: str | None = ADMIN, **headers: str) -> tuple[int, str]:
    """Status and text."""
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metrics(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Samples by their names and labels."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    found = [SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    samples = {}
    for sample in found:
        assert sample is not None
        samples[sample[1], frozenset(LABEL.findall(sample[2] or ""))] = float(sample[3])
    assert len(samples) == len(found), "no sample is there twice"
    return samples


def value(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def raw(port: int, request: bytes, wait: float = 10) -> bytes:
    """What a client is told that sends these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


def test_a_job_shows_itself_while_it_runs(shown: Shown) -> None:
    check_figures(shown)
    check_page_and_health(shown)
    (shown.folder / "goes_on").touch()
    before = [metrics(port) for port in shown.ports]
    check_strangers(shown)
    slow = socket.create_connection(("127.0.0.1", shown.ports[0]), timeout=10)
    slow.sendall(b"GET /healthz HTT")
    check_stopped(shown)
    assert slow.recv(65536).startswith(b"HTTP/1.1 408 ")
    operations = {"collective": "all_reduce", "algorithm": "reduction_server"}
    for port, then in zip(shown.ports, before, strict=True):
        now = metrics(port)
        for name, labels in [("herringbone_operations_total", operations), ("herringbone_wait_seconds_total", {})]:
            assert value(now, name, **labels) > value(then, name, **labels), name
        waited = {labels: seconds for (name, labels), seconds in now.items() if name == "herringbone_peer_wait_seconds_total"}
        # It is stopped for the second, at least, that it has to answer in.
        assert sum(waited.values()) > 0.5, "the ranks have waited for the one that was stopped"
    # A rank that is stopped while it hands a result on keeps no reducer waiting. One that calls late does.
    late = shown.folder / "late"
    late.touch()
    while late.exists():
        time.sleep(0.02)
    of_reducer = metrics(shown.reducer_port)
    assert value(of_reducer, "herringbone_peer_wait_seconds_total", peer="rank 1") > 0.5
    (shown.folder / "ends").touch()
    for rank in shown.ranks:
        shown.hear(rank, "done")
        assert rank.wait() == 0
    assert get(shown.reducer_port, "/readyz", None) == (200, "serving\n")


def test_a_reducer_of_two_jobs_shows_the_one_that_is_asked_for(shown: Shown) -> None:
    more = shown.start_job(2)
    for rank in more:
        shown.hear(rank, "summed")
    port = shown.reducer_port
    jobs = json.loads(get(port, "/job.json")[1])["jobs"]
    assert len(jobs) == 2
    worlds = []
    for job in jobs:
        # Again, and by one client after the other: each is the job that was asked for.
        for _ in range(2):
            answer = json.loads(get(port, f"/job.json?job={job}")[1])
            assert answer["job"] == job and answer["jobs"] == jobs
        worlds.append(answer["world"])
    assert sorted(worlds) == [2, RANKS]
    [own] = {
        labels["id"] for name, labels in ((name, dict(labels)) for name, labels in metrics(shown.ports[0])) if "id" in labels
    }
    assert json.loads(get(shown.ports[0], f"/job.json?job={own}")[1])["world"] == RANKS
    for wrong in ("00000000000000ff", "no-number"):
        assert get(port, f"/job.json?job={wrong}")[0] == get(shown.ports[0], f"/job.json?job={wrong}")[0] == 404
    (shown.folder / "goes_on").touch()
    (shown.folder / "ends").touch()
    for rank in (*shown.ranks, *more):
        shown.hear(rank, "done")
        assert rank.wait() == 0
    # A reducer keeps a job without connections for two seconds.
    deadline = time.monotonic() + 60
    while get(port, f"/job.json?job={jobs[0]}")[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def check_figures(shown: Shown) -> None:
    """While nothing runs the figures are exact."""
    sent = SUMS * COUNT * 4
    for rank, port in enumerate(shown.ports):
        samples = metrics(port)
        assert value(samples, "herringbone_operations_total", collective="all_reduce", algorithm="reduction_server") == SUMS
        kind = {"collective": "all_reduce", "algorithm": "reduction_server"}
        assert value(samples, "herringbone_operation_seconds_count", **kind) == SUMS
        assert 0 < value(samples, "herringbone_operation_seconds_sum", **kind) < 60
        assert value(samples, "herringbone_operation_seconds_bucket", le="+Inf", **kind) == SUMS
        assert value(samples, "herringbone_faults_total", kind="lost") == 0
        assert value(samples, "herringbone_operations_failed_total") == 0
        for direction in ("sent", "received"):
            moved = {"transport": "tcp", "peers": "reducers", "direction": direction}
            assert value(samples, "herringbone_bytes_total", **moved) == sent
        assert value(samples, "herringbone_ranks") == RANKS
        assert value(samples, "herringbone_reducers") == 1
        assert value(samples, "herringbone_in_flight") == 0
        [labels] = [dict(labels) for name, labels in samples if name == "herringbone_job_info"]
        assert (labels["name"], labels["rank"]) == ("shown-7", str(rank))
    served = metrics(shown.reducer_port)
    assert value(served, "herringbone_reducer_jobs") == 1
    for direction in ("sent", "received"):
        moved = {"transport": "tcp", "peers": "workers", "direction": direction}
        assert value(served, "herringbone_bytes_total", **moved) == RANKS * sent
    text = get(shown.ports[0], "/metrics", Accept="application/openmetrics-text")[1]
    assert text.endswith("# EOF\n")


def check_page_and_health(shown: Shown) -> None:
    for port in (*shown.ports, shown.reducer_port):
        assert get(port, "/healthz", None) == (200, "ok\n")
        assert get(port, "/readyz", None)[0] == 200
        assert "<title>Herringbone</title>" in get(port, "/", None)[1]
        job = json.loads(get(port, "/job.json")[1])
        roles = [member["role"] for member in job["members"]]
        assert roles == ["worker"] * RANKS + ["reducer"], roles
        assert abs(job["asked_at"] - time.time()) < 30
        assert job["own"] in [member["address"] for member in job["members"]]
        assert all(member["answers"] for member in job["members"]), job


def check_strangers(shown: Shown) -> None:
    """Who is not let in gets an answer that says why, and the job goes on."""
    port = shown.ports[0]
    for path in ("/metrics", "/job.json"):
        for token in (None, "", "wrong", SECRET, ADMIN + "x"):
            status, text = get(port, path, token)
            assert (status, "HERRINGBONE_ADMIN_TOKEN" in text) == (401, True)
    assert get(port, "/", None, Host="evil.example")[0] == 421
    assert get(port, "/nothing")[0] == 404
    for request, status in [
        (b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 100_000, 431),
    ]:
        assert raw(port, request).startswith(f"HTTP/1.1 {status} ".encode()), request[:20]
    assert raw(port, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").endswith(b"\r\n\r\n")
    assert raw(port, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nok\n")
    absolute = f"GET http://localhost:{port}/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(port, absolute.encode()).endswith(b"\r\n\r\nok\n")
    stranger = b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert raw(port, stranger).startswith(b"HTTP/1.1 421 ")
    # A hundred that send half of a request: only the last of them keep their places, and keep no scraper out.
    clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(100)]
    for client in clients:
        client.sendall(b"GET /healthz HTT")
    for _ in range(20):
        assert get(port, "/healthz", None) == (200, "ok\n")
        assert get(port, "/metrics")[0] == 200
    refused = [client.recv(65536).split(b"\r\n")[0] for client in clients[:80]]
    assert set(refused) == {b"HTTP/1.1 503 Service Unavailable"}, set(refused)
    for client in clients:
        client.close()


def check_stopped(shown: Shown) -> None:
    """A rank is stopped: the others and the reducer still show the job, and whom it waits for."""
    stopped = 1
    shown.ranks[stopped].send_signal(signal.SIGSTOP)
    try:
        for port in (shown.ports[0], shown.ports[2], shown.reducer_port):
            deadline = time.monotonic() + 10
            while True:
                began = time.monotonic()
                job = json.loads(get(port, "/job.json")[1])
                assert time.monotonic() - began < 3
                answers = [member["answers"] for member in job["members"]]
                late = [wait["for"] for wait in job["waits"] if wait["why"] == "it does not answer"]
                if answers == [True, False, True, True] and late == [f"rank {stopped}"]:
                    break
                assert time.monotonic() < deadline, job
            assert get(port, "/metrics")[0] == 200
        history = job["history"]
        assert any(max(member["sent"]) > 0 for member in history.values()), history
    finally:
        shown.ranks[stopped].send_signal(signal.SIGCONT)


def test_a_program_of_rabit_shows_itself(group: Group) -> None:
    code = "import time, numpy as np; from herringbone import rabit; rabit.init(); rabit.allreduce(np.ones(3), rabit.SUM); time.sleep(60)"
    place = {"HERRINGBONE_RANK": "0", "HERRINGBONE_WORLD_SIZE": "1", "HERRINGBONE_STORE": f"127.0.0.1:{free_port()}"}
    group.start("-c", code, HERRINGBONE_ADMIN="127.0.0.1:0", HERRINGBONE_JOB="shown-8", **place)
    said = re.search(r"http://127\.0\.0\.1:(\d+)/", next(line for line in group.processes[0].stdout if "live page" in line))
    assert said is not None
    assert 'name="shown-8"' in get(int(said[1]), "/metrics")[1]
