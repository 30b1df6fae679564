"""Herringbone as a ``torch.distributed`` backend.

``torch.distributed.init_process_group("herringbone")`` is all that a program needs: torch 2.14 and later find this module
through the wheel's entry point. With older versions the program also imports herringbone, before or after torch.
"""

from __future__ import annotations

import torch.distributed as dist

from ..options import Options
from .coalescing import mend_coalescing
from .group import BackendHerringbone, ProcessGroupHerringbone, create
from .memory import empty
from .priorities import priority
from .work import Work

__all__ = [
    "BackendHerringbone",
    "Options",
    "ProcessGroupHerringbone",
    "Work",
    "empty",
    "priority",
    "register",
]

NAME = "herringbone"


def register() -> None:
    """Make torch know the backend ``"herringbone"``; later calls change nothing."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
        mend_coalescing()
