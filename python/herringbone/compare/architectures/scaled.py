"""Asynchronous updates on servers that count less the staler they are: AsyncSGD of :mod:`herringbone.optim`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from ... import optim
from ...tables import ParameterServer
from .context import Context, Trainer
from .summed import optimizer_of

__all__ = ["make"]


class Scaled(Trainer):
    """Pushes and pulls in the optimizer's step. What it moves is counted as values, without keys and frames."""

    def __init__(self, model: Any, context: Context) -> None:
        super().__init__(model, context)
        self._servers = ParameterServer(context.servers, rank=context.rank, workers=context.workers)
        self._optimizer: Any = optim.AsyncSGD(optimizer_of(model, context), self._servers, staleness="scale")
        self._bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._pulled = time.monotonic()

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """The pause is between computing and pushing."""
        self._optimizer.zero_grad()
        loss = self.context.loss_of(self.model, number, self.context.rank, self.context.workers)
        loss.backward()
        pause()
        # The step pushes first. It says no moment between its push and its pull.
        pushed = time.monotonic()
        self._optimizer.step()
        self.spans.append((self._pulled, pushed))
        self._pulled = time.monotonic()
        self.moved.sent += self._bytes
        self.moved.received += self._bytes
        return float(loss.item())

    def finish(self) -> None:
        """Each worker keeps the parameters of its last pull."""
        dist.barrier()

    def close(self) -> None:
        """Leaves the servers."""
        self._optimizer.close()
        self._servers.close()


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Scaled(model, context)
