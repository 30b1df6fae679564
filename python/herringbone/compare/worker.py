"""A worker's process: it trains under one architecture, and reports to its parent.

A server that has imported this module forks the workers, so torch is imported once.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from .architectures.context import Context, Moved, Trainer
from .namespaces import end_with_parent, enter
from .options import Slow
from .slowness import Slowness, next_look
from .workloads import Workload, workload

__all__ = ["work"]

MEASURED = 7
"""Steps that measure how long a worker computes; libraries warm up in the first ones."""
REPORT_SECONDS = 0.1


def work(job: Mapping[str, Any], rank: int, tell: Connection) -> None:
    """Run a worker's process. It writes JSON into ``tell``: ``step``, then ``result``, or ``error`` with a text and its
    moment.

    ``job`` comes from :mod:`herringbone.compare.job`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    output = os.open(job["outputs"][rank], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(job["environment"])
    try:
        if job["hosts"]:
            enter(job["hosts"][rank])
        # The system forgets this for a process that enters another user namespace.
        end_with_parent()
        first = multiprocessing.parent_process()
        if first is None or not first.is_alive():
            sys.exit("the process that started this one has ended")
        result = trained(job, rank, lambda **said: tell.send_bytes(json.dumps(said).encode()))
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        with contextlib.suppress(OSError):
            tell.send_bytes(json.dumps({"error": text, "at": time.monotonic()}).encode())
        raise
    tell.send_bytes(json.dumps({"result": result}).encode())
    sys.stdout.flush()


def trained(job: Mapping[str, Any], rank: int, say: Callable[..., None]) -> dict[str, Any]:
    """Train to the end, and return what was measured."""
    workers = job["workers"]
    torch.set_num_threads(1)
    dist.init_process_group("herringbone", init_method=f"file://{job['meeting']}", rank=rank, world_size=workers)
    task = workload(job["model"], job["seed"])
    model = task.model()
    total = task.batch * workers
    computing = computing_seconds(task, model, rank, workers)
    context = Context(
        rank=rank,
        workers=workers,
        argument=job["argument"],
        name=job["name"],
        learning_rate=task.learning_rate,
        momentum=task.momentum,
        steps=job["steps"],
        seed=job["seed"],
        servers=job["addresses"],
        loss_of=lambda model, step, part, parts: task.loss_of(model, step, part, parts, total),
    )
    module = importlib.import_module(f".architectures.{job['module']}", __package__)
    trainer: Trainer = module.make(model, context)
    slow = Slow(**job["slow"]) if job["slow"] else None
    recording = Recording(trainer, Slowness(slow, rank, workers, job["seed"]), computing, say)
    dist.barrier()
    recording.run(job["steps"], job["seconds"], job["in_step"])
    # No barrier yet: another worker can wait for a step of this one until this one leaves.
    trainer.finish()
    accuracy = task.accuracy(trainer.model)
    result = recording.result() | {"accuracy": accuracy, "spans": trainer.spans, "about": task.about}
    result["parameter_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
    dist.barrier()
    trainer.close()
    dist.destroy_process_group()
    return result


def computing_seconds(task: Workload, model: torch.nn.Module, rank: int, workers: int) -> float:
    """The time of a forward and a backward pass of this worker, while all others do the same."""
    model, times = copy.deepcopy(model), []
    dist.barrier()
    for step in range(MEASURED):
        began = time.monotonic()
        loss: Any = task.loss_of(model, step, rank, workers, task.batch * workers)
        loss.backward()
        times.append(time.monotonic() - began)
    return statistics.median(times[2:])


class Recording:
    """Records a training's steps: the time of each end, the loss, and the bytes moved so far."""

    def __init__(self, trainer: Trainer, slowness: Slowness, computing: float, say: Callable[..., None]) -> None:
        self._trainer, self._slowness, self._computing, self._say = trainer, slowness, computing, say
        self._figures: dict[str, list[float]] = {"seconds": [], "losses": [], "sent": [], "received": [], "slept": []}
        self._began = self._cpu = self._said = 0.0
        self._before = Moved()

    def run(self, steps: int, seconds: float | None, in_step: bool) -> None:
        """Make ``steps`` steps, or as many as fit into ``seconds``."""
        self._say(step=0, seconds=0.0)
        self._before, self._cpu, self._began = moved(self._trainer), time.process_time(), time.monotonic()
        if seconds is None:
            for _ in range(steps):
                self._step()
        elif in_step:
            while count := next_look(self._made, _latest(self._elapsed), seconds):
                for _ in range(count):
                    self._step()
        else:
            while self._made == 0 or self._elapsed < seconds:
                self._step()
        self._cpu = time.process_time() - self._cpu
        self._say(step=self._made, seconds=self._elapsed)

    @property
    def _made(self) -> int:
        return len(self._figures["losses"])

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _step(self) -> None:
        number, slept = self._made, self._slowness.sleep(self._made, self._computing)
        loss = self._trainer.step(number, lambda: time.sleep(slept))
        now, elapsed = moved(self._trainer), self._elapsed
        row = {"seconds": elapsed, "losses": loss, "slept": slept}
        row |= {"sent": now.sent - self._before.sent, "received": now.received - self._before.received}
        for name, value in row.items():
            self._figures[name].append(value)
        if elapsed - self._said > REPORT_SECONDS:
            self._said = elapsed
            self._say(step=self._made, seconds=elapsed, loss=loss)

    def result(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {**self._figures, "computing": self._computing, "cpu": self._cpu, "began": self._began}


def moved(trainer: Trainer) -> Moved:
    """The bytes of a worker: collectives' bytes, and bytes that the trainer counts itself."""
    group: Any = dist.group.WORLD
    ways = [way for way in group.stats().values() if isinstance(way, dict) and "sent" in way]
    own = trainer.moved
    return Moved(own.sent + sum(way["sent"] for way in ways), own.received + sum(way["received"] for way in ways))


def _latest(elapsed: float) -> float:
    """The largest number of all workers."""
    number = torch.tensor([elapsed], dtype=torch.float64)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return float(number.item())
