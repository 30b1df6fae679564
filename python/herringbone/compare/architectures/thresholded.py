"""Large elements of updates only, from each worker to all others: ThresholdSGD of :mod:`herringbone.optim`."""

from __future__ import annotations

from typing import Any

from ... import optim
from .context import Context, Stepping, Trainer

__all__ = ["make"]

SHARE = 0.005
"""The fraction of a tensor's elements that a worker sends in a step."""
STALENESS = 4
"""How many steps, at most, a worker is ahead of another one."""


class Thresholded(Stepping):
    """Each worker has a whole model, and all workers' updates keep the models similar. A step exchanges updates without waiting
    for all others."""

    def __init__(self, model: Any, context: Context) -> None:
        super().__init__(model, context)
        self.optimizer = optim.ThresholdSGD(
            model.parameters(), context.learning_rate, momentum=context.momentum, share=SHARE, staleness=STALENESS
        )

    def finish(self) -> None:
        """Applies the others' last updates."""
        self.optimizer.finish()


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Thresholded(model, context)
