"""Calls whose ranks add up on their hosts first, on their way through threads: each thread does one thing for all calls, in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..kinds import Call
from .devices import StagedHandle
from .lanes import Point
from .local_handles import LocalHandle
from .local_steps import LocalSteps, TakenKind

__all__ = ["Beside", "Flight", "Stage", "overlap"]

Tensors = Sequence[torch.Tensor | None]


def overlap(ones: Tensors, others: Tensors) -> bool:
    """Whether some of these tensors share memory with some of the others."""
    spans = [[(each.data_ptr(), each.data_ptr() + each.nbytes) for each in some if each is not None] for some in (ones, others)]
    return any(begin < last and first < end for begin, end in spans[0] for first, last in spans[1])


class Beside(NamedTuple):
    """A call that passes through the host as a whole, and may still run."""

    handle: StagedHandle

    tensors: Tensors


class Flight:
    """A call on its way."""

    steps: LocalSteps | None = None
    """Its steps, and the memory that they use; none where there are no elements."""

    rail: StagedHandle | None = None
    """What goes over the rail, once it has begun."""

    summed: Point | None = None
    """The end of the steps before the network."""

    behind: Sequence[LocalHandle] = ()
    """Earlier calls with steps on memory of this one."""

    beside: Sequence[StagedHandle] = ()
    """Earlier calls without steps on memory of this one."""

    def __init__(self, call: Call, kind: TakenKind, begin: Point, check: StagedHandle, handle: LocalHandle) -> None:
        """
        Args:
            begin: what the program has queued before the call.
            check: the question to the whole group whether all ranks make this call and have memory for it.
        """
        self.call, self.kind, self.begin, self.check, self.handle = call, kind, begin, check, handle


class Stage:
    """A thread that does one thing for each call, and hands it on."""

    def __init__(self, act: Callable[[Flight], None], following: Stage | None) -> None:
        """``act`` raises nothing."""
        self._act, self._following = act, following
        self._queue: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="herringbone-local-sums", daemon=True)
        self._thread.start()

    def put(self, flight: Flight | None) -> None:
        """Give it a call; after ``None`` this stage and the next ones end."""
        self._queue.put(flight)

    def join(self) -> None:
        """Return once it has ended."""
        self._thread.join()

    def _serve(self) -> None:
        for flight in iter(self._queue.get, None):
            self._act(flight)
            if self._following is not None:
                self._following.put(flight)
            # Else it would keep the call's memory until the next call comes.
            del flight
        if self._following is not None:
            self._following.put(None)
