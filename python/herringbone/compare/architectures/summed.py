"""Sums of all gradients in each step, by DistributedDataParallel: with reducers if the job has some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from .context import Context, Trainer

__all__ = ["make", "optimizer_of"]


def optimizer_of(model: torch.nn.Module, context: Context) -> torch.optim.Optimizer:
    """SGD with momentum, the optimizer of all architectures, because both torch and the table servers have it."""
    return torch.optim.SGD(model.parameters(), lr=context.learning_rate, momentum=context.momentum)


class Summed(Trainer):
    """DDP over the default group."""

    def __init__(self, model: torch.nn.Module, context: Context) -> None:
        super().__init__(model, context)
        self._parallel = DistributedDataParallel(model)
        self._optimizer = optimizer_of(model, context)

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """Sleeps first, because sums begin within the backward pass."""
        pause()
        self._optimizer.zero_grad()
        loss = self.context.loss_of(self._parallel, number, self.context.rank, self.context.workers)
        loss.backward()
        self._optimizer.step()
        return float(loss.item())


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Summed(model, context)
