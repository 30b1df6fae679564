"""Collectives on numpy arrays, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...arguments import level, several
from ...arrays import copied, fold_type, move_type, new_array, readable, refuse_masked, writable
from ...errors import UnsupportedError
from ..common.calls import is_grouped, moved_shape, named, operation_of
from ..common.handles import Finish, Operand, reduction, start, synchronize
from ..common.operations import Average, ReduceOp, chosen_op
from ..common.process_sets import ProcessSet, checked_splits, global_process_set, index_in

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]

Array = np.ndarray[Any, np.dtype[Any]]


def _allreduce(
    call: str,
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    """Reduce ``array`` over all ranks, into a new array.

    Args:
        average: the older form of ``op``: ``Average`` or ``Sum``.
        name: identifies the array, so that ranks can reduce their arrays in different orders.
        priority: ready arrays of a higher priority are reduced first.
        prescale_factor: each rank's array is multiplied by it first.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
    """
    more = reduction(call, chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _run(call, [array], name, process_set, priority=priority, **more)[0]


allreduce = named("allreduce", _allreduce)
allreduce_ = named("allreduce_", _allreduce, "Like :func:`allreduce`, in place.")


def _grouped_allreduce(
    call: str,
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Array]:
    """Like :func:`allreduce` for several arrays, which are reduced only once all are there."""
    more = reduction(call, chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _run(call, arrays, name, process_set, priority=priority, **more)


grouped_allreduce = named("grouped_allreduce", _grouped_allreduce)
grouped_allreduce_ = named("grouped_allreduce_", _grouped_allreduce, "Like :func:`grouped_allreduce`, in place.")


def allgather(array: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set) -> Array:
    """All ranks' arrays, concatenated along the first dimension, in which they can differ."""
    return _run("allgather", [array], name, process_set, priority=priority)[0]


def grouped_allgather(
    arrays: Sequence[Array],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Like :func:`allgather` for several arrays, which are sent only once all are there."""
    return _run("grouped_allgather", arrays, name, process_set, priority=priority)


def _broadcast(
    call: str,
    array: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The array of ``root_rank``, of the shape and type of ``array``, on every rank."""
    root = index_in(process_set, root_rank, call)
    return _run(call, [array], name, process_set, root=root, priority=priority)[0]


broadcast = named("broadcast", _broadcast)
broadcast_ = named("broadcast_", _broadcast, "Give every rank the array of ``root_rank``, in place.")


def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The parts of all ranks' arrays for this rank; with ``splits`` also how many rows came from each rank.

    Args:
        splits: how many rows each rank gets, in the order of ranks; by default equal parts.
    """
    refuse_masked("alltoall", array)
    array = np.asarray(array)
    lengths = checked_splits(process_set, splits, len(array) if array.ndim else 1)
    rows = array[: sum(lengths)] if array.ndim else array
    output, received = _run("alltoall", [rows], name, process_set, splits=lengths, priority=priority)[0]
    return output if splits is None else (output, received)


def reducescatter(
    array: Array,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce ``array`` and return this rank's part of the first dimension; the first ranks can have one row more."""
    more = reduction("reducescatter", ReduceOp(op), prescale_factor, postscale_factor, process_set)
    return _run("reducescatter", [array], name, process_set, priority=priority, **more)[0]


def grouped_reducescatter(
    arrays: Sequence[Array],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Like :func:`reducescatter` for several arrays, which are reduced only once all are there."""
    more = reduction("grouped_reducescatter", ReduceOp(op), prescale_factor, postscale_factor, process_set)
    return _run("grouped_reducescatter", arrays, name, process_set, priority=priority, **more)


def _run(call: str, arrays: Sequence[Array], name: str | None, process_set: ProcessSet, **more: Any) -> list[Array]:
    """Make a call, which its name describes: ``grouped_`` takes several arrays, and a trailing ``_`` means in place.

    Args:
        more: as for the controller's ``submit``; reductions have an ``op``.
    """
    grouped, in_place = is_grouped(call), call.endswith("_")
    of_same_size = operation_of(call) in ("allreduce", "broadcast")

    def operand(array: Array) -> Operand:
        refuse_masked(call, array)
        if not in_place:
            array = np.asarray(array)
            array = array if array.flags.c_contiguous else copied(call, array)
        dtype, scale = (_folded(call, array), 1) if "op" in more else move_type(call, array)
        shape = moved_shape(call, array.shape, scale)
        output = array if in_place else new_array(call, array.shape, array.dtype) if of_same_size else None
        target = None if output is None else writable(call, output)
        return Operand(readable(call, array), target, dtype, shape, _finish(array, output), (array, output))

    more["priority"] = level(call, "priority", more["priority"])
    operands = [operand(array) for array in (several(call, "arrays", arrays) if grouped else arrays)]
    result = synchronize(start(process_set, call, name, operands, **more))
    return list(result) if grouped else [result]


def _folded(call: str, array: Array) -> str:
    try:
        return fold_type(call, array, "sum")
    except UnsupportedError as error:
        raise ValueError(f"{call}: Tensor type {array.dtype} is not supported.") from error


def _finish(array: Array, output: Array | None) -> Finish:
    """A function that turns the result into the caller's array; an alltoall returns the received lengths, too."""
    kind, rows = array.dtype, array.shape[1:]

    def finish(result: Any) -> Any:
        if output is not None:
            return output
        whole = np.frombuffer(result.data or bytearray(), kind).reshape(next(iter(result.shape), 1), *rows)
        received = result.received_splits
        return whole if received is None else (whole, np.array(list(received), np.int32))

    return finish
