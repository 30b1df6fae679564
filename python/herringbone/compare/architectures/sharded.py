"""Shards: gradients of a fixed number of shards, summed in one order on any number of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...torch.shards import Shards
from .context import Context, Trainer
from .summed import optimizer_of

__all__ = ["make"]


class Sharded(Trainer):
    """Each shard has its part of the samples of a step."""

    def __init__(self, model: torch.nn.Module, context: Context) -> None:
        super().__init__(model, context)
        self._shards = Shards(context.argument or context.workers, seed=context.seed)
        self._steps = self._shards.steps(model, optimizer_of(model, context))

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """Computes this worker's shards, and returns their mean loss, or NaN if it carries none."""
        pause()
        step, losses = next(self._steps), []
        for shard in step:
            loss = self.context.loss_of(self.model, number, shard.number, self._shards.shards)
            loss.backward()
            losses.append(float(loss.item()))
        step.apply()
        return sum(losses) / len(losses) if losses else float("nan")

    def close(self) -> None:
        """Ends the steps."""
        self._steps.close()
        self._shards.close()


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Sharded(model, context)
