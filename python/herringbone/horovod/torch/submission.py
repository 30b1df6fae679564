"""How torch's tensors are passed to the controller, and how its results become tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...arguments import several
from ...torch.tensors import FOLDED, check_cpu, move_type
from ..common.calls import is_grouped, moved_shape, operation_of
from ..common.handles import Finish, Operand, Span, synchronize

__all__ = ["Tensors", "gathered", "operand_of", "span_of", "tensor_of", "tensors_of", "waited"]

Tensors = torch.Tensor | Sequence[torch.Tensor]
"""One tensor, or a group's."""


def tensor_of(call: str, value: Any) -> torch.Tensor:
    """``value``, if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{call} takes torch tensors, not {type(value).__name__}; herringbone.horovod.numpy takes arrays")
    return value


def tensors_of(call: str, value: Tensors) -> list[torch.Tensor]:
    """The tensors of a call, as a list: a group's tensors, or the only one."""
    return [tensor_of(call, each) for each in (several(call, "tensors", value) if is_grouped(call) else [value])]


def waited(call: str, handle: int) -> tuple[torch.Tensor, ...]:
    """The results of a group, or the only one; autograd takes both as a tuple."""
    result = synchronize(handle)
    return result if is_grouped(call) else (result,)


def span_of(tensor: torch.Tensor) -> Span:
    """The tensor's memory."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def operand_of(
    call: str, tensor: torch.Tensor, output: torch.Tensor | None, finish: Finish | None = None, codec: str = "none"
) -> Operand:
    """A tensor of a call, with its result in ``output`` if its size is known. Tensors that are sent unchanged can have any
    type.

    Raises:
        ValueError: its type cannot be reduced, it is not contiguous, or it has no rows and the call joins rows.
    """
    check_cpu(tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"{call}: Tensor is required to be contiguous; pass tensor.contiguous().")
    if operation_of(call) in ("allreduce", "reducescatter") and tensor.dtype not in FOLDED:
        raise ValueError(f"{call}: Tensor type {tensor.type()} is not supported.")
    dtype, scale = move_type(tensor)
    if finish is None:
        finish = gathered(tensor) if output is None else lambda _: output
    target = None if output is None else span_of(output)
    shape = moved_shape(call, tuple(tensor.shape), scale)
    return Operand(span_of(tensor), target, dtype, shape, finish, (tensor, output), codec)


def gathered(like: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """A function that makes a tensor with the type of ``like`` from a result whose size only the controller knew."""
    dtype, rows = like.dtype, tuple(like.shape[1:])

    def finish(result: Any) -> torch.Tensor:
        data, shape = result.data, tuple(result.shape)
        first = shape[0] if shape else 1
        if data is None or len(data) == 0:
            return torch.empty((first, *rows), dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(first, *rows)

    return finish
