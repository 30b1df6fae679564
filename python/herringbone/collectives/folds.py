"""The collectives that fold the arrays of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from .._herringbone import Kind
from ..arrays import fold_type, new_array, same_size, wrong_op
from ..compression import LOAD, Residuals, compressed
from ..kinds import kind_of
from .calls import Calls

if TYPE_CHECKING:
    from ..names import Codec, Operation
    from ..work import Work
    from .calls import Array, Scalar

__all__ = ["Folds"]


class Folds(Calls):
    """Collectives whose result is folded, such as a sum, an average or a minimum."""

    @overload
    def all_reduce(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
        compression: Codec | None = None,
        tensor: str | None = None,
        residuals: Residuals | None = None,
    ) -> Array[Scalar]: ...
    @overload
    def all_reduce(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
        compression: Codec | None = None,
        tensor: str | None = None,
        residuals: Residuals | None = None,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def all_reduce(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
        compression: Codec | None = None,
        tensor: str | None = None,
        residuals: Residuals | None = None,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def all_reduce(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
        compression: Codec | None = None,
        tensor: str | None = None,
        residuals: Residuals | None = None,
    ) -> Any:
        """Fold ``array`` over all ranks, element by element, into ``out`` (default: in place) on every rank.

        Args:
            array: any shape, the same number of elements and type on every rank.
            op: ``"sum"``, ``"average"``, ``"product"``, ``"min"``, ``"max"``, or, for integers, ``"bit_and"``, ``"bit_or"``
                or ``"bit_xor"``.
            out: an array of the same type and size; it can be ``array``, or overlap it.
            compression: a codec for sums and averages of float32: ``"bf16"``, ``"fp16"``, ``"int8"``,
                ``"onebit:THRESHOLD"``, ``"twobit:THRESHOLD"``, ``"sign"``, ``"topk:SHARE"``, ``"randomk:SHARE"``,
                ``"threshold:THRESHOLD"`` or ``"exact"``; the same on all ranks. ``"auto"`` uses bf16 or int8 where the plan
                expects less time, and needs ``HERRINGBONE_CALIBRATION``.
            tensor: a name for error feedback: what the codec drops of this tensor is added to it before it is coded the next
                time.
            residuals: the owner of the error feedback, by default the communicator. Models with tensors of the same names need
                one each.

        Returns:
            The result array, or a :class:`Work`.

        Raises:
            UnsupportedError: the engine does not fold this type.
            ValueError: an array is read-only or not C-contiguous, the arrays do not fit each other, or ``op`` is unknown.
            TypeError: an array or ``op`` has the wrong type.
            HerringboneError: the collective failed; with ``async_op`` usually raised by the wait for its work.
        """
        kind = self._folding("all_reduce", array, op)
        if out is None:
            out = array
        else:
            same_size("all_reduce", array, out, array.size)
        coded = compressed("all_reduce", compression, tensor, residuals)
        return self._run(kind, array.size, 0, array, out, async_op, timeout, priority, coded)

    def compression_state_dict(self) -> dict[str, dict[str, Any]]:
        """The residuals of this rank's tensors that have no other owner: see :meth:`Residuals.state_dict`."""
        return Residuals(self._native.residuals).state_dict()

    def load_compression_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Replace the residuals by the ones that :meth:`compression_state_dict` has returned.

        Raises:
            TypeError, ArgumentError: the state is not from that method; nothing is changed.
        """
        Residuals(self._native.residuals)._load(LOAD, state)

    @overload
    def reduce(
        self,
        array: Array[Scalar],
        root: int = 0,
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def reduce(
        self,
        array: Array[Scalar],
        root: int = 0,
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def reduce(
        self,
        array: Array[Scalar],
        root: int = 0,
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def reduce(
        self,
        array: Array[Scalar],
        root: int = 0,
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Like :meth:`all_reduce`, but only ``root`` receives the result; elsewhere ``out`` is left alone."""
        kind = self._folding("reduce", array, op)
        if out is None:
            out = array
        else:
            same_size("reduce", array, out, array.size)
        root = self._root("reduce", root)
        return self._run(kind, array.size, root, array, out, async_op, timeout, priority)

    @overload
    def reduce_scatter(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[False] = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar]: ...
    @overload
    def reduce_scatter(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: Literal[True],
        timeout: float | None = None,
        priority: int = 0,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def reduce_scatter(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Array[Scalar] | Work[Array[Scalar]]: ...
    def reduce_scatter(
        self,
        array: Array[Scalar],
        op: Operation = "sum",
        *,
        out: Array[Scalar] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Fold ``array`` over all ranks and give rank ``i`` the ``i``-th of ``size`` equal parts.

        Args:
            array: shape ``(size * n, ...)``.
            out: shape ``(n, ...)``; made if it is not given.
        """
        kind = self._folding("reduce_scatter", array, op)
        if array.ndim == 0 or array.shape[0] % self.size:
            raise ValueError(f"reduce_scatter: the first length of {array.shape} has to be a multiple of the {self.size} ranks")
        if out is None:
            out = new_array("reduce_scatter", (array.shape[0] // self.size, *array.shape[1:]), array.dtype)
        same_size("reduce_scatter", array, out, array.size // self.size)
        return self._run(kind, out.size, 0, array, out, async_op, timeout, priority)

    def _folding(self, name: str, array: Array[Any], op: Operation) -> Kind:
        """The kind of a call that folds ``array``."""
        dtype = fold_type(name, array, op)
        try:
            return kind_of(name, dtype, op)
        except (TypeError, ValueError):
            raise wrong_op(f"{name} on rank {self.rank}", op) from None
