"""How long a slow worker sleeps, and when a training with a time limit ends. Nothing here reads a clock."""

from __future__ import annotations

import random
from dataclasses import dataclass

from .options import Slow

__all__ = ["Slowness", "next_look"]

LOOKS = 8
"""How many times, at most, a training with a time limit checks for its end after the first steps."""


@dataclass(frozen=True)
class Slowness:
    """A worker's sleep in each step: (factor - 1) times the seconds that it computes in a step."""

    slow: Slow | None
    rank: int
    workers: int
    seed: int

    def sleep(self, step: int, computing: float) -> float:
        """The seconds of sleep in a step, counted from 0. All workers draw the same random slow worker."""
        if self.slow is None:
            return 0.0
        drawn = self.slow.worker
        if drawn is None:
            drawn = random.Random(f"{self.seed} {step}").randrange(self.workers)
        return (self.slow.factor - 1) * computing if drawn == self.rank else 0.0


def next_look(done: int, elapsed: float, seconds: float) -> int:
    """After how many steps the workers compare their clocks again, when ``done`` steps took ``elapsed`` of ``seconds``.

    0 means that the training is over. Workers that wait for each other have to end after the same step, so they compare rarely.
    """
    if done == 0:
        return 1
    left = seconds - elapsed
    if left <= 0:
        return 0
    per_step = max(elapsed / done, 1e-6)
    return max(1, min(done * 2, int(min(left, seconds / LOOKS) / per_step)))
