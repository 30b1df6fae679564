"""The collectives that move arrays between ranks unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from .._herringbone import Extras
from ..arguments import whole
from ..arrays import move_type, new_array, row, same_size
from ..kinds import kind_of
from .calls import Calls

if TYPE_CHECKING:
    from ..work import Work
    from .calls import Array, Scalar

__all__ = ["Moves"]


class Moves(Calls):
    """Collectives that change no values, so they take arrays of any type."""

    @overload
    def broadcast(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def broadcast(
        self, array: Array[Scalar], root: int = 0, *, async_op: Literal[True], timeout: float | None = None, priority: int = 0
    ) -> Work[Array[Scalar]]: ...
    @overload
    def broadcast(
        self, array: Array[Scalar], root: int = 0, *, async_op: bool, timeout: float | None = None, priority: int = 0
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def broadcast(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Replace ``array`` on every rank by ``root``'s; any type."""
        dtype, scale = move_type("broadcast", array)
        count, root = array.size * scale, self._root("broadcast", root)
        return self._run(kind_of("broadcast", dtype), count, root, array, array, async_op, timeout, priority)

    @overload
    def all_gather(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def all_gather(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def all_gather(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def all_gather(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give every rank the arrays of all ranks, one after the other along the first axis; any type.

        Args:
            array: shape ``(n, ...)``, the same on every rank; a scalar counts as ``(1,)``.
            out: shape ``(size * n, ...)``; made if it is not given.
            counts: if arrays differ in the first length: the first length of each rank's.

        Raises:
            MismatchError: a rank's array has another length than another rank's ``counts``; raised on all ranks.
        """
        return self._gathered("all_gather", array, None, out, counts, async_op, timeout, priority)

    @overload
    def gather(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | None: ...
    @overload
    def gather(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar] | None]: ...
    @overload
    def gather(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar] | None] | None: ...
    def gather(
        self,
        array: Array[Scalar],
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give ``root`` the arrays of all ranks, one after the other along the first axis; any type.

        Args:
            array: shape ``(n, ...)``, the same on every rank; a scalar counts as ``(1,)``.
            root: the rank that gets the result.
            out: on ``root``, shape ``(size * n, ...)``; made if it is not given. The other ranks have none.
            counts: if arrays differ in the first length: on ``root`` the first length of each rank's, on other ranks an
                empty sequence.

        Returns:
            The result array, or a :class:`Work`; on the other ranks ``None``, or a work without a result.
        """
        return self._gathered("gather", array, self._root("gather", root), out, counts, async_op, timeout, priority)

    @overload
    def scatter(
        self,
        array: Array[Scalar] | None,
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def scatter(
        self,
        array: Array[Scalar] | None,
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def scatter(
        self,
        array: Array[Scalar] | None,
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def scatter(
        self,
        array: Array[Scalar] | None,
        root: int = 0,
        *,
        out: Array[Scalar] | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give rank ``i`` the ``i``-th of ``size`` equal parts of ``root``'s array; any type.

        Args:
            array: on ``root``, shape ``(size * n, ...)``; ``None`` on the other ranks.
            root: the rank that has the array.
            out: shape ``(n, ...)``. The other ranks need one; ``root``'s is made if it is not given.
            counts: if parts differ in the first length: on ``root`` the first length of each rank's, on other ranks an
                empty sequence.
        """
        root = self._root("scatter", root)
        is_root = root == self.rank
        if is_root and array is None:
            raise ValueError(f"scatter on rank {root}: the root has to pass an array with a part for each rank")
        if not is_root and (array is not None or out is None):
            raise ValueError(f"scatter on rank {self.rank}: only rank {root} has an array; pass out= and no array")
        given: list[int] | None = None
        if array is not None:
            given = self._lengths("scatter", array, counts)
            own = array.shape[0] // self.size if given is None else given[self.rank]
            if out is None:
                out = new_array("scatter", (own, *array.shape[1:]), array.dtype)
            same_size("scatter", array, out, own * row(array))
        elif counts is not None:
            given = []
        assert out is not None
        dtype, scale = move_type("scatter", out)
        extras = None
        if given is not None:
            rows = scale * (row(array) if array is not None else 1)
            extras = Extras(parts=([length * rows for length in given], [out.size * scale]))
        count = out.size * scale
        return self._run(kind_of("scatter", dtype), count, root, array, out, async_op, timeout, priority, extras)

    @overload
    def all_to_all(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def all_to_all(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def all_to_all(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def all_to_all(
        self,
        array: Array[Scalar],
        *,
        out: Array[Scalar] | None = None,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Send rank ``i`` the ``i``-th part of ``array`` and receive the ``i``-th part of the result from it; any type.

        Args:
            array: shape ``(size * n, ...)``, the same on every rank.
            out: shape ``(size * n, ...)``; made if it is not given. It can be ``array``.
            sends: if parts differ in the first length: the first length of the part for each rank.
            receives: the first length of the part from each rank. All ranks pass both, or neither.

        Raises:
            MismatchError: a rank sends another length than its receiver expects; raised on all ranks.
        """
        if (sends is None) != (receives is None):
            raise ValueError(f"all_to_all on rank {self.rank}: pass both sends and receives, or neither")
        dtype, scale = move_type("all_to_all", array)
        given = self._lengths("all_to_all", array, sends)
        extras, rows = None, row(array)
        taken = None if receives is None else self._counts("all_to_all", "receives", receives)
        total = array.shape[0] if taken is None else sum(taken)
        if out is None:
            out = new_array("all_to_all", (total, *array.shape[1:]), array.dtype)
        same_size("all_to_all", array, out, total * rows)
        if given is not None and taken is not None:
            sent, received = ([length * rows * scale for length in side] for side in (given, taken))
            extras = Extras(parts=(sent, received))
        count = array.size // self.size * scale
        return self._run(kind_of("all_to_all", dtype), count, 0, array, out, async_op, timeout, priority, extras)

    def _gathered(
        self,
        name: str,
        array: Array[Any],
        root: int | None,
        out: Array[Any] | None,
        counts: Sequence[int] | None,
        async_op: bool,
        timeout: float | None,
        priority: int,
    ) -> Any:
        """Gather ``array`` to ``root``, or to all."""
        dtype, scale = move_type(name, array)
        shape, rows = array.shape or (1,), row(array)
        takes = root in (None, self.rank)
        taken = self._counts(name, "counts", counts, self.size if takes else 0) if counts is not None else None
        total = shape[0] * self.size if taken is None else sum(taken)
        if not takes and out is not None:
            raise ValueError(f"{name} on rank {self.rank}: only rank {root} has a result; pass out= there only")
        if takes and out is None:
            out = new_array(name, (total, *shape[1:]), array.dtype)
        if out is not None:
            same_size(name, array, out, total * rows)
        extras = None
        if taken is not None:
            extras = Extras(parts=([array.size * scale], [length * rows * scale for length in taken]))
        count = array.size * scale
        return self._run(kind_of(name, dtype), count, root or 0, array, out, async_op, timeout, priority, extras)

    def _lengths(self, name: str, array: Array[Any], counts: Sequence[int] | None) -> list[int] | None:
        """The first lengths of the parts of ``array`` if they are given; an error if they do not add up to its first length."""
        if array.ndim == 0 or (counts is None and array.shape[0] % self.size):
            raise ValueError(f"{name}: the first length of {array.shape} has to be a multiple of the {self.size} ranks")
        if counts is None:
            return None
        lengths = self._counts(name, "the parts", counts)
        if sum(lengths) != array.shape[0]:
            raise ValueError(f"{name}: parts of {lengths} do not make up the first of {array.shape}")
        return lengths

    def _counts(self, name: str, role: str, counts: Sequence[int], number: int | None = None) -> list[int]:
        """One length for each rank."""
        if not isinstance(counts, Iterable):
            raise TypeError(f"{name}: {role} are a {type(counts).__name__}, not a length for each rank")
        lengths = [whole(name, f"one of {role}", length, "a length") for length in counts]
        number = self.size if number is None else number
        if len(lengths) != number or any(length < 0 for length in lengths):
            raise ValueError(f"{name} on rank {self.rank}: {role} are {lengths}; pass {number} lengths of 0 or more")
        return lengths
