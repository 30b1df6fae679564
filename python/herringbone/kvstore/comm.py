"""The collectives of a store's workers: sums and broadcasts of values. Workers compare the purpose of each."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

from .._herringbone import Extras, Kind
from ..arrays import Lacking, fold_type, move_type
from ..communicator import Communicator
from ..compression import Coded
from ..dependency import Engine, Variable
from ..errors import UnsupportedError
from ..kinds import BARRIER, kind_of
from .sparse import RowSparse

__all__ = ["Comm", "Sent", "first_value", "with_rows"]

Made = tuple[Any, Any, Any]

MOST_WORKERS = 255
"""The most workers that can add up ones in 8 bits."""


class Sent:
    """A collective that a store has pushed."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run, self._handle, self._is_refused = run, None, False

    def issue(self, **how: Any) -> Any:
        """Begin it, on a thread of the engine."""
        try:
            work = self._run(**how)
        except BaseException:
            self._is_refused = True
            raise
        self._handle = work._handle
        return work

    @property
    def failed(self) -> bool | None:
        """Whether it has failed; ``None`` while it runs."""
        if self._handle is None or self._is_refused:
            return self._is_refused or None
        if not self._handle.done():
            return None
        try:
            self._handle.wait(0)
        except Exception:
            return True
        return False


class Comm:
    """The collectives of a store. In a store of one process they do nothing.

    Each names its call, key, type and shape. If workers differ in these, all of them get a ``MismatchError``.
    """

    def __init__(self, engine: Engine, communicator: Communicator | None) -> None:
        self._engine = engine
        self._communicator = communicator
        if communicator is not None:
            engine._line_of(communicator)  # all workers create their stores in the same order

    def furnished(self, make: Callable[[], Made], shape: tuple[int, ...], dtype: Any, rows: int = 0) -> Made:
        """The arrays of a collective: the array to send, the value of this shape in it, and its rows if they are sent, too.

        If this worker has no memory for them, placeholders are returned. Then the collective fails on all workers.
        """
        try:
            return make()
        except MemoryError:
            if self._communicator is None:
                raise
            value = Lacking(shape, dtype)
            return Lacking((value.size + rows,), dtype), value, None

    def sum(
        self,
        call: str,
        key: Any,
        array: Any,
        variable: Variable,
        like: Any,
        priority: int,
        coded: Coded | None = None,
        by: str = "",
    ) -> Sent | None:
        """Push the sum over all workers of an array that represents a value like ``like``.

        Args:
            coded: the codec of the messages, and the name and owner of the residual.
            by: the use of the sum, which workers compare, too.

        Returns:
            The outcome; ``None`` in a store of one process.
        """
        summed = kind_of("all_reduce", fold_type(call, array, "sum"))
        return self._push(summed, array, array.size, variable, priority, _said(call, key, like) + by, coded)

    def broadcast(self, call: str, key: Any, array: Any, variable: Variable, like: Any, priority: int = 0) -> None:
        """Push the broadcast of rank 0's array."""
        dtype, scale = move_type(call, array)
        moved = kind_of("broadcast", dtype)
        self._push(moved, array, array.size * scale, variable, priority, _said(call, key, like))

    def meet(self, call: str, variable: Variable) -> None:
        """Push a barrier."""
        self._push(BARRIER, None, 0, variable, 0, call)

    def check_rows(self, call: str, array: Any) -> None:
        """Refuse a sparse value whose rows cannot be counted."""
        workers = 1 if self._communicator is None else self._communicator.size
        if array.dtype.itemsize == 1 and workers > MOST_WORKERS:
            raise UnsupportedError(
                f"{call}: row-sparse values of {array.dtype} for {workers} workers; use a type of 16 bits or more"
            )

    def _push(
        self,
        kind: Kind,
        array: Any,
        count: int,
        variable: Variable,
        priority: int,
        said: str,
        coded: Coded | None = None,
    ) -> Sent | None:
        communicator = self._communicator
        if communicator is None:
            return None
        run = functools.partial(
            communicator._run,
            kind,
            count=count,
            root=0,
            array=array,
            out=array,
            timeout=None,
            priority=priority,
            extras=Extras(mark=zlib.crc32(said.encode("utf-8", "surrogatepass")) or 1, compression=coded),
        )
        sent = Sent(run)
        self._engine.collective(communicator, sent.issue, (variable,), priority, name=said)
        return sent


def with_rows(value: Any, rows: Any) -> tuple[Any, Any, Any]:
    """An array for a value and its rows, and both over its memory, so that one collective sends all. Present rows have ones."""
    import numpy as np

    both = np.empty(value.size + rows.size, value.dtype)
    both[: value.size] = value.reshape(-1)
    both[value.size :] = rows
    return both, both[: value.size].reshape(value.shape), both[value.size :]


def first_value(given: Any) -> tuple[Any, Any, Any]:
    """The array to send for the first value of a key, the value in it, and its rows."""
    import numpy as np

    if not isinstance(given, RowSparse):
        array = np.array(given, copy=True, order="C")
        return array, array, None
    present = np.zeros(given.shape[0], given.dtype)
    present[given.indices] = 1
    return with_rows(given.toarray(), present)


def _said(call: str, key: Any, like: Any) -> str:
    return f"{call} {key!r} {like.dtype} {tuple(like.shape)}"
