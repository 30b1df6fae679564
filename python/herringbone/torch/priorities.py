"""Priorities of collectives by a context manager, because torch's calls have no argument for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from ..arguments import level as checked

__all__ = ["current_priority", "priority"]

_level: ContextVar[int] = ContextVar("herringbone.priority", default=0)

current_priority = _level.get
"""The priority of the calls that this thread starts now."""


@contextlib.contextmanager
def priority(level: int) -> Iterator[None]:
    """Give the collectives that the body starts on this thread a priority, the same on all ranks.

    Above 0 (the default) an operation is urgent: it passes ordinary ones that were started before it. A socket sends the
    waiting message of the highest priority first. For example, for the gradients that the next step needs first::

        def hook(state, bucket):                       # for DistributedDataParallel.register_comm_hook
            with herringbone.torch.priority(1 if bucket.is_last() else 0):
                return allreduce_hook(state, bucket)
    """
    token = _level.set(checked("priority", "level", level))
    try:
        yield
    finally:
        _level.reset(token)
