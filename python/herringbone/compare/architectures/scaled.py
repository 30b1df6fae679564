"""Asynchronous updates on servers, with less weight for staler gradients: AsyncSGD of :mod:`herringbone.optim`."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

from ... import optim
from ...tables import ParameterServer
from .context import Context, Stepping, Trainer
from .summed import optimizer_of

__all__ = ["make"]


class Scaled(Stepping):
    """Pushes and pulls in the optimizer's step. What it moves is counted as values, without keys and frames."""

    def __init__(self, model: Any, context: Context) -> None:
        super().__init__(model, context)
        self._servers = ParameterServer(context.servers, rank=context.rank, workers=context.workers)
        self.optimizer = optim.AsyncSGD(optimizer_of(model, context), self._servers, staleness="scale")
        self._bytes = sum(parameter.nbytes for parameter in model.parameters())
        self._pulled = time.monotonic()

    def update(self) -> None:
        """The step pushes first. It does not report the time between its push and its pull."""
        pushed = time.monotonic()
        super().update()
        self.spans.append((self._pulled, pushed))
        self._pulled = time.monotonic()
        self.moved.sent += self._bytes
        self.moved.received += self._bytes

    def finish(self) -> None:
        """Each worker keeps the parameters of its last pull."""
        dist.barrier()

    def close(self) -> None:
        """Leaves the servers."""
        self.optimizer.close()
        self._servers.close()


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Scaled(model, context)
