"""A parameter server: parameters are rows of a table, which workers pull, and to which they push gradients.

The table's consistency is the architecture: sync, bounded or async. The servers run the optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...tables import ParameterServer, Table
from .context import Context, Trainer

__all__ = ["make"]

WIDTH = 1024
"""Elements of a row."""
NAME = "parameters"


class Served(Trainer):
    """Pull, compute, push. What it moves is counted as values, without keys and frames."""

    def __init__(self, model: torch.nn.Module, context: Context) -> None:
        super().__init__(model, context)
        self._parameters = list(model.parameters())
        self._elements = sum(parameter.numel() for parameter in self._parameters)
        self._rows = -(-self._elements // WIDTH)
        self._values = torch.zeros(self._rows, WIDTH)
        self._servers = ParameterServer(context.servers, rank=context.rank, workers=context.workers)
        self._table = self._opened()
        self._give_first_values()

    def _opened(self) -> Table:
        consistency = {"parameter-server": "sync", "async": "async"}.get(self.context.name, self.context.argument)
        # The mean of gradients changes the parameters, whether they are pushed together or one after the other.
        numbers = {"learning_rate": self.context.learning_rate, "momentum": self.context.momentum}
        numbers["rescale_grad"] = 1 / self.context.workers
        return self._servers.table(NAME, rows=self._rows, width=WIDTH, optimizer="sgd", numbers=numbers, consistency=consistency)

    def _give_first_values(self) -> None:
        """Rank 0 gives the rows their values; this is a step of all workers."""
        is_first = self.context.rank == 0
        if is_first:
            self._table.tune(assigns=1)
        dist.barrier()
        if is_first:
            self._gather(parameter.detach() for parameter in self._parameters)
            self._table.push_range(0, self._values)
        else:
            self._table.end_step()
        dist.barrier()
        if is_first:
            self._table.pull_range(0, self._rows, self._values)  # The push has taken effect.
            self._table.tune(assigns=0)
        dist.barrier()

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """The pause is between computing and pushing."""
        self._pull()
        pulled = time.monotonic()
        self.model.zero_grad()
        loss = self.context.loss_of(self.model, number, self.context.rank, self.context.workers)
        loss.backward()
        pause()
        self._gather(_gradient(parameter) for parameter in self._parameters)
        self._table.push_range(0, self._values)
        self.moved.sent += self._values.nbytes
        if self.context.name != "parameter-server":
            self.spans.append((pulled, time.monotonic()))
        return float(loss.item())

    def finish(self) -> None:
        """Leaves, so that no worker waits for one that has ended; then reads the final parameters."""
        self._table.close()
        dist.barrier()
        self._table = self._opened()
        self._pull()
        dist.barrier()

    def close(self) -> None:
        """Leaves the servers."""
        self._servers.close()

    def _pull(self) -> None:
        """Puts the rows into the model."""
        self._table.pull_range(0, self._rows, self._values)
        self.moved.received += self._values.nbytes
        place, flat = 0, self._values.view(-1)
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(flat[place : place + parameter.numel()].view_as(parameter))
                place += parameter.numel()

    def _gather(self, tensors: Any) -> None:
        """Copies tensors into the rows, one after the other."""
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=self._values.view(-1)[: self._elements])


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Served(model, context)
