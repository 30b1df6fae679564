"""Finds the arrays and tensors that share memory, so that one variable stands for all of them."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Any

from ._herringbone import Variable

__all__ = ["MemoryVariables"]


class _Piece:
    """The memory of overlapping arrays, and its variable."""

    __slots__ = ("begin", "end", "owners", "variable")

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        self.begin = self.end = 0
        self.owners: dict[int, tuple[Any, int, int]] = {}
        """By their identities: a weak reference to each owner, and where its memory begins and ends."""

    def measure(self) -> None:
        """Compute its extent from its owners."""
        filled = [(begin, end) for _, begin, end in self.owners.values() if begin < end]
        self.begin = min((begin for begin, _ in filled), default=0)
        self.end = max((end for _, end in filled), default=0)


class MemoryVariables:
    """The variables of memory. An array or tensor has the variable of the memory that it shows a part of.

    The owner of memory is a tensor's storage, or the array at the end of a chain of views. Owners whose memory overlaps, such
    as an array and a tensor that ``torch.from_numpy`` makes of a part of it, have one variable. A variable ends with its last
    owner.
    """

    def __init__(self, make: Callable[[str | None], Variable], join: Callable[[Variable, Variable], None]) -> None:
        """
        Args:
            make: makes a new variable with a name.
            join: runs everything pushed on the first variable so far before anything that is pushed on the second one later.
        """
        self._make = make
        self._join = join
        self._lock = threading.RLock()
        self._of_owners: dict[int, _Piece] = {}
        self._pieces: list[_Piece] = []
        """The pieces with any bytes, by where they begin; no two overlap."""
        self._gone: deque[int] = deque()
        """Owners that have gone: a callback can come at any moment, so it only notes them here."""

    def __len__(self) -> int:
        """How many pieces of memory have a variable."""
        with self._lock:
            self._forget()
            return len(set(map(id, self._of_owners.values())))

    def renew(self) -> None:
        """For a forked child: another thread might have held the lock."""
        self._lock = threading.RLock()

    def variable(self, thing: Any, name: str | None) -> Variable:
        """The variable of an array or tensor, made if there is none."""
        owner = _owner(thing)
        with self._lock:
            self._forget()
            known = self._of_owners.get(id(owner))
            if known is not None:
                return known.variable
            piece, joined = self._place(owner, name)
        # A push can wait for functions that wait for the lock.
        for variable in joined:
            self._join(variable, piece.variable)
        return piece.variable

    def _place(self, owner: Any, name: str | None) -> tuple[_Piece, list[Variable]]:
        """The piece of a new owner, and the variables of others that have become parts of it."""
        begin, end = _extent(owner)
        met = self._met(begin, end) if begin < end else []
        for piece in met:
            self._pieces.remove(piece)
        kept = met[0] if met else _Piece(self._make(name))
        for piece in met[1:]:
            kept.owners.update(piece.owners)
        kept.owners[id(owner)] = (weakref.ref(owner, self._goes(id(owner))), begin, end)
        for key in kept.owners:
            self._of_owners[key] = kept
        kept.measure()
        if kept.begin < kept.end:
            self._pieces.insert(bisect_left(self._pieces, kept.begin, key=_begin_of), kept)
        return kept, [piece.variable for piece in met[1:]]

    def _met(self, begin: int, end: int) -> list[_Piece]:
        """The pieces that overlap this memory."""
        at = bisect_left(self._pieces, begin, key=_begin_of)
        if at > 0 and self._pieces[at - 1].end > begin:
            at -= 1
        met = []
        while at < len(self._pieces) and self._pieces[at].begin < end:
            met.append(self._pieces[at])
            at += 1
        return met

    def _goes(self, key: int) -> Callable[[Any], None]:
        gone = self._gone
        return lambda _: gone.append(key)

    def _forget(self) -> None:
        """Drop the owners that have gone, before others can have their identities or their memory."""
        while self._gone:
            key = self._gone.popleft()
            piece = self._of_owners.pop(key)
            del piece.owners[key]
            if piece.begin < piece.end:
                self._pieces.remove(piece)
            piece.measure()
            if piece.begin < piece.end:
                self._pieces.insert(bisect_left(self._pieces, piece.begin, key=_begin_of), piece)


def _begin_of(piece: _Piece) -> int:
    return piece.begin


def _owner(thing: Any) -> Any:
    """The storage or the array that owns the memory of a tensor or an array."""
    while hasattr(thing, "__array_interface__"):
        base = getattr(thing, "base", None)
        if not hasattr(base, "__array_interface__") and not hasattr(base, "untyped_storage"):
            if type(thing).__weakrefoffset__ == 0:
                break
            return thing
        thing = base
    if hasattr(thing, "untyped_storage"):
        try:
            return thing.untyped_storage()
        except (NotImplementedError, RuntimeError):
            raise TypeError(
                f"a tensor of {thing.layout} on {thing.device} has no memory of its own; make a variable with engine.var() for it"
            ) from None
    raise TypeError(
        f"a {type(thing).__name__} is no variable, array or tensor; make a variable with engine.var() to stand for it"
    )


def _extent(owner: Any) -> tuple[int, int]:
    """Where the memory of an owner begins and ends; an owner without memory is one by itself."""
    if hasattr(owner, "nbytes") and callable(owner.nbytes):
        begin = int(owner.data_ptr())
        return (begin, begin + int(owner.nbytes())) if begin else (0, 0)
    import numpy as np

    array = np.asarray(owner)
    begin = end = int(array.__array_interface__["data"][0])
    if array.size == 0:
        return 0, 0
    for length, stride in zip(array.shape, array.strides):
        begin, end = (begin + (length - 1) * stride, end) if stride < 0 else (begin, end + (length - 1) * stride)
    return begin, end + array.itemsize
