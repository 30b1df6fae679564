"""Groups that the program gives other backends for other devices, with a torch that gives one backend all tensors.

torch before 2.14 takes a process group in Python for the whole of a group such as ``cpu:herringbone,cuda:nccl``, and says nothing. Its
CUDA tensors would go through the host, though the program asked for NCCL. So the group notes what the program has asked for, and
refuses these tensors.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

from torch.distributed import distributed_c10d as c10d

from .dispatched import DISPATCHES

__all__ = ["foreign_devices", "mend_mixed_groups", "others_in"]

_others: ContextVar[dict[str, str] | None] = ContextVar("herringbone.mixing", default=None)


def foreign_devices() -> dict[str, str]:
    """The devices of the group that torch makes now which the program has given to other backends, and these."""
    return _others.get() or {}


def others_in(backend: object, own: frozenset[str]) -> dict[str, str]:
    """The devices that ``backend``, as torch takes it, gives to other backends than ``own``, and their names."""
    parts = [part.partition(":") for part in str(backend).lower().split(",")]
    return {device: name for device, colon, name in parts if colon and name not in own}


def mend_mixed_groups(own: frozenset[str]) -> None:
    """Have groups know what else they were asked for, where this torch does not ask each backend for its device.

    Args:
        own: the names that stand for Herringbone.
    """
    if DISPATCHES:
        return
    module: Any = c10d
    make = module._new_process_group_helper

    @functools.wraps(make)
    def mended(size: int, rank: int, ranks: list[int], backend: object, *more: Any, **named: Any) -> Any:
        token = _others.set(others_in(backend, own))
        try:
            return make(size, rank, ranks, backend, *more, **named)
        finally:
            _others.reset(token)

    module._new_process_group_helper = mended
