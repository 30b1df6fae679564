"""Allreduce and reducescatter of torch tensors; with gradients, unless they are asynchronous or in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from .submission import Tensors, each, fold_part, one_or_all, tensor_of, waited

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


@dataclass(frozen=True)
class _Reduction:
    """What is done with the tensors of a call."""

    name: str | None
    op: ReduceOp
    prescale: float
    postscale: float
    process_set: ProcessSet
    compression: Compressors = Compression.none
    residuals: Residuals | None = None

    def begin(self, tensors: Tensors, in_place: bool) -> int:
        """Begin to reduce one tensor, or several as a group, and return the handle."""
        more = reduction(self.op, self.prescale, self.postscale, self.process_set)

        def part(tensor: torch.Tensor) -> Part:
            source = tensor if in_place else tensor.detach()
            codec = codec_of(self.compression, tensor, self.op)
            return fold_part(source, tensor if in_place else like(source), codec)

        return start(self.process_set, "allreduce", self.name, each("allreduce", tensors, part), residuals=self.residuals, **more)

    def begin_parts(self, tensors: Tensors) -> int:
        """The same for a reduction of which each rank keeps a part."""
        more = reduction_to_parts(self.op, self.prescale, self.postscale, self.process_set)
        parts = each("reducescatter", tensors, lambda tensor: fold_part(tensor.detach(), None))
        return start(self.process_set, "reducescatter", self.name, parts, **more)


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
    how = chosen_op(op, average)
    about = _Reduction(name, how, prescale_factor, postscale_factor, process_set, compression, residuals)
    return about.begin(tensor, call.endswith("_"))


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
    about = _Reduction(name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set, compression)
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
    about = _Reduction(name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(about.begin(tensor, True))
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
    how = chosen_op(op, average)
    about = _Reduction(name, how, prescale_factor, postscale_factor, process_set, compression, residuals)
    return about.begin(tensors, call.endswith("_"))


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
    about = _Reduction(name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set, compression)
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
    about = _Reduction(name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set)
    reduced: tuple[torch.Tensor, ...] = synchronize(about.begin(tensors, True))
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
    return _Reduction(name, ReduceOp(op), prescale_factor, postscale_factor, process_set).begin_parts(tensor)


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
    about = _Reduction(name, ReduceOp(op), prescale_factor, postscale_factor, process_set, compression)
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
    return _Reduction(name, ReduceOp(op), prescale_factor, postscale_factor, process_set).begin_parts(tensors)


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
    about = _Reduction(name, ReduceOp(op), prescale_factor, postscale_factor, process_set, compression)
    return _compressed(_Reducescatter, about, True, tensors)


def _compressed(call: Any, about: _Reduction, grouped: bool, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Make a call with gradients on tensors that are compressed before it and decompressed after it."""
    compression = about.compression
    narrow = [compression.compress(tensor_of(call.operation, tensor)) for tensor in tensors]
    reduced = call.apply(about, grouped, *(tensor for tensor, _ in narrow))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, narrow, strict=True)]


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    operation = "allreduce"

    @staticmethod
    def forward(ctx: Any, about: _Reduction, grouped: bool, *tensors: torch.Tensor) -> Any:
        ctx.about, ctx.grouped = about, grouped
        return waited(grouped, about.begin(one_or_all(grouped, tensors), False))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        held = [contiguous(gradient) for gradient in gradients]
        again = replace(ctx.about, name=None, compression=Compression.none)
        return (None, None, *_Allreduce.apply(again, ctx.grouped, *held))


class _Reducescatter(torch.autograd.Function):
    """The gradients of all parts are that of the whole; a sum's is as if each rank had summed the ranks' losses."""

    operation = "reducescatter"

    @staticmethod
    def forward(ctx: Any, about: _Reduction, grouped: bool, *tensors: torch.Tensor) -> Any:
        codec = getattr(about.compression, "codec", None)
        if codec is not None:
            raise ValueError(f"reducescatter has no coded form, so {codec} cannot compress it; use Compression.fp16 or bf16")
        ctx.about, ctx.grouped = about, grouped
        return waited(grouped, about.begin_parts(one_or_all(grouped, tensors)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        about: _Reduction = ctx.about
        ranks = len(member_of(about.process_set).ranks) if about.op == Sum else 1
        factor = about.prescale * about.postscale * ranks

        def scaled(gradient: torch.Tensor) -> torch.Tensor:
            return contiguous(gradient) if factor == 1 else or_lacking(lambda: gradient * factor, gradient, gradient.dtype)

        return (None, None, *gather_all(list(map(scaled, gradients)), ctx.grouped, about.process_set))
