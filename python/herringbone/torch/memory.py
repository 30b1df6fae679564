"""Tensors in memory that all ranks of the host map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .. import errors
from ..arguments import lengths
from ..arrays import holder_of
from .member import Member
from .work import torch_error

__all__ = ["empty", "tensor_in"]


def empty(size: int | Sequence[int], dtype: torch.dtype | None = None, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """A zeroed CPU tensor in memory that all ranks of this host map (a *mapped buffer*).

    An in-place ``all_reduce`` of such a tensor, of the same size on all ranks of a host, needs no copies. Other
    collectives take it like any tensor. The memory is freed with the last tensor over it, even after the group was
    destroyed. A forked child does not have the memory and must not touch the tensor.

    Args:
        dtype: by default torch's default type.
        group: the group of the ranks; by default the default group.

    Raises:
        HerringboneError: the memory does not suffice, or this process is a forked child.
        TypeError: the group has another backend.
    """
    group = dist.group.WORLD if group is None else group
    member = getattr(group, "member", None)
    if not isinstance(member, Member):
        raise TypeError("empty needs a group of the backend herringbone; call init_process_group first")
    return tensor_in(member, size, dtype or torch.get_default_dtype())


def tensor_in(member: Member, size: int | Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A zeroed tensor in memory that all ranks of ``member`` on this host map."""
    size = lengths("empty", "size", size)
    length = math.prod(size) * dtype.itemsize
    if length == 0:
        return torch.empty(size, dtype=dtype, device="cpu")
    try:
        holder = holder_of(member.communicator, length)
    except errors.HerringboneError as error:
        raise torch_error(error) from None
    storage = torch.frombuffer(holder, dtype=torch.uint8).untyped_storage()
    # A view of the bytes would suffice, but autograd treats views differently.
    tensor: torch.Tensor = torch.empty(0, dtype=dtype, device="cpu").set_(
        storage, 0, size, torch.empty(size, dtype=dtype, device="meta").stride()
    )
    return tensor
