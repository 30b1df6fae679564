"""Periodic averages of parameters: LocalSGD, PostLocalSGD and DiLoCo of :mod:`herringbone.optim`."""

from __future__ import annotations

from typing import Any

from ... import optim
from .context import Context, Stepping, Trainer
from .summed import optimizer_of

__all__ = ["make"]

WARM_UP = 0.25
"""The fraction of all steps in which post-local-sgd averages gradients."""


class Averaged(Stepping):
    """Each worker trains by itself, and the optimizer notifies the averaging of each step."""

    def __init__(self, model: Any, context: Context) -> None:
        super().__init__(model, context)
        self.optimizer = optimizer_of(model, context)
        self._made = 0
        self._averaging = self._begun()

    def _begun(self) -> Any:
        every = self.context.argument
        if self.context.name == "diloco":
            return optim.DiLoCo(self.model, self.optimizer, sync_every=every)
        if self.context.name == "post-local-sgd":
            return optim.PostLocalSGD(self.model, self.optimizer, every, int(WARM_UP * self.context.steps))
        return optim.LocalSGD(self.model, self.optimizer, sync_every=every)

    def update(self) -> None:
        """The optimizer's step averages, if it is the last one of a round."""
        super().update()
        self._made += 1

    def finish(self) -> None:
        """Averages once more if the training ends within a round."""
        # A round of diloco without a step would follow only its momentum.
        if self.context.name != "diloco" or self._made % self.context.argument:
            self._averaging.sync()

    def close(self) -> None:
        """Ends the averaging."""
        self._averaging.close()


def make(model: Any, context: Context) -> Trainer:
    """A worker's training."""
    return Averaged(model, context)
