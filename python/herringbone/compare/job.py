"""One architecture's processes: workers, and reducers or table servers. All end with the job, even if it is killed."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from .architectures import Choice
from .namespaces import Namespaces
from .options import Options

__all__ = ["Job", "JobFailed", "prepare"]

END_SECONDS = 10
"""The timeout for processes that were asked to end."""
AGREE_SECONDS = 1.0
"""How long errors are collected after the first one: most of them only follow from the real one."""
SILENT_SECONDS = 180
"""A training has failed if no worker reports anything for this time."""
LOOK_SECONDS = 0.5
FORKING = multiprocessing.get_context("forkserver")
PRELOADED = ("herringbone.compare.mortal", "herringbone.compare.worker", "herringbone.torch", "torch._dynamo")
"""Modules that the server of workers imports for all of them. DistributedDataParallel imports ``torch._dynamo``, which takes
seconds."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class JobFailed(Exception):
    """A training cannot continue; the text gives the reason, in one line."""


def prepare() -> None:
    """Let the server of workers import torch, and remove other jobs' settings from the environment. Call it once, first."""
    for name in [name for name in os.environ if re.match(r"(HERRINGBONE|MASTER)_|(LOCAL_|GROUP_|)RANK$|WORLD_SIZE$", name)]:
        del os.environ[name]
    os.environ.update(dict.fromkeys(THREADS, "1"), TORCH_CPP_LOG_LEVEL="ERROR")
    # Modules that are not installed are left out.
    FORKING.set_forkserver_preload(list(PRELOADED))


class Server:
    """A running ``herringbone serve``."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address

    def cpu_seconds(self) -> float:
        """The processor time that it has used; 0 after its end."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Job:
    """A training under one architecture. With ``hosts`` workers are on the first ones, and servers on the next ones."""

    def __init__(self, options: Options, choice: Choice, hosts: Namespaces | None, folder: Path) -> None:
        self.options, self.choice, self.hosts, self.folder = options, choice, hosts, folder
        self._servers: list[Server] = []
        self._workers: list[Any] = []
        self._from: list[Connection] = []
        self._token = secrets.token_hex(16)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(END_SECONDS)
            worker.close()
        for server in self._servers:
            server.process.terminate()
        for server in self._servers:
            try:
                server.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
            if server.process.stdout is not None:
                server.process.stdout.close()
        for connection in self._from:
            connection.close()

    def run(self, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Train; ``report`` is called for steps. Returns each worker's figures, and the processor seconds of the servers.

        Raises:
            JobFailed: a worker or a server ended, or the training makes no progress.
        """
        self.folder.mkdir()
        if self.choice.architecture.helpers:
            for index in range(self.options.servers):
                self._serve(index)
        description = self._description()
        for rank in range(self.options.workers):
            receiver, sender = FORKING.Pipe(duplex=False)
            # The forking server imports the module: this process has no torch.
            worker = FORKING.Process(target=_work, args=(json.dumps(description), rank, sender), daemon=True)
            worker.start()
            sender.close()
            self._workers.append(worker)
            self._from.append(receiver)
        return self._heard(report)

    def _serve(self, index: int) -> None:
        """Start a server on its host, and wait until it listens."""
        host = self.options.workers + index
        tables = ["--tables"] if self.choice.architecture.helpers == "tables" else []
        at = self.hosts.address(host) if self.hosts else "127.0.0.1"
        words = [
            sys.executable,
            "-m",
            "herringbone.compare.mortal",
            str(os.getpid()),
            "serve",
            "--listen",
            f"{at}:0",
            "--json",
            *tables,
        ]
        output = self.folder / f"server{index}.txt"
        with output.open("w") as errors:
            process = subprocess.Popen(
                self.hosts.command(host, words) if self.hosts else words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"HERRINGBONE_TOKEN": self._token},
                text=True,
                start_new_session=True,
            )
        server = Server(process, "")
        self._servers.append(server)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise JobFailed(f"server {index} did not start: {_last_words(output)}")
        server.address = json.loads(line)["listening"]

    def _description(self) -> dict[str, Any]:
        """All settings for a worker, for JSON."""
        options, architecture = self.options, self.choice.architecture
        addresses = [server.address for server in self._servers]
        environment = {"HERRINGBONE_TOKEN": self._token, "HERRINGBONE_FLIGHT": "off"}
        if architecture.helpers == "reducers":
            # If all processes share a host, a plan would not use reducers.
            environment |= {"HERRINGBONE_REDUCERS": ",".join(addresses), "HERRINGBONE_ALGORITHM": "reduction_server"}
        if self.hosts:
            environment |= {"HERRINGBONE_IFNAME": self.hosts.interface}
        return {
            "name": architecture.name,
            "module": architecture.module,
            "argument": self.choice.argument,
            "in_step": architecture.in_step,
            "model": options.model,
            "workers": options.workers,
            "steps": options.steps,
            "seconds": options.seconds,
            "seed": options.seed,
            "slow": asdict(options.slow) if options.slow else None,
            "addresses": addresses,
            "environment": environment,
            "hosts": self.hosts.hosts[: options.workers] if self.hosts else [],
            "meeting": str(self.folder / "meeting"),
            "outputs": [str(self._output(rank)) for rank in range(options.workers)],
        }

    def _output(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.txt"

    def _heard(self, report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Read the workers' reports until all have ended."""
        results: dict[int, dict[str, Any]] = {}
        began, cpu = time.monotonic(), 0.0
        while len(results) < len(self._workers):
            open_ones = {self._from[rank]: rank for rank in range(len(self._workers)) if rank not in results}
            ready = wait(list(open_ones), LOOK_SECONDS)
            if ready:
                began = time.monotonic()
            elif time.monotonic() - began > SILENT_SECONDS:
                raise JobFailed(f"no worker has reported anything for {SILENT_SECONDS} s")
            self._check_servers()
            for connection in ready:
                rank = open_ones[connection]  # type: ignore[index]
                said = self._said(rank)
                if said is None or "error" in said:
                    raise JobFailed(self._reason(rank, said))
                if "result" in said:
                    results[rank] = said["result"]
                elif rank == 0:
                    if said["step"] == 0:
                        cpu = self._servers_cpu()
                    report(said)
        used = self._servers_cpu() - cpu
        for rank, worker in enumerate(self._workers):
            worker.join(END_SECONDS)
            if worker.exitcode != 0:
                raise JobFailed(f"{_ended(rank, worker.exitcode)}: {_last_words(self._output(rank))}")
        return {"workers": [results[rank] for rank in sorted(results)], "servers_cpu": max(0.0, used)}

    def _servers_cpu(self) -> float:
        return sum(server.cpu_seconds() for server in self._servers)

    def _check_servers(self) -> None:
        for index, server in enumerate(self._servers):
            if server.process.poll() is not None:
                said = _last_words(self.folder / f"server{index}.txt")
                raise JobFailed(f"server {index} at {server.address} {_how(server.process.returncode)}: {said}")

    def _said(self, rank: int) -> dict[str, Any] | None:
        """The next report of a worker; None if it has ended."""
        try:
            said: dict[str, Any] = json.loads(self._from[rank].recv_bytes())
        except (EOFError, OSError):
            return None
        return said

    def _reason(self, rank: int, said: dict[str, Any] | None) -> str:
        """The worker that failed first, and why: a killed worker comes before workers that miss it, an earlier error before
        later ones."""
        errors = {rank: said} if said else {}
        deadline = time.monotonic() + AGREE_SECONDS
        while time.monotonic() < deadline:
            killed = [other for other, worker in enumerate(self._workers) if (worker.exitcode or 0) < 0]
            if killed:
                return _ended(killed[0], self._workers[killed[0]].exitcode)
            for other, connection in enumerate(self._from):
                if connection.poll() and (heard := self._said(other)) and "error" in heard:
                    errors[other] = heard
            time.sleep(LOOK_SECONDS / 10)
        if errors:
            first = min(errors, key=lambda other: float(errors[other]["at"]))
            return f"worker {first}: {errors[first]['error']}"
        return f"{_ended(rank, self._workers[rank].exitcode)}: {_last_words(self._output(rank))}"


def _work(description: str, rank: int, tell: Connection) -> None:
    """The entry point of a worker's process."""
    from .worker import work

    work(json.loads(description), rank, tell)


def _ended(rank: int, status: int | None) -> str:
    return f"worker {rank} {_how(status)}"


def _how(status: int | None) -> str:
    if status is None:
        return "does not end"
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _last_words(output: Path) -> str:
    """The last line that a process has written."""
    lines = output.read_text(errors="replace").split("\n") if output.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it has written nothing")
