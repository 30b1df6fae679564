"""How torch's tensors are put to the controller, and what is made of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...arguments import several
from ...torch.tensors import FOLDED, check_cpu, move_type
from ..common.calls import is_grouped, moved_shape
from ..common.handles import Finish, Operand, Span, synchronize

__all__ = ["Tensors", "fold_operand", "gathered", "move_operand", "span_of", "tensor_of", "tensors_of", "waited"]

Tensors = torch.Tensor | Sequence[torch.Tensor]
"""One, or a group's."""


def tensor_of(call: str, value: Any) -> torch.Tensor:
    """``value``, if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{call} takes torch tensors, not {type(value).__name__}; herringbone.horovod.numpy takes arrays")
    return value


def tensors_of(call: str, value: Tensors) -> list[torch.Tensor]:
    """The tensors that a call is given: those of a group, or the only one."""
    return [tensor_of(call, each) for each in (several(call, "tensors", value) if is_grouped(call) else [value])]


def waited(call: str, handle: int) -> tuple[torch.Tensor, ...]:
    """The results of a group, or the only one; autograd takes both as a tuple."""
    result = synchronize(handle)
    return result if is_grouped(call) else (result,)


def span_of(tensor: torch.Tensor) -> Span:
    """Where the tensor's memory is."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def fold_operand(call: str, tensor: torch.Tensor, output: torch.Tensor | None, codec: str = "none") -> Operand:
    """A tensor that is reduced, into ``output`` if the size of the result is known, with messages of this codec.

    Raises:
        ValueError: its type is not reduced, or its memory is not in order.
    """
    _check(call, tensor)
    dtype = FOLDED.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"{call}: Tensor type {tensor.type()} is not supported.")
    finish = _given(output) if output is not None else gathered(tensor)
    target = None if output is None else span_of(output)
    return Operand(span_of(tensor), target, dtype, tuple(tensor.shape), finish, (tensor, output), codec)


def move_operand(call: str, tensor: torch.Tensor, output: torch.Tensor | None, finish: Finish | None = None) -> Operand:
    """A tensor that travels unchanged; a type that the engine does not know travels as bytes.

    Raises:
        ValueError: its memory is not in order, or it has no rows, and the call joins rows.
    """
    _check(call, tensor)
    dtype, scale = move_type(tensor)
    shape = moved_shape(call, tuple(tensor.shape), scale)
    if finish is None:
        finish = _given(output) if output is not None else gathered(tensor)
    target = None if output is None else span_of(output)
    return Operand(span_of(tensor), target, dtype, shape, finish, (tensor, output))


def gathered(like: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    """What makes a tensor of the type of ``like`` of a result whose size only the controller knew."""
    dtype, rows = like.dtype, tuple(like.shape[1:])

    def finish(result: Any) -> torch.Tensor:
        data, shape = result.data, tuple(result.shape)
        first = shape[0] if shape else 1
        if data is None or len(data) == 0:
            return torch.empty((first, *rows), dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(first, *rows)

    return finish


def _given(output: torch.Tensor) -> Callable[[Any], torch.Tensor]:
    return lambda _: output


def _check(call: str, tensor: torch.Tensor) -> None:
    check_cpu(tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"{call}: Tensor is required to be contiguous; pass tensor.contiguous().")
