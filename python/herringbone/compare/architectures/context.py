"""What a rank tells the module that trains under an architecture, and what that gives it."""

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
    """The architecture's."""
    learning_rate: float
    momentum: float
    steps: int
    """About how many steps there will be."""
    seed: int
    servers: list[str]
    """Addresses of the servers of tables, if the architecture has some."""
    loss_of: Callable[..., Any]
    """The mean loss, a tensor, of ``model`` at a step, of part ``part`` of ``parts``: ``loss_of(model, step, part, parts)``."""


@dataclass
class Moved:
    """Payload that a worker has sent and received so far, in bytes."""

    sent: int = 0
    received: int = 0


@dataclass
class Trainer:
    """What ``make`` returns: one worker's training under an architecture. This class moves nothing: a base for others."""

    model: Any
    context: Context
    moved: Moved = field(default_factory=Moved)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """Of an architecture with stale gradients: for each step when this worker had its parameters and when its update was taken.

    Both are seconds of the monotonic clock, which all processes of a machine share.
    """

    def step(self, number: int, pause: Callable[[], None]) -> float:
        """Makes step ``number``, counted from 0, and returns this worker's loss; ``pause()`` is where a slow worker sleeps."""
        raise NotImplementedError

    def finish(self) -> None:
        """Waits until all workers have ended their last step, and puts the parameters of the result into the model."""

    def close(self) -> None:
        """Leaves the servers, if there are some."""


class Stepping(Trainer):
    """A gradient of this worker's samples, a pause, and then all that moves is in the optimizer's step."""

    optimizer: Any
    """As torch has it; a subclass makes it."""

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
