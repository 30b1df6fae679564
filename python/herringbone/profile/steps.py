"""Turns the times of a training into its steps, their parts, and medians. Pure: each call passes the time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .document import Measured

__all__ = ["Pass", "Recorder", "Step", "measured", "ready"]


@dataclass
class Pass:
    """A backward pass, and the forward before it, in seconds."""

    forward: float = 0.0
    backward: float = 0.0
    """From its beginning to its last gradient, or to its end if no gradient came."""
    tail: float = 0.0
    """From its last gradient to its end."""
    ready: dict[int, float] = field(default_factory=dict)
    """The times at which gradients were ready, from its beginning, by the indices of parameters."""

    @property
    def seconds(self) -> float:
        """The total time."""
        return self.forward + self.backward + self.tail


@dataclass
class Step:
    """From the end of an optimizer's step to the end of the next one, in seconds."""

    began: float
    ended: float = 0.0
    optimizer: float = 0.0
    passes: list[Pass] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The total time."""
        return self.ended - self.began

    @property
    def accumulation(self) -> float:
        """Passes before the last one."""
        return sum(each.seconds for each in self.passes[:-1])

    @property
    def other(self) -> float:
        """Everything except passes and optimizers' steps."""
        return self.seconds - self.optimizer - sum(each.seconds for each in self.passes)

    def ready(self) -> dict[int, float]:
        """The times at which gradients were ready, from the beginning of the last pass; 0 if an earlier pass computed them."""
        earlier = {index: 0.0 for each in self.passes[:-1] for index in each.ready}
        return earlier | self.passes[-1].ready


class Recorder:
    """Builds steps from times, which are seconds of one clock.

    A step is over when the model's forward begins again after an optimizer's step, so steps of several optimizers belong to one
    step. Forward and backward passes within an optimizer's step, in its closure, are not included in the optimizer's time.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        """The completed steps that had a backward pass."""
        self._step: Step | None = None
        self._pass = Pass()
        self._forward: float | None = None
        self._backward: float | None = None
        self._optimizer: float | None = None
        self._within = 0.0
        self._last = 0.0
        self._depth = 0

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass is running."""
        return self._backward is not None

    def step_begins(self, now: float) -> None:
        """Called when the first step begins."""
        self._step = Step(now, now)

    def forward_begins(self, now: float) -> bool:
        """Called when the model's forward begins; returns whether a step is over."""
        if self._step is None or self._backward is not None:
            return False
        over = self._close()
        if self._forward is None:
            self._forward = now
        return over

    def finish(self) -> None:
        """Called when the training is over; this also ends the last step, if an optimizer has stepped in it."""
        self._close()
        self._step = None

    def _close(self) -> bool:
        """End the step if an optimizer has stepped in it; returns whether one has."""
        if self._step is None or self._step.ended <= self._step.began:
            return False
        if self._step.passes:
            self.steps.append(self._step)
        self._step = Step(self._step.ended, self._step.ended)
        return True

    def forward_ends(self, now: float) -> None:
        """Called when the model's forward is over."""
        if self._forward is not None:
            self._pass.forward += now - self._forward
            if self._optimizer is not None:
                self._within += now - self._forward
            self._forward = None

    def backward_begins(self, now: float) -> None:
        """Called when a backward pass begins, possibly within another one."""
        self._depth += 1
        if self._depth == 1:
            self._backward = self._last = now

    def gradient_ready(self, index: int, now: float) -> None:
        """Called when the gradient of a parameter is ready."""
        if self._backward is not None:
            self._pass.ready[index] = now - self._backward
            self._last = now

    def backward_ends(self, now: float) -> None:
        """Called when a backward pass is over."""
        self._depth = max(0, self._depth - 1)
        if self._depth or self._backward is None:
            return
        if self._optimizer is not None:
            self._within += now - self._backward
        last = self._last if self._pass.ready else now
        self._pass.backward, self._pass.tail = last - self._backward, now - last
        if self._step is not None and self._pass.ready:
            self._step.passes.append(self._pass)
        self._pass, self._backward = Pass(), None

    def optimizer_begins(self, now: float) -> None:
        """Called when an optimizer's step begins."""
        self._optimizer, self._within = now, 0.0

    def optimizer_ends(self, now: float) -> None:
        """Called when an optimizer's step is over."""
        if self._optimizer is not None and self._step is not None:
            self._step.optimizer += now - self._optimizer - self._within
            self._step.ended = now
        self._optimizer = None


def measured(steps: Sequence[Step], warm_up: int, sums: bool) -> Measured:
    """Medians over at least one step; ``sums``: whether gradients were summed in the steps."""

    def middle(part: Callable[[Step], float]) -> float:
        return max(0.0, _rounded(statistics.median(part(step) for step in steps)))

    return Measured(
        steps=len(steps),
        warm_up=warm_up,
        passes=statistics.median_low(len(step.passes) for step in steps),
        step_seconds=middle(lambda step: step.seconds),
        accumulation_seconds=middle(lambda step: step.accumulation),
        forward_seconds=middle(lambda step: step.passes[-1].forward),
        backward_seconds=middle(lambda step: step.passes[-1].backward),
        tail_seconds=middle(lambda step: step.passes[-1].tail),
        optimizer_seconds=middle(lambda step: step.optimizer),
        other_seconds=middle(lambda step: step.other),
        sums=sums,
    )


def ready(steps: Sequence[Step]) -> dict[int, float]:
    """Medians over steps of the times at which gradients are ready, from the last backward pass's beginning, by parameters'
    indices."""
    moments: dict[int, list[float]] = {}
    for step in steps:
        for index, moment in step.ready().items():
            moments.setdefault(index, []).append(moment)
    return {index: _rounded(statistics.median(each)) for index, each in moments.items()}


def _rounded(seconds: float) -> float:
    """Seconds rounded to nanoseconds, the clock's resolution."""
    return round(seconds, 9)
