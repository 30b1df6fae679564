"""Decides when ranks average, and which fragment: plain Python, without numpy and torch."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ..arguments import whole

__all__ = ["Due", "Rounds", "WarmUp", "cut"]


class Due(enum.Enum):
    """The action after an inner step."""

    NOTHING = "nothing"
    ISSUE = "issue"
    """The fragment's exchange starts, and runs while the next inner steps compute."""
    APPLY = "apply"
    """The fragment's exchange ends, and its result is applied. If it has not started, it starts first."""


@dataclass(frozen=True)
class Rounds:
    """Rounds of inner steps. Each round ends with the exchange of one fragment, and fragments take turns.

    The fragment depends only on the number of the round. So all ranks issue fragments in the same order, even if they make
    different numbers of inner steps in a round. Names and turns are as in torchft's ``DiLoCo``. Streaming is from Douillard et
    al., "Streaming DiLoCo with overlapping communication" (2025).
    """

    sync_every: int
    """Inner steps in which each fragment is exchanged once."""
    fragments: int = 1
    delay: int = 0
    """How many inner steps before the end of a round its exchange starts."""

    @classmethod
    def checked(cls, call: str, sync_every: int, fragments: int = 1, delay: int = 0) -> Rounds:
        """Rounds with these numbers, after checks.

        Raises:
            TypeError: one is no whole number.
            ValueError: they do not fit each other.
        """
        sync_every = whole(call, "sync_every", sync_every, "a number of steps")
        fragments = whole(call, "fragments", fragments, "a number of fragments")
        delay = whole(call, "fragment_sync_delay", delay, "a number of steps")
        if sync_every < 1:
            raise ValueError(f"{call}: sync_every is {sync_every}; pass 1 step or more")
        if fragments < 1:
            raise ValueError(f"{call}: fragments is {fragments}; pass 1 or more")
        if sync_every % fragments:
            more = -(-sync_every // fragments) * fragments
            raise ValueError(
                f"{call}: sync_every is {sync_every}, which {fragments} fragments do not divide; pass a multiple, such as {more}"
            )
        if not 0 <= delay < sync_every // fragments:
            least = sync_every // fragments
            raise ValueError(
                f"{call}: fragment_sync_delay is {delay}, but a round has {least} inner steps; pass a number from 0 to {least - 1}"
            )
        return cls(sync_every, fragments, delay)

    @property
    def steps(self) -> int:
        """The inner steps of a round."""
        return self.sync_every // self.fragments

    def fragment(self, round: int) -> int:
        """The fragment that ranks exchange at the end of this round; rounds count from 0."""
        return round % self.fragments

    def due(self, step: int) -> Due:
        """The action after the ``step``-th inner step of a round, counted from 1."""
        if step >= self.steps:
            return Due.APPLY
        return Due.ISSUE if step == self.steps - self.delay else Due.NOTHING


@dataclass(frozen=True)
class WarmUp:
    """Synchronous steps, then an average of parameters after every ``sync_every`` steps: post-local SGD (Lin et al., ICLR 2020).

    The first average follows the first step after the warm-up, as with torch's ``PeriodicModelAverager``.
    """

    sync_every: int
    warmup_steps: int

    @classmethod
    def checked(cls, call: str, sync_every: int, warmup_steps: int) -> WarmUp:
        """Raises the same errors as :meth:`Rounds.checked`."""
        rounds = Rounds.checked(call, sync_every)
        warmup_steps = whole(call, "warmup_steps", warmup_steps, "a number of steps")
        if warmup_steps < 0:
            raise ValueError(f"{call}: warmup_steps is {warmup_steps}; pass 0 steps or more")
        return cls(rounds.sync_every, warmup_steps)

    def sums_gradients(self, step: int) -> bool:
        """Whether ranks average gradients before this step; steps count from 0."""
        return step < self.warmup_steps

    def averages(self, step: int) -> bool:
        """Whether ranks average parameters after this step; steps count from 0."""
        return step >= self.warmup_steps and (step - self.warmup_steps) % self.sync_every == 0


def cut(sizes: Sequence[int], fragments: int) -> list[range]:
    """Cut parameters of these sizes into this many consecutive fragments of about equal size, none of them empty.

    A fragment ends at the parameter whose end is nearest to its share of the total.

    Raises:
        ValueError: there are fewer parameters than fragments.
    """
    if not 1 <= fragments <= len(sizes):
        raise ValueError(f"{len(sizes)} parameters cannot be cut into {fragments} fragments; pass 1 to {len(sizes)}")
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    cuts = [0]
    for number in range(1, fragments):
        wanted = ends[-1] * number / fragments
        possible = range(cuts[-1] + 1, len(sizes) - (fragments - number) + 1)
        cuts.append(min(possible, key=lambda at: abs(ends[at] - wanted)))
    cuts.append(len(sizes))
    return [range(first, end) for first, end in zip(cuts, cuts[1:])]
