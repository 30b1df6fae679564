"""How long a slow worker sleeps, and when a training ends that has a number of seconds. Nothing here reads a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .options import Slow

__all__ = ["Slowness", "next_look"]

LOOKS = 8
"""A training of some seconds asks at most so many times whether it is over, after its first steps."""


@dataclass(frozen=True)
class Slowness:
    """A worker's sleep in each step: (factor - 1) times the seconds that it computes in a step."""

    slow: Slow | None
    rank: int
    workers: int
    seed: int

    def sleep(self, step: int, computing: float) -> float:
        """The seconds of a step, counted from 0. Of a random slow worker all workers draw the same one."""
        if self.slow is None:
            return 0.0
        drawn = self.slow.worker
        if drawn is None:
            drawn = random.Random(f"{self.seed} {step}").randrange(self.workers)
        return (self.slow.factor - 1) * computing if drawn == self.rank else 0.0


def next_look(done: int, elapsed: float, seconds: float) -> int:
    """After how many steps the workers compare their clocks again, when ``done`` steps took ``elapsed`` of ``seconds``.

    0: the training is over. The workers that wait for each other have to end after the same step, so they look seldom.
    """
    if done == 0:
        return 1
    left = seconds - elapsed
    if left <= 0:
        return 0
    per_step = max(elapsed / done, 1e-6)
    return max(1, min(done * 2, int(min(left, seconds / LOOKS) / per_step)))
