"""Allreduce and reducescatter of torch tensors; with gradients, unless they are asynchronous or in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...compression import Residuals
from ...torch.tensors import contiguous, like, or_lacking
from ..common.calls import is_grouped, named, operation_of
from ..common.handles import Operand, reduction, start, synchronize
from ..common.operations import Average, ReduceOp, Sum, chosen_op
from ..common.process_sets import ProcessSet, global_process_set, member_of
from .compression import Compression, Compressor, codec_of
from .moves import allgather_async, gather_all
from .submission import Tensors, operand_of, tensor_of, tensors_of, waited

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
    """How a call treats its tensors."""

    call: str
    name: str | None
    op: ReduceOp
    prescale: float
    postscale: float
    process_set: ProcessSet
    compression: Compressors = Compression.none
    residuals: Residuals | None = None

    def begin(self, tensors: Sequence[torch.Tensor]) -> int:
        """Begin to reduce one tensor, or several as a group, and return the handle. In a reducescatter each rank keeps a
        part."""
        more = reduction(self.call, self.op, self.prescale, self.postscale, self.process_set)
        return start(self.process_set, self.call, self.name, list(map(self._operand, tensors)), residuals=self.residuals, **more)

    def _operand(self, tensor: torch.Tensor) -> Operand:
        source = tensor if self.call.endswith("_") else tensor.detach()
        if operation_of(self.call) == "reducescatter":
            return operand_of(self.call, source, None)
        output = source if self.call.endswith("_") else like(source)
        return operand_of(self.call, source, output, codec=codec_of(self.compression, tensor, self.op))


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
        average: the older form of ``op``: ``Average`` or ``Sum``.
        name: identifies the tensor, so that ranks can reduce their tensors in different orders.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        prescale_factor: each rank's tensor is multiplied by it first.
        postscale_factor: the result is multiplied by it.
        process_set: the ranks that take part.
        compression: one of the engine's codecs. Horovod's own compressions make another tensor; here the caller applies them.
        residuals: the owner of the error feedback, by default the process set. Without a ``name`` there is no error feedback.
    """
    how = chosen_op(op, average)
    about = _Reduction(call, name, how, prescale_factor, postscale_factor, process_set, compression, residuals)
    return about.begin(tensors_of(call, tensor))


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
    """Reduce ``tensor`` over all ranks, into a new tensor, with the arguments of :func:`allreduce_async`."""
    about = _Reduction("allreduce", name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set, compression)
    return _compressed(_Allreduce, about, tensor)[0]


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce ``tensor`` over all ranks, in place, with the arguments of :func:`allreduce_async`."""
    about = _Reduction("allreduce_", name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set)
    reduced: torch.Tensor = synchronize(about.begin(tensors_of(about.call, tensor)))
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
    """Like :func:`allreduce_async` for several tensors, which are reduced only once all are there."""
    how = chosen_op(op, average)
    about = _Reduction(call, name, how, prescale_factor, postscale_factor, process_set, compression, residuals)
    return about.begin(tensors_of(call, tensors))


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
    """Like :func:`allreduce` for several tensors, which are reduced only once all are there."""
    about = _Reduction(
        "grouped_allreduce", name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set, compression
    )
    return _compressed(_Allreduce, about, tensors)


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
    about = _Reduction("grouped_allreduce_", name, chosen_op(op, average, 3), prescale_factor, postscale_factor, process_set)
    reduced: tuple[torch.Tensor, ...] = synchronize(about.begin(tensors_of(about.call, tensors)))
    return reduced


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Begin to reduce a sparse tensor, and return a function that waits for the result: all ranks' entries, not merged.

    Raises:
        ValueError: the tensor is dense, or ``op`` is neither ``Average`` nor ``Sum``.
    """
    call = "sparse_allreduce_async"
    if not tensor_of(call, tensor).is_sparse:
        raise ValueError(f"{call}: the tensor is {tensor.layout}, not sparse; use allreduce_async, or pass tensor.to_sparse()")
    if ReduceOp(op) not in (Average, Sum):
        raise ValueError(
            f"{call}: op is {ReduceOp(op).name.title()}; pass Average or Sum, or tensor.to_dense() to allreduce_async"
        )
    indices = allgather_async(contiguous(tensor._indices().transpose(0, 1)), f"{name}.indices", process_set)
    values = allgather_async(contiguous(tensor._values()), f"{name}.values", process_set)

    def result() -> torch.Tensor:
        entries, places = synchronize(values), synchronize(indices)
        if op == Average:
            entries = entries / len(member_of(process_set, call).ranks)
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
    """Begin to reduce ``tensor`` and give each rank a part of the result, and return a handle.

    The first dimension is divided; if that is uneven, the first ranks get one row more.
    """
    about = _Reduction("reducescatter_async", name, ReduceOp(op), prescale_factor, postscale_factor, process_set)
    return about.begin(tensors_of(about.call, tensor))


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
    about = _Reduction("reducescatter", name, ReduceOp(op), prescale_factor, postscale_factor, process_set, compression)
    return _compressed(_Reducescatter, about, tensor)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like :func:`reducescatter_async` for several tensors, which are reduced only once all are there."""
    about = _Reduction("grouped_reducescatter_async", name, ReduceOp(op), prescale_factor, postscale_factor, process_set)
    return about.begin(tensors_of(about.call, tensors))


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
    about = _Reduction("grouped_reducescatter", name, ReduceOp(op), prescale_factor, postscale_factor, process_set, compression)
    return _compressed(_Reducescatter, about, tensors)


def _compressed(function: Any, about: _Reduction, tensors: Tensors) -> list[torch.Tensor]:
    """Make a call with gradients on tensors that are compressed before it and decompressed after it."""
    compression = about.compression
    narrow = [compression.compress(tensor) for tensor in tensors_of(about.call, tensors)]
    if not narrow:
        return list(synchronize(about.begin(())))
    reduced = function.apply(about, *(tensor for tensor, _ in narrow))
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, narrow, strict=True)]


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    @staticmethod
    def forward(ctx: Any, about: _Reduction, *tensors: torch.Tensor) -> Any:
        ctx.about = about
        return waited(about.call, about.begin(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        held = [contiguous(gradient) for gradient in gradients]
        again = replace(ctx.about, name=None, compression=Compression.none)
        return (None, *_Allreduce.apply(again, *held))


class _Reducescatter(torch.autograd.Function):
    """The gradients of all parts make up the whole tensor's; a sum's is as if each rank had summed the ranks' losses."""

    @staticmethod
    def forward(ctx: Any, about: _Reduction, *tensors: torch.Tensor) -> Any:
        codec = getattr(about.compression, "codec", None)
        if codec is not None:
            raise ValueError(f"{about.call} cannot use a codec, so {codec} cannot compress it; use Compression.fp16 or bf16")
        ctx.about = about
        return waited(about.call, about.begin(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        about: _Reduction = ctx.about
        ranks = len(member_of(about.process_set, about.call).ranks) if about.op == Sum else 1
        factor = about.prescale * about.postscale * ranks

        def scaled(gradient: torch.Tensor) -> torch.Tensor:
            return contiguous(gradient) if factor == 1 else or_lacking(lambda: gradient * factor, gradient, gradient.dtype)

        call = "grouped_allgather" if is_grouped(about.call) else "allgather"
        return (None, *gather_all(call, list(map(scaled, gradients)), about.process_set))
