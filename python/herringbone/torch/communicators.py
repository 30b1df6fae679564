"""Finds the communicator of the object that a program passes as its group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ..communicator import Communicator
from ..errors import ConfigError
from ..joining import init
from .group import BackendHerringbone, ProcessGroupHerringbone

__all__ = ["communicator_of"]


def communicator_of(call: str, group: Any, lacks: str) -> Communicator:
    """The communicator of a process group of torch, or ``group`` itself if it is one.

    With ``None`` it is torch's default group's, or without one :func:`herringbone.init`'s. If the group has several backends,
    such as ``"cpu:herringbone,cuda:nccl"``, it is the CPU backend's.

    Raises:
        ConfigError: the group has another backend; ``lacks`` names the missing feature, such as "which has no sums of shards".
    """
    if isinstance(group, Communicator):
        return group
    if group is None and not (dist.is_available() and dist.is_initialized()):
        return init()
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, ProcessGroupHerringbone):
        backend = group._get_backend(torch.device("cpu")) if isinstance(group, dist.ProcessGroup) else None
        if not isinstance(backend, BackendHerringbone):
            name = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else type(group).__name__
            text = f"{call}: the process group has the backend {name}, {lacks}"
            raise ConfigError(f'{text}; call torch.distributed.init_process_group("herringbone")')
        group = backend
    return Communicator(group.member.communicator)
