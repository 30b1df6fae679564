"""Corrections of gradients before a codec codes them, so that compressed training follows uncompressed training. Pure
functions.

Four rules, each off by default:

* **Momentum correction** and the **warm-up** of the share: Lin et al., "Deep Gradient Compression" (ICLR 2018). Each rank
  accumulates momentum before elements are chosen, and the optimizer has none.
* **Momentum factor masking**, of section 3.2 of the same paper: the velocity of an element that was sent restarts from zero. So
  late gradients do not keep pushing an element that has moved.
* The **residual follows the learning rate**: the residual consists of gradients, so it has to be scaled if the rate changes. It
  is multiplied by the old rate over the new one, as in BytePS (``vanilla_error_feedback.cc``).

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
"""How often a warm-up of a codec changes the share: each share is a codec of its own, with its own plans."""
RAMPED = ("topk", "randomk")
"""The codecs that have a share."""


def share_at(step: float, share: float, warmup_steps: int) -> float:
    """The share of elements that are sent in a step, from 0: during the warm-up it falls by equal factors from 1/4 to
    ``share``."""
    if step >= warmup_steps or share >= FIRST_SHARE:
        return share
    return float(FIRST_SHARE * (share / FIRST_SHARE) ** (step / warmup_steps))


def with_momentum(velocity: Any, gradient: Any, momentum: float, nesterov: bool = False) -> Any:
    """Add a gradient to ``velocity``, and return what replaces the gradient: ``velocity`` itself, or with ``nesterov`` a new
    array.

    Like ``torch.optim.SGD`` with ``momentum`` and no dampening: the velocity becomes ``momentum`` times itself plus the
    gradient.
    """
    velocity *= momentum
    velocity += gradient
    return gradient + momentum * velocity if nesterov else velocity


def mask_sent(velocity: Any, left: Any) -> None:
    """Set the velocity to zero, in place, where the residual of an element is zero, because it was sent whole.

    ``left`` is the residual after the step, with the same number of elements. ``topk`` and ``randomk`` send an element whole or
    not at all.
    """
    velocity[left == 0] = 0


def kind_of(codec: str) -> str:
    """A codec's name without its parameter."""
    return codec.partition(":")[0].strip()


class Rates:
    """The learning rates of an optimizer's groups of parameters, from step to step."""

    def __init__(self, last: Sequence[float] = ()) -> None:
        """``last``: the rates of a saved state."""
        self.last = [float(rate) for rate in last]

    def follow(self, call: str, rates: Sequence[float]) -> float:
        """The factor for residuals before a step with these rates: the last rate over the present one.

        A rate of 0 moves nothing and changes no residual: the last rate above 0 is kept.

        Raises:
            ArgumentError: the groups' rates change by different factors, but a bucket can have parameters of several groups.
        """
        now = [float(rate) for rate in rates]
        last = self.last if len(self.last) == len(now) else now
        ratios = [before / rate for before, rate in zip(last, now) if before > 0 and rate > 0]
        if any(not math.isclose(ratio, ratios[0], rel_tol=1e-6) for ratio in ratios):
            raise ArgumentError(
                f"{call}: the learning rates changed from {last} to {now}, not by one common factor. Residuals can follow one schedule: "
                "give all groups of parameters the same schedule, or do not let residuals follow"
            )
        self.last = [rate if rate > 0 else before for before, rate in zip(last, now)]
        return ratios[0] if ratios else 1.0


@dataclass(frozen=True)
class Correction:
    """The corrections before a codec."""

    momentum: float = 0.0
    nesterov: bool = False
    warmup_steps: int = 0
    masking: bool = False

    def codec_at(self, codec: str, step: int) -> str:
        """The codec of a step, from 0: during the warm-up one with a larger share, in :data:`STAGES` stages."""
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
            f"{call}: warmup_steps is {steps}, but {codec} has no share that could fall from 1/4; leave it out, or use topk or randomk"
        )
    if masking and not number:
        raise ArgumentError(f"{call}: masking without momentum, but masking resets the velocity; pass momentum, such as 0.9, too")
    if masking and not (feedback and kind_of(codec) in RAMPED):
        what = codec if feedback else f"{codec} without feedback"
        raise ArgumentError(
            f"{call}: masking, but {what} does not tell which elements were sent whole; leave it out, or use topk or randomk with feedback"
        )
    return Correction(number, bool(nesterov), steps, bool(masking))
