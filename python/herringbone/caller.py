"""How a communicator makes a call on numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _herringbone
from ._herringbone import Extras, Kind
from .arguments import check_seconds, level, whole
from .arrays import fold_type, readable, writable, wrong_op
from .kinds import kind_of
from .work import Work

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Caller"]


class Caller:
    """A member of a group, and what its calls have in common."""

    def __init__(self, native: _herringbone.Communicator) -> None:
        """For :func:`init` and :meth:`Communicator.subgroup`."""
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

    def _folding(self, name: str, array: Array, op: str) -> Kind:
        """The kind of a call that folds ``array``."""
        dtype = fold_type(name, array, op)
        try:
            return kind_of(name, dtype, op)
        except (TypeError, ValueError):
            raise wrong_op(f"{name} on rank {self.rank}", op) from None

    def _run(
        self,
        kind: Kind,
        count: int,
        root: int,
        array: Array | None,
        out: Array | None,
        async_op: bool,
        timeout: float | None,
        priority: int,
        extras: Extras | None = None,
    ) -> Any:
        name = kind.collective
        if timeout is not None:
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
