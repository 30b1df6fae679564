"""Allreduce and reducescatter of torch tensors; with gradients, unless they are asynchronous or in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compression import Residuals
from ...torch.tensors import contiguous, like, or_lacking
from ..common.handles import reduction, reduction_to_parts, start, start_group, synchronize
from ..common.operations import Average, ReduceOp, Sum, chosen_op
from ..common.process_sets import ProcessSet, global_process_set, member_of
from .compression import Compression, Compressor, codec_of
from .moves import allgather, allgather_async, grouped_allgather
from .submission import fold_part

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
]

Compressors = type[Compressor]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Compressors = Compression.none,
    residuals: Residuals | None = None,
) -> int:
    """Begin to reduce ``tensor`` over all ranks, and return a handle for ``synchronize``, which returns a new tensor.

    Args:
        average: the older way to say ``op``: ``Average`` or ``Sum``.
        name: which tensor it is; ranks may reduce their tensors in different orders.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        prescale_factor: each rank's tensor is multiplied by it first.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
        compression: one of the engine's codecs. Horovod's own make another tensor, which is for the caller to do here.
        residuals: who keeps what the codec loses; the process set does if it is ``None``. Without a ``name`` nobody does.
    """
    how = chosen_op(op, average)
    more = reduction(how, prescale_factor, postscale_factor, process_set)
    tensor = tensor.detach()
    part = fold_part(tensor, like(tensor), codec_of(compression, tensor, how))
    return start(process_set, "allreduce", name, part, residuals=residuals, **more)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Compressors = Compression.none,
    residuals: Residuals | None = None,
) -> int:
    """Like :func:`allreduce_async`, in place."""
    how = chosen_op(op, average)
    more = reduction(how, prescale_factor, postscale_factor, process_set)
    part = fold_part(tensor, tensor, codec_of(compression, tensor, how))
    return start(process_set, "allreduce", name, part, residuals=residuals, **more)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks, into a new tensor; the arguments are those of :func:`allreduce_async`."""
    narrow, told = compression.compress(tensor)
    how = chosen_op(op, average)
    about = (name, how, prescale_factor, postscale_factor, process_set, compression)
    reduced = _Allreduce.apply(about, narrow)
    return compression.decompress(reduced, told)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks, in place; the arguments are those of :func:`allreduce_async`."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(handle)
    return reduced


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Compressors = Compression.none,
    residuals: Residuals | None = None,
) -> int:
    """Like :func:`allreduce_async` for several tensors, none of which is reduced before all are there."""
    how = chosen_op(op, average)
    more = reduction(how, prescale_factor, postscale_factor, process_set)
    held = [tensor.detach() for tensor in tensors]
    parts = [fold_part(each, like(each), codec_of(compression, each, how)) for each in held]
    return start_group(process_set, "allreduce", name, parts, residuals=residuals, **more)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    compression: Compressors = Compression.none,
    residuals: Residuals | None = None,
) -> int:
    """Like :func:`grouped_allreduce_async`, in place."""
    how = chosen_op(op, average)
    more = reduction(how, prescale_factor, postscale_factor, process_set)
    parts = [fold_part(each, each, codec_of(compression, each, how)) for each in tensors]
    return start_group(process_set, "allreduce", name, parts, residuals=residuals, **more)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Like :func:`allreduce` for several tensors, none of which is reduced before all are there."""
    narrow = [compression.compress(tensor) for tensor in tensors]
    about = (name, chosen_op(op, average), prescale_factor, postscale_factor, process_set, compression)
    reduced = _GroupedAllreduce.apply(about, *(tensor for tensor, _ in narrow))
    return [compression.decompress(tensor, told) for tensor, (_, told) in zip(reduced, narrow, strict=True)]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Like :func:`grouped_allreduce`, in place."""
    handle = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    reduced: tuple[torch.Tensor, ...] = synchronize(handle)
    return reduced


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse tensor, and return a function that waits for the result: all ranks' entries, not merged."""
    indices = allgather_async(contiguous(tensor._indices().transpose(0, 1)), f"{name}.indices", process_set)
    values = allgather_async(contiguous(tensor._values()), f"{name}.values", process_set)

    def result() -> torch.Tensor:
        entries, places = synchronize(values), synchronize(indices)
        if op == Average:
            entries = entries / len(member_of(process_set).ranks)
        return torch.sparse_coo_tensor(places.transpose(0, 1), entries, tensor.size(), check_invariants=False)

    return result


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin to reduce ``tensor`` and to give each rank a part of it, and return a handle.

    The parts are of the first dimension; if it does not divide, the first ranks get one more.
    """
    more = reduction_to_parts(op, prescale_factor, postscale_factor, process_set)
    return start(process_set, "reducescatter", name, fold_part(tensor.detach(), None), **more)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce ``tensor`` and return this rank's part; see :func:`reducescatter_async`."""
    _check_whole(compression)
    narrow, told = compression.compress(tensor)
    about = (name, ReduceOp(op), process_set, prescale_factor, postscale_factor)
    (reduced,) = _Reducescatter.apply(about, False, narrow)
    return compression.decompress(reduced, told)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like :func:`reducescatter_async` for several tensors, none of which is reduced before all are there."""
    more = reduction_to_parts(op, prescale_factor, postscale_factor, process_set)
    return start_group(process_set, "reducescatter", name, [fold_part(each.detach(), None) for each in tensors], **more)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressors = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like :func:`reducescatter` for several tensors."""
    _check_whole(compression)
    narrow = [compression.compress(tensor) for tensor in tensors]
    about = (name, ReduceOp(op), process_set, prescale_factor, postscale_factor)
    reduced = _Reducescatter.apply(about, True, *(tensor for tensor, _ in narrow))
    return [compression.decompress(tensor, told) for tensor, (_, told) in zip(reduced, narrow, strict=True)]


def _check_whole(compression: Compressors) -> None:
    """Refuse a codec of the engine.

    Raises:
        ValueError: it is one.
    """
    codec = getattr(compression, "codec", None)
    if codec is not None:
        raise ValueError(f"reducescatter has no coded form, so {codec} cannot compress it; use Compression.fp16 or bf16")


def _scaled(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    return or_lacking(lambda: gradient * factor, gradient, gradient.dtype)


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, about: Any, tensor: torch.Tensor) -> Any:
        ctx.about = about
        name, op, prescale, postscale, process_set, compression = about
        more = (prescale, postscale, process_set)
        return synchronize(allreduce_async(tensor, None, name, op, *more, compression=compression))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, op, prescale, postscale, process_set, _ = ctx.about
        (gradient,) = gradients
        reduced = allreduce(
            contiguous(gradient),
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return None, reduced


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, about: Any, *tensors: torch.Tensor) -> Any:
        ctx.about = about
        name, op, prescale, postscale, process_set, compression = about
        more = (prescale, postscale, process_set)
        return synchronize(grouped_allreduce_async(tensors, None, name, op, *more, compression=compression))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, op, prescale, postscale, process_set, _ = ctx.about
        reduced = grouped_allreduce(
            [contiguous(gradient) for gradient in gradients],
            op=op,
            prescale_factor=prescale,
            postscale_factor=postscale,
            process_set=process_set,
        )
        return (None, *reduced)


class _Reducescatter(torch.autograd.Function):
    """The gradients of all parts are that of the whole; a sum's is as if each rank had summed the ranks' losses."""

    @staticmethod
    def forward(ctx: Any, about: Any, grouped: bool, *tensors: torch.Tensor) -> Any:
        ctx.about, ctx.grouped = about, grouped
        name, op, process_set, prescale, postscale = about
        if grouped:
            return synchronize(grouped_reducescatter_async(tensors, name, op, process_set, prescale, postscale))
        return (synchronize(reducescatter_async(tensors[0], name, op, process_set, prescale, postscale)),)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, op, process_set, prescale, postscale = ctx.about
        factor = prescale * postscale * (len(member_of(process_set).ranks) if op == Sum else 1)
        scaled = [contiguous(gradient) if factor == 1 else _scaled(gradient, factor) for gradient in gradients]
        if ctx.grouped:
            return (None, None, *grouped_allgather(scaled, process_set=process_set))
        return None, None, allgather(scaled[0], process_set=process_set)
