"""How torch's tensors are put to the controller, and what is made of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from ...torch.tensors import FOLDED, check_cpu, move_type
from ..common.handles import Finish, Part, Span, synchronize

__all__ = ["Tensors", "each", "fold_part", "gathered", "move_part", "one_or_all", "span_of", "tensor_of", "waited"]

T = TypeVar("T")

Tensors = torch.Tensor | Sequence[torch.Tensor]
"""One, or a group's."""


def tensor_of(operation: str, value: Any) -> torch.Tensor:
    """``value``, if it is a tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{operation} takes torch tensors, not {type(value).__name__}; herringbone.horovod.numpy takes arrays")
    return value


def each(operation: str, tensors: Tensors, part: Callable[[torch.Tensor], T]) -> T | list[T]:
    """What ``part`` makes of one tensor, or of those of a group."""
    if isinstance(tensors, Iterable) and not isinstance(tensors, torch.Tensor):
        return [part(tensor_of(operation, tensor)) for tensor in tensors]
    return part(tensor_of(operation, tensors))


def one_or_all(grouped: bool, tensors: Sequence[torch.Tensor]) -> Tensors:
    """The tensors of a group, or the only one."""
    return tensors if grouped else tensors[0]


def waited(grouped: bool, handle: int) -> tuple[torch.Tensor, ...]:
    """The results of a group, or the only one; autograd takes both as a tuple."""
    result = synchronize(handle)
    return result if grouped else (result,)


def span_of(tensor: torch.Tensor) -> Span:
    """Where the tensor's memory is."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def fold_part(tensor: torch.Tensor, output: torch.Tensor | None, codec: str = "none") -> Part:
    """A tensor that is reduced, into ``output`` if the size of the result is known, with messages of this codec.

    Raises:
        ValueError: its type is not reduced, or its memory is not in order.
    """
    _check(tensor)
    dtype = FOLDED.get(tensor.dtype)
    if dtype is None:
        raise ValueError(f"Tensor type {tensor.type()} is not supported.")
    finish = _given(output) if output is not None else gathered(tensor)
    target = None if output is None else span_of(output)
    return Part(span_of(tensor), target, dtype, tuple(tensor.shape), finish, (tensor, output), codec)


def move_part(tensor: torch.Tensor, output: torch.Tensor | None, finish: Finish | None = None) -> Part:
    """A tensor that travels unchanged; a type that the engine does not know travels as bytes.

    Raises:
        ValueError: its memory is not in order.
    """
    _check(tensor)
    dtype, scale = move_type(tensor)
    shape = tuple(tensor.shape) if scale == 1 else (*tensor.shape, scale)
    if finish is None:
        finish = _given(output) if output is not None else gathered(tensor)
    target = None if output is None else span_of(output)
    return Part(span_of(tensor), target, dtype, shape, finish, (tensor, output))


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


def _check(tensor: torch.Tensor) -> None:
    check_cpu(tensor)
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
