"""The common part of all calls of a group: the calling rank, and how a call is passed to the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .. import _herringbone
from .._herringbone import Extras, Kind
from ..arguments import check_seconds, level, whole
from ..arrays import readable, writable
from ..work import Work

if TYPE_CHECKING:
    import numpy as np

    Scalar = TypeVar("Scalar", bound=np.generic)
    Array = np.ndarray[Any, np.dtype[Scalar]]

__all__ = ["Calls"]


class Calls:
    """A member of a group of ranks, which makes the group's calls."""

    def __init__(self, native: _herringbone.Communicator) -> None:
        """For :func:`init` and :meth:`subgroup`."""
        self._native = native

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return self._native.size

    def _root(self, name: str, root: int, role: str = "root") -> int:
        root = whole(name, role, root, "a rank")
        if not 0 <= root < self.size:
            raise ValueError(f"{name} on rank {self.rank}: {role} {root} is not a rank of this group of {self.size}")
        return root

    def _run(
        self,
        kind: Kind,
        count: int,
        root: int,
        array: Array[Any] | None,
        out: Array[Any] | None,
        async_op: bool,
        timeout: float | None,
        priority: int,
        extras: Extras | None = None,
    ) -> Any:
        name = kind.collective
        check_seconds(name, timeout)
        if type(priority) is not int or priority != 0:
            priority = level(name, "priority", priority)
        target = writable(name, out)
        source = target if array is out else readable(name, array)
        call = (kind, count, root, source, target, (array, out), timeout, priority, extras)
        if async_op:
            return Work(name, self._native.submit(call), out)
        self._native.run(call)
        return out
