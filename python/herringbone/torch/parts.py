"""Checks of the arguments of torch's calls: lists of tensors, and tensors that consist of a part for each rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .. import errors
from ..arguments import whole
from .tensors import Finish, adjacent, check_place, move_type, room, source, target, written
from .work import torch_error

__all__ = [
    "Tensors",
    "check_number",
    "check_part",
    "check_parts",
    "check_type",
    "check_whole",
    "lengths",
    "named",
    "one",
    "rows",
    "staged",
    "together",
]

Tensors = list[torch.Tensor]


def check_whole(name: str, role: str, whole: torch.Tensor, part: torch.Tensor, size: int) -> None:
    """Refuse a ``whole`` that has no place for a ``part`` of each rank."""
    check_place(whole)
    check_place(part)
    if whole.dtype != part.dtype:
        raise errors.ArgumentError(f"{name}: input and output differ in type: {part.dtype} and {whole.dtype}")
    if whole.numel() != part.numel() * size:
        raise errors.ArgumentError(
            f"{name}: the {role} has {whole.numel()} elements; {size} ranks with {part.numel()} each need {part.numel() * size}"
        )


def check_parts(name: str, role: str, parts: Tensors, part: torch.Tensor, size: int) -> None:
    """Refuse parts that are not one for each rank, or differ from this rank's."""
    check_number(name, role, parts, size)
    for place, tensor in enumerate(parts):
        check_part(name, role, place, tensor, part)


def check_number(name: str, role: str, parts: Tensors, size: int) -> None:
    """Refuse parts that are not one for each rank."""
    if len(parts) != size:
        raise errors.ArgumentError(f"{name}: {len(parts)} {role} for {size} ranks; pass one for each")


def check_part(name: str, role: str, place: int, part: torch.Tensor, own: torch.Tensor) -> None:
    """Refuse a part that is not like this rank's own tensor."""
    check_place(part)
    check_place(own)
    if part.device != own.device and not (part.is_meta or own.is_meta):
        raise errors.ArgumentError(
            f"{name}: number {place} of the {role} is on {part.device}, and this rank's own tensor on {own.device}; pass tensors "
            "of one device"
        )
    if part.shape != own.shape or part.dtype != own.dtype:
        raise errors.ArgumentError(
            f"{name}: number {place} of the {role} has shape {tuple(part.shape)} of {part.dtype}; expected "
            f"{tuple(own.shape)} of {own.dtype}, like this rank's own tensor; make them equal, for instance by padding"
        )


def together(outputs: Tensors, finish: Finish) -> torch.Tensor:
    """One flat tensor for all ``outputs``: their own memory, or a tensor from which they get their values in the end."""
    flat = adjacent(outputs)
    if flat is None:
        flat = room((sum(output.numel() for output in outputs),), outputs[0])
        for output, part in zip(outputs, torch.split(flat, [output.numel() for output in outputs])):
            target(output, part.view(output.shape), finish)
    else:
        written(outputs)
    return flat


def check_type(name: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse tensors that differ in type."""
    move_type(tensor)
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name}: tensors of {tensor.dtype} and of {other.dtype}; pass one type")


def one(name: str, tensors: Any) -> Any:
    """The only element of ``tensors``, because one process drives one device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise errors.ArgumentError(f"{name} takes one tensor per process and got {len(tensors)}")
    return tensors[0]


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Turn errors into torch's, about its call of this name."""
    try:
        yield
    except errors.HerringboneError as error:
        raise torch_error(error, name) from None


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it whose values are in order; refuses what cannot be moved."""
    check_place(tensor)
    return source(tensor)


def lengths(tensors: Tensors) -> list[int]:
    """The number of elements of each."""
    return [tensor.numel() for tensor in tensors]


def rows(role: str, tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """The number of elements of ``tensor`` for each rank, cut between its rows."""
    length = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if length % ranks or not tensor.dim():
            raise ValueError(
                f"all_to_all_single: the {role} of shape {tuple(tensor.shape)} has no equal parts for {ranks} ranks; "
                f"pass {role}_split_sizes"
            )
        sizes = [length // ranks] * ranks
    sizes = [whole("all_to_all_single", f"one of {role}_split_sizes", size, "a number of rows") for size in sizes]
    if len(sizes) != ranks or sum(sizes) != length or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {role}_split_sizes are {list(sizes)} for {length} rows and {ranks} ranks; pass one "
            "size per rank, which add up to the rows"
        )
    row = tensor.numel() // length if length else 0
    return [size * row for size in sizes]
