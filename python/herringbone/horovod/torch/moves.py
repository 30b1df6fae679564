"""Allgather, broadcast and alltoall of torch tensors; with gradients, unless they are asynchronous or in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...torch.tensors import check_cpu, contiguous, like
from ..common.calls import named
from ..common.handles import start, synchronize
from ..common.operations import Average
from ..common.process_sets import ProcessSet, checked_splits, global_process_set, index_in, member_of
from ..common.world import required
from .submission import gathered, operand_of, tensor_of, tensors_of, waited

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Begin to concatenate all ranks' tensors along the first dimension, in which they can differ; returns a handle."""
    return _begin_allgather("allgather_async", [tensor_of("allgather_async", tensor)], name, process_set)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """All ranks' tensors, concatenated along the first dimension, in which they can differ."""
    return gather_all("allgather", [tensor_of("allgather", tensor)], process_set, name)[0]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like :func:`allgather_async` for several tensors, which are sent only once all are there."""
    call = "grouped_allgather_async"
    return _begin_allgather(call, tensors_of(call, tensors), name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Like :func:`allgather` for several tensors."""
    return gather_all("grouped_allgather", tensors_of("grouped_allgather", tensors), process_set, name)


def gather_all(
    call: str, tensors: Sequence[torch.Tensor], process_set: ProcessSet, name: str | None = None
) -> list[torch.Tensor]:
    """The same for the tensors of a group, or for the only one."""
    return list(_Allgather.apply(call, name, process_set, *tensors))


def _begin_allgather(call: str, tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> int:
    return start(process_set, call, name, [operand_of(call, each.detach(), None) for each in tensors])


def _broadcast_async(
    call: str, tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Begin to give every rank the tensor of ``root_rank``, in a new tensor; returns a handle."""
    source = tensor_of(call, tensor)
    source = source if call.endswith("_") else source.detach()
    root = index_in(process_set, root_rank, call)
    operand = operand_of(call, source, source if call.endswith("_") else like(source))
    return start(process_set, call, name, [operand], root=root)


broadcast_async = named("broadcast_async", _broadcast_async)
broadcast_async_ = named("broadcast_async_", _broadcast_async, "Like :func:`broadcast_async`, in place.")


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The tensor of ``root_rank``, of the shape and type of ``tensor``, on every rank."""
    received: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return received


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give every rank the tensor of ``root_rank``, in place."""
    received: torch.Tensor = synchronize(_broadcast_async("broadcast_", tensor, root_rank, name, process_set))
    return received


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin to send each rank a part of ``tensor``; returns a handle, whose result is a tensor and the received lengths.

    Args:
        splits: how many rows each rank gets, in the order of ranks; by default equal parts.
    """
    tensor = tensor_of("alltoall", tensor).detach()
    kind = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    lengths = checked_splits(process_set, _lengths(splits), _rows(tensor))
    whole = gathered(tensor)

    def finish(result: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return whole(result), torch.tensor(list(result.received_splits), dtype=kind)

    # Rows that no rank gets stay here.
    operand = operand_of("alltoall", tensor[: sum(lengths)] if tensor.dim() else tensor, None, finish)
    return start(process_set, "alltoall", name, [operand], splits=lengths)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The parts of all ranks' tensors for this rank; with ``splits`` also how many rows came from each rank."""
    return _Alltoall.apply(tensor, splits, name, process_set)


def _rows(tensor: torch.Tensor) -> int:
    """The number of rows of a tensor that can be sent; other tensors, such as nested ones, have none."""
    check_cpu(tensor)
    return tensor.shape[0] if tensor.dim() else 1


def _lengths(splits: torch.Tensor | Sequence[int] | None) -> Sequence[int] | None:
    if not isinstance(splits, torch.Tensor):
        return splits
    if splits.dtype.is_floating_point or splits.dim() != 1:
        text = "alltoall expects `splits` to contain integer elements, one for each worker"
        raise ValueError(f"{text}; this is a tensor of {splits.dtype} and shape {list(splits.shape)}.")
    return [int(length) for length in splits.tolist()]


def _averaged(gradients: Sequence[torch.Tensor], process_set: ProcessSet) -> list[torch.Tensor]:
    held = [contiguous(gradient) for gradient in gradients]
    operands = [operand_of("allreduce", gradient, like(gradient)) for gradient in held]
    return [synchronize(start(process_set, "allreduce", None, [operand], op=Average.native)) for operand in operands]


class _Allgather(torch.autograd.Function):
    """A rank's gradient is its part of the average of the ranks' gradients of the whole."""

    @staticmethod
    def forward(ctx: Any, call: str, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        ctx.lengths = [_rows(tensor) for tensor in tensors]
        return waited(call, _begin_allgather(call, tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.process_set
        averaged = _averaged(gradients, process_set)
        everybody = synchronize(allgather_async(torch.tensor([ctx.lengths]), None, process_set))
        own = member_of(process_set, "allgather").ranks.index(required().rank)
        before = everybody[:own].sum(0).tolist()
        own_parts = [whole.narrow(0, at, length) for whole, at, length in zip(averaged, before, ctx.lengths, strict=True)]
        return (None, None, None, *own_parts)


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the average of all ranks' gradients; the other ranks' tensors get zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(_broadcast_async("broadcast", tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (averaged,) = _averaged(gradients, ctx.process_set)
        return (averaged if required().rank == ctx.root_rank else torch.zeros_like(averaged)), None, None, None


class _Alltoall(torch.autograd.Function):
    """The gradients are sent back the way that the parts came."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.received = process_set, received
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        returned, _ = synchronize(alltoall_async(contiguous(gradient), ctx.received, None, ctx.process_set))
        return returned, None, None, None
