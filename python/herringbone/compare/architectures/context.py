"""The interface between a rank and the module that trains under an architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Context", "Moved", "Stepping", "Trainer"]


@dataclass(frozen=True)
class Context:
    """A rank's part of a training."""

    rank: int
    workers: int
    argument: int
    """The number behind the architecture's name."""
    name: str
    """The architecture's name."""
    learning_rate: float
    momentum: float
    steps: int
    """The approximate number of steps."""
    seed: int
    servers: list[str]
    """Addresses of the table servers, if the architecture has some."""
    loss_of: Callable[..., Any]
    """The mean loss, a tensor, of ``model`` at a step, of part ``part`` of ``parts``: ``loss_of(model, step, part, parts)``."""


@dataclass
class Moved:
    """Payload that a worker has sent and received so far, in bytes."""

    sent: int = 0
    received: int = 0


@dataclass
class Trainer:
    """The result of ``make``: one worker's training under an architecture. This base class moves nothing."""

    model: Any
    context: Context
    moved: Moved = field(default_factory=Moved)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """For an architecture with stale gradients: for each step, when this worker got its parameters and when its update was
    accepted.

    Both are seconds of the monotonic clock, which all processes of a machine share.
    """

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """Makes step ``number``, counted from 0, and returns this worker's loss; a slow worker sleeps in ``pause()``."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits until all workers have ended their last step, and loads the resulting parameters into the model."""

    def close(self) -> None:
        """Leaves the servers, if there are some."""


class Stepping(Trainer):
    """Computes a gradient of this worker's samples, pauses, and moves all data in the optimizer's step."""

    optimizer: Any
    """An optimizer of torch, which a subclass makes."""

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """The pause is between computing and :meth:`update`."""
        self.optimizer.zero_grad()
        loss = self.context.loss_of(self.model, number, self.context.rank, self.context.workers)
        loss.backward()
        pause()
        self.update()
        return float(loss.item())

    def update(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
