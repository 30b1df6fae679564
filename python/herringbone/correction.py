"""What is done to gradients before a codec codes them, so that coded training follows the plain one: pure rules, without peers.

Four rules, each off unless a program asks for it:

* **Momentum correction** and the **warm-up** of the share: Lin et al., "Deep Gradient Compression" (ICLR 2018). Momentum is summed up
  on each rank before elements are chosen, and the optimizer has none.
* **Momentum factor masking**, of section 3.2 of the same paper: the velocity of an element that was sent begins anew, so that late
  gradients do not go on to push an element that has moved.
* The **residual follows the learning rate**: a residual is of gradients, so if the rate falls, what it is owed falls, too. BytePS
  multiplies it by the old rate over the new one (``vanilla_error_feedback.cc``), and so does this.

Arrays are of numpy or torch, float32, of any shape; they are changed in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .arguments import factor, whole
from .errors import ArgumentError

__all__ = ["FIRST_SHARE", "Correction", "Rates", "corrected", "kind_of", "mask_sent", "share_at", "with_momentum"]

FIRST_SHARE = 0.25
"""The share that a warm-up begins with, as in Deep Gradient Compression."""
STAGES = 4
"""A warm-up of a codec changes the share so often: each share is a codec of its own, with plans of its own."""
RAMPED = ("topk", "randomk")
"""The codecs that have a share."""


def share_at(step: float, share: float, warmup_steps: int) -> float:
    """The share of elements that are sent in a step, which counts from 0: from 1/4 by equal factors to ``share`` during the warm-up."""
    if step >= warmup_steps or share >= FIRST_SHARE:
        return share
    return float(FIRST_SHARE * (share / FIRST_SHARE) ** (step / warmup_steps))


def with_momentum(velocity: Any, gradient: Any, momentum: float, nesterov: bool = False) -> Any:
    """Take a gradient into ``velocity``, and return what stands for the gradient: ``velocity`` itself, or with ``nesterov`` a new array.

    As ``torch.optim.SGD`` with ``momentum`` and no dampening: the velocity becomes ``momentum`` times itself plus the gradient.
    """
    velocity *= momentum
    velocity += gradient
    return gradient + momentum * velocity if nesterov else velocity


def mask_sent(velocity: Any, left: Any) -> None:
    """Have the velocity begin anew, in place, where nothing is left of an element: it was sent whole.

    ``left`` is the residual after the step, of as many elements. ``topk`` and ``randomk`` send an element whole or not at all.
    """
    velocity[left == 0] = 0


def kind_of(codec: str) -> str:
    """A codec's name without its parameter."""
    return codec.partition(":")[0].strip()


class Rates:
    """The learning rates of an optimizer's groups of parameters, from step to step."""

    def __init__(self, last: Sequence[float] = ()) -> None:
        """``last`` are those of a saved state."""
        self.last = [float(rate) for rate in last]

    def follow(self, call: str, rates: Sequence[float]) -> float:
        """By what residuals are multiplied before a step with these rates: the last rate over the one of now.

        A rate of 0 moves nothing, so it changes no residual: the last one above 0 stays the last.

        Raises:
            ArgumentError: the groups' rates change by different factors, and a bucket may have parameters of several groups.
        """
        now = [float(rate) for rate in rates]
        last = self.last if len(self.last) == len(now) else now
        ratios = [before / rate for before, rate in zip(last, now) if before > 0 and rate > 0]
        if any(not math.isclose(ratio, ratios[0], rel_tol=1e-6) for ratio in ratios):
            raise ArgumentError(
                f"{call}: the learning rates were {last} and are {now}, which are no common factor: residuals can follow one "
                "schedule; give all groups of parameters the same schedule, or leave out that residuals follow"
            )
        self.last = [rate if rate > 0 else before for before, rate in zip(last, now)]
        return ratios[0] if ratios else 1.0


@dataclass(frozen=True)
class Correction:
    """What is done before a codec."""

    momentum: float = 0.0
    nesterov: bool = False
    warmup_steps: int = 0
    masking: bool = False

    def codec_at(self, codec: str, step: int) -> str:
        """The codec of a step, which counts from 0: during the warm-up one with a larger share, in :data:`STAGES` stages."""
        if step >= self.warmup_steps:
            return codec
        share = float(codec.partition(":")[2])
        begin = self.warmup_steps * (step * STAGES // self.warmup_steps) / STAGES
        now = share_at(begin, share, self.warmup_steps)
        return codec if now == share else f"{kind_of(codec)}:{now:.6g}"


def corrected(
    call: str, codec: str, momentum: Any, nesterov: Any, warmup_steps: Any, masking: Any = False, feedback: bool = True
) -> Correction:
    """A correction for a codec, with or without error feedback, after a check of its numbers.

    Raises:
        TypeError, ArgumentError: a number makes no sense, or the codec has no share that a warm-up could change.
    """
    number = factor(call, "momentum", momentum)
    if not 0 <= number < 1:
        raise ArgumentError(f"{call}: momentum is {momentum!r}; pass a number from 0, below 1")
    if nesterov and not number:
        raise ArgumentError(f"{call}: nesterov without momentum; pass momentum, such as 0.9, too")
    steps = whole(call, "warmup_steps", warmup_steps, "a number of steps")
    if steps < 0:
        raise ArgumentError(f"{call}: warmup_steps is {steps}; pass a number of steps, 0 or more")
    if steps and kind_of(codec) not in RAMPED:
        raise ArgumentError(
            f"{call}: warmup_steps is {steps}, and {codec} has no share that could fall from 1/4; leave it out, or take topk or randomk"
        )
    if masking and not number:
        raise ArgumentError(
            f"{call}: masking without momentum, and it is the velocity that is masked; pass momentum, such as 0.9, too"
        )
    if masking and not (feedback and kind_of(codec) in RAMPED):
        what = codec if feedback else f"{codec} without feedback"
        raise ArgumentError(
            f"{call}: masking, and {what} does not tell which elements were sent whole; leave it out, or take topk or randomk with feedback"
        )
    return Correction(number, bool(nesterov), steps, bool(masking))
