"""The state made by :func:`init`: this process's place in the job, and a controller for each process set that it is in."""

from __future__ import annotations

import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ... import _herringbone
from ...closing import close_each
from ...communicator import Communicator
from ...compression import Residuals
from ...hosts import hosts_of
from .settings import Settings

if TYPE_CHECKING:
    from ..._herringbone import Controller

__all__ = ["Member", "Place", "World", "current", "enter", "leave", "required"]


@dataclass(frozen=True)
class Place:
    """The place of a rank: within its host, and among the ranks with its local rank on all hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool

    @classmethod
    def among(cls, hosts: Sequence[bytes], rank: int) -> Place:
        """The place of ``rank``, if the ranks are on these hosts."""
        beside: defaultdict[bytes, list[int]] = defaultdict(list)
        for other, host in enumerate(hosts):
            beside[host].append(other)
        local = beside[hosts[rank]]
        at = local.index(rank)
        across = sorted(ranks[at] for ranks in beside.values() if len(ranks) > at)
        homogeneous = len({len(ranks) for ranks in beside.values()}) == 1
        return cls(at, len(local), across.index(rank), len(across), homogeneous)


@dataclass
class Member:
    """A process set, from this process's point of view."""

    ranks: tuple[int, ...]
    controller: Controller | None
    """``None`` if this process is not in the set."""
    communicator: Communicator | None
    unnamed: Counter[str] = field(default_factory=Counter)
    """How many operations of each kind came without a name."""
    residuals: Residuals = field(default_factory=Residuals)
    """The residuals of tensors that a program reduces by name, without an optimizer."""

    def close(self) -> None:
        """End its controller: running operations fail, on all ranks of the set."""
        try:
            if self.controller is not None:
                self.controller.shutdown()
        finally:
            if self.communicator is not None:
                self.communicator.close()


class World:
    """The state between ``init`` and ``shutdown``."""

    def __init__(self, job: Communicator, ranks: Sequence[int] | None, settings: Settings) -> None:
        """Join with ``ranks`` of ``job``, by default all; these ranks do the same."""
        self.job, self.settings = job, settings
        self._of_job = tuple(ranks) if ranks else tuple(range(job.size))
        """The rank in the job of each rank here."""
        if job.rank not in self._of_job:
            raise ValueError(f"init: this is rank {job.rank}, which is not one of comm={list(self._of_job)}")
        self.rank, self.size = self._of_job.index(job.rank), len(self._of_job)
        self.sets: dict[int, Member] = {}
        self._ids: Iterator[int] = itertools.count()
        first = next(self._ids)
        everybody = job.subgroup(self._of_job)
        # This comes before a controller has the communicator, because then only the controller calls it.
        self.place = Place.among(hosts_of(everybody, os.environ.get("HOROVOD_HOSTNAME")), self.rank)
        self.sets[first] = Member(tuple(range(self.size)), self._controller(everybody), everybody)

    def add(self, ranks: Sequence[int]) -> int | None:
        """The number of a new process set; ``None`` if one of these ranks exists. All ranks call this in the same order."""
        ranks = tuple(sorted(ranks))
        if any(known.ranks == ranks for known in self.sets.values()):
            return None
        outside = [rank for rank in ranks if not 0 <= rank < self.size]
        if outside or not ranks or len(set(ranks)) < len(ranks):
            raise ValueError(f"a process set of ranks {list(ranks)}: pass at least one rank, all different and below {self.size}")
        number = next(self._ids)
        if self.rank in ranks:
            communicator = self.job.subgroup([self._of_job[rank] for rank in ranks])
            self.sets[number] = Member(ranks, self._controller(communicator), communicator)
        else:
            self.sets[number] = Member(ranks, None, None)
        return number

    def _controller(self, communicator: Communicator) -> Controller:
        settings = self.settings
        tuning: dict[str, Any] = {}
        if settings.autotune:
            tuning = {
                "autotune": True,
                "autotune_log": settings.autotune_log if communicator.size == self.size else None,
                "autotune_warmup_samples": settings.autotune_warmup_samples,
                "autotune_steps_per_sample": settings.autotune_steps_per_sample,
            }
        return _herringbone.Controller(
            communicator._native,
            cycle_time=settings.cycle_time,
            fusion_threshold=settings.fusion_threshold,
            cache_capacity=settings.cache_capacity,
            stall_warning=settings.stall_warning,
            stall_shutdown=settings.stall_shutdown,
            group_fusion=settings.group_fusion,
            **tuning,
        )

    def end(self) -> list[Exception]:
        """End all controllers, and return their errors; the job continues, for the next ``init``."""
        members = [self.sets.pop(number) for number in reversed(list(self.sets))]
        return close_each(members)


_world: World | None = None


def current() -> World | None:
    """The state, if there is one."""
    return _world


def required() -> World:
    """The state.

    Raises:
        ValueError: ``init`` was not called, or ``shutdown`` was called since then.
    """
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def enter(world: World) -> None:
    """Make ``world`` the state."""
    global _world
    _world = world


def leave() -> World | None:
    """Forget the state, and return it."""
    global _world
    world, _world = _world, None
    return world
