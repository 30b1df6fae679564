"""Allreduce and reducescatter of torch tensors; with gradients, unless they are asynchronous or in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...compression import Residuals
from ...torch.tensors import contiguous, like, or_lacking
from ..common.calls import named
from ..common.handles import Part, reduction, reduction_to_parts, start, synchronize
from ..common.operations import Average, ReduceOp, Sum, chosen_op
from ..common.process_sets import ProcessSet, global_process_set, member_of
from .compression import Compression, Compressor, codec_of
from .moves import allgather_async, gather_all
from .submission import Tensors, each, fold_part, one_or_all, waited

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
Scales = tuple[float, float]
"""What tensors are multiplied by before, and results."""
About = tuple[str | None, ReduceOp, Scales, ProcessSet, Compressors]
"""The name, and how tensors are reduced."""


def _allreduce_async(
    call: str,
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
    how, scales = chosen_op(op, average), (prescale_factor, postscale_factor)
    return _begin(tensor, call.endswith("_"), name, how, scales, process_set, compression, residuals)


allreduce_async = named("allreduce_async", _allreduce_async)
allreduce_async_ = named("allreduce_async_", _allreduce_async, "Like :func:`allreduce_async`, in place.")


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
    about = (name, chosen_op(op, average, 3), (prescale_factor, postscale_factor), process_set, compression)
    return _compressed(_Allreduce, about, False, [tensor])[0]


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
    how, scales = chosen_op(op, average, 3), (prescale_factor, postscale_factor)
    reduced: torch.Tensor = synchronize(_begin(tensor, True, name, how, scales, process_set))
    return reduced


def _grouped_allreduce_async(
    call: str,
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
    how, scales = chosen_op(op, average), (prescale_factor, postscale_factor)
    return _begin(tensors, call.endswith("_"), name, how, scales, process_set, compression, residuals)


grouped_allreduce_async = named("grouped_allreduce_async", _grouped_allreduce_async)
grouped_allreduce_async_ = named(
    "grouped_allreduce_async_", _grouped_allreduce_async, "Like :func:`grouped_allreduce_async`, in place."
)


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
    about = (name, chosen_op(op, average, 3), (prescale_factor, postscale_factor), process_set, compression)
    return _compressed(_Allreduce, about, True, tensors)


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
    how, scales = chosen_op(op, average, 3), (prescale_factor, postscale_factor)
    reduced: tuple[torch.Tensor, ...] = synchronize(_begin(tensors, True, name, how, scales, process_set))
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
    return _begin_parts(tensor, name, ReduceOp(op), (prescale_factor, postscale_factor), process_set)


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
    about = (name, ReduceOp(op), (prescale_factor, postscale_factor), process_set, compression)
    return _compressed(_Reducescatter, about, False, [tensor])[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like :func:`reducescatter_async` for several tensors, none of which is reduced before all are there."""
    return _begin_parts(tensors, name, ReduceOp(op), (prescale_factor, postscale_factor), process_set)


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
    about = (name, ReduceOp(op), (prescale_factor, postscale_factor), process_set, compression)
    return _compressed(_Reducescatter, about, True, tensors)


def _begin(
    tensors: Tensors,
    in_place: bool,
    name: str | None,
    how: ReduceOp,
    scales: Scales,
    process_set: ProcessSet,
    compression: Compressors = Compression.none,
    residuals: Residuals | None = None,
) -> int:
    """Begin to reduce one tensor, or several as a group, and return the handle."""
    more = reduction(how, *scales, process_set)

    def part(tensor: torch.Tensor) -> Part:
        source = tensor if in_place else tensor.detach()
        return fold_part(source, tensor if in_place else like(source), codec_of(compression, tensor, how))

    return start(process_set, "allreduce", name, each(tensors, part), residuals=residuals, **more)


def _begin_parts(tensors: Tensors, name: str | None, how: ReduceOp, scales: Scales, process_set: ProcessSet) -> int:
    """The same for a reduction of which each rank keeps a part."""
    more = reduction_to_parts(how, *scales, process_set)
    return start(process_set, "reducescatter", name, each(tensors, lambda tensor: fold_part(tensor.detach(), None)), **more)


def _compressed(call: Any, about: About, grouped: bool, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Make a call with gradients on tensors that are compressed before it and decompressed after it."""
    compression = about[-1]
    narrow = [compression.compress(tensor) for tensor in tensors]
    reduced = call.apply(about, grouped, *(tensor for tensor, _ in narrow))
    return [compression.decompress(tensor, told) for tensor, (_, told) in zip(reduced, narrow, strict=True)]


def _scaled(gradient: torch.Tensor, factor: float) -> torch.Tensor:
    return or_lacking(lambda: gradient * factor, gradient, gradient.dtype)


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, about: About, grouped: bool, *tensors: torch.Tensor) -> Any:
        ctx.about, ctx.grouped = about, grouped
        name, how, scales, process_set, compression = about
        return waited(grouped, _begin(one_or_all(grouped, tensors), False, name, how, scales, process_set, compression))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, how, scales, process_set, _ = ctx.about
        held = [contiguous(gradient) for gradient in gradients]
        again = (None, how, scales, process_set, Compression.none)
        return (None, None, *_Allreduce.apply(again, ctx.grouped, *held))


class _Reducescatter(torch.autograd.Function):
    """The gradients of all parts are that of the whole; a sum's is as if each rank had summed the ranks' losses."""

    @staticmethod
    def forward(ctx: Any, about: About, grouped: bool, *tensors: torch.Tensor) -> Any:
        name, how, scales, process_set, compression = about
        codec = getattr(compression, "codec", None)
        if codec is not None:
            raise ValueError(f"reducescatter has no coded form, so {codec} cannot compress it; use Compression.fp16 or bf16")
        ctx.about, ctx.grouped = about, grouped
        return waited(grouped, _begin_parts(one_or_all(grouped, tensors), name, how, scales, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _, how, (prescale, postscale), process_set, _ = ctx.about
        factor = prescale * postscale * (len(member_of(process_set).ranks) if how == Sum else 1)
        scaled = [contiguous(gradient) if factor == 1 else _scaled(gradient, factor) for gradient in gradients]
        return (None, None, *gather_all(scaled, ctx.grouped, process_set))
