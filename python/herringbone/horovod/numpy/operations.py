"""Collectives on numpy arrays, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...arrays import copied, fold_type, move_type, new_array, readable, writable
from ...errors import UnsupportedError
from ..common.handles import Part, reduction, reduction_to_parts, start, start_group, synchronize
from ..common.operations import Average, chosen_op
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


def allreduce(
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
        average: the older way to say ``op``: ``Average`` or ``Sum``.
        name: which array it is; ranks may reduce their arrays in different orders.
        priority: of arrays that are ready, those of a higher one go first.
        prescale_factor: each rank's array is multiplied by it first.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
    """
    array = _in_order(array)
    more = reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    part = _folded(array, new_array(array.shape, array.dtype))
    return _one(process_set, "allreduce", name, part, priority=priority, **more)


def allreduce_(
    array: Array,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Array:
    """Like :func:`allreduce`, in place."""
    more = reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    return _one(process_set, "allreduce", name, _folded(array, array), priority=priority, **more)


def grouped_allreduce(
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Array]:
    """Like :func:`allreduce` for several arrays, none of which is reduced before all are there."""
    more = reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    parts = [_folded(held, new_array(held.shape, held.dtype)) for held in map(_in_order, arrays)]
    return _several(process_set, "allreduce", name, parts, priority=priority, **more)


def grouped_allreduce_(
    arrays: Sequence[Array],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Array]:
    """Like :func:`grouped_allreduce`, in place."""
    more = reduction(chosen_op(op, average), prescale_factor, postscale_factor, process_set)
    parts = [_folded(array, array) for array in arrays]
    return _several(process_set, "allreduce", name, parts, priority=priority, **more)


def allgather(
    array: Array, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> Array:
    """All ranks' arrays, concatenated along the first dimension, in which they may differ."""
    return _one(process_set, "allgather", name, _moved(_in_order(array), None), priority=priority)


def grouped_allgather(
    arrays: Sequence[Array],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """Like :func:`allgather` for several arrays, none of which travels before all are there."""
    parts = [_moved(_in_order(array), None) for array in arrays]
    return _several(process_set, "allgather", name, parts, priority=priority)


def broadcast(
    array: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """The array of ``root_rank``, of the shape and type of ``array``, on every rank."""
    array, root = _in_order(array), index_in(process_set, root_rank, "broadcast")
    part = _moved(array, new_array(array.shape, array.dtype))
    return _one(process_set, "broadcast", name, part, root=root, priority=priority)


def broadcast_(
    array: Array,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Give every rank the array of ``root_rank``, in place."""
    root = index_in(process_set, root_rank, "broadcast")
    return _one(process_set, "broadcast", name, _moved(array, array), root=root, priority=priority)


def alltoall(
    array: Array,
    splits: Sequence[int] | Array | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The parts of all ranks' arrays for this rank; with ``splits`` also how many rows came from each rank.

    Args:
        splits: how many rows go to each rank, in their order; equal parts if it is left out.
    """
    array = np.asarray(array)
    lengths = checked_splits(process_set, None if splits is None else list(splits), len(array))
    part = _moved(_in_order(array[: sum(lengths)]), None)
    whole = part.finish

    def finish(result: Any) -> tuple[Array, Array]:
        return whole(result), np.array(list(result.received_splits), np.int32)

    part = replace(part, finish=finish)
    output, received = synchronize(start(process_set, "alltoall", name, part, splits=lengths, priority=priority))
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
    """Reduce ``array`` and return this rank's part of the first dimension; the first ranks may have one row more."""
    more = reduction_to_parts(op, prescale_factor, postscale_factor, process_set)
    return _one(process_set, "reducescatter", name, _folded(_in_order(array), None), priority=priority, **more)


def grouped_reducescatter(
    arrays: Sequence[Array],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """Like :func:`reducescatter` for several arrays, none of which is reduced before all are there."""
    more = reduction_to_parts(op, prescale_factor, postscale_factor, process_set)
    parts = [_folded(_in_order(array), None) for array in arrays]
    return _several(process_set, "reducescatter", name, parts, priority=priority, **more)


def _one(process_set: ProcessSet, operation: str, name: str | None, part: Part, **more: Any) -> Array:
    reduced: Array = synchronize(start(process_set, operation, name, part, **more))
    return reduced


def _several(
    process_set: ProcessSet, operation: str, name: str | None, parts: Sequence[Part], **more: Any
) -> list[Array]:
    return list(synchronize(start_group(process_set, operation, name, parts, **more)))


def _in_order(array: Array) -> Any:
    """The array, or a copy whose memory is its values in order; a number is an array without dimensions."""
    array = np.asarray(array)
    return array if array.flags.c_contiguous else copied(array)


def _folded(array: Array, output: Array | None) -> Part:
    try:
        dtype = fold_type("allreduce", array, "sum")
    except UnsupportedError as error:
        raise ValueError(f"Tensor type {array.dtype} is not supported.") from error
    return _part(array, output, dtype, tuple(array.shape))


def _moved(array: Array, output: Array | None) -> Part:
    dtype, scale = move_type("broadcast", array)
    return _part(array, output, dtype, tuple(array.shape) if scale == 1 else (*array.shape, scale))


def _part(array: Array, output: Array | None, dtype: str, shape: tuple[int, ...]) -> Part:
    kind, rows = array.dtype, array.shape[1:]

    def finish(result: Any) -> Array:
        if output is not None:
            return output
        first = next(iter(result.shape), 1)
        return np.frombuffer(result.data or bytearray(), kind).reshape(first, *rows)

    target = None if output is None else writable("allreduce", output)
    return Part(readable("allreduce", array), target, dtype, shape, finish, (array, output))
