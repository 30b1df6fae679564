"""A process's membership in one group: what a process group and its backend for a device share."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from datetime import timedelta

from .._herringbone import Communicator
from .callbacks import callback_threads, close_callback_threads

__all__ = ["Member"]


class Member:
    """One communicator, with what torch adds to it."""

    seconds: float
    """How long an operation may take unless its call says."""

    calls = 0
    """How many calls of torch the group has had in this process."""

    barriers = 0
    """How many monitored barriers of the group this process has called."""

    timed = False
    """Whether works measure how long they take."""

    def __init__(
        self, communicator: Communicator, timeout: timedelta, ranks: list[int] | None = None
    ) -> None:
        """``ranks`` are its members, where that is not all."""
        self.communicator = communicator
        self.ranks = list(range(communicator.size)) if ranks is None else ranks
        self.seconds = timeout.total_seconds()
        # The threads are started with the first group: a process that forks has none before.
        self.threads = callback_threads()
        _open.append(self)

    def close(self) -> None:
        """Leave the group once the others hold what they need from this rank."""
        self._leave(Communicator.close)

    def abort(self) -> None:
        """Leave the group at once: running operations fail with ``ClosedError``."""
        self._leave(Communicator.abort)

    def _leave(self, how: Callable[[Communicator], None]) -> None:
        if self in _open:
            _open.remove(self)
        how(self.communicator)


_open: list[Member] = []
"""The groups of this process that it has not left, in the order of their creation."""


def _close_all() -> None:
    """Leave all groups, so that the other ranks see a goodbye and not a death; then end the callbacks' threads."""
    for member in reversed(_open.copy()):
        member.close()
    close_callback_threads()


atexit.register(_close_all)
# The parent's groups are not a forked child's to leave.
os.register_at_fork(after_in_child=_open.clear)
