"""Herringbone as a ``torch.distributed`` backend.

A program needs only ``torch.distributed.init_process_group("herringbone")``: torch 2.14 and later find this module
through the wheel's entry point. With older versions the program also imports herringbone, before or after torch.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..needs import needs

needs("herringbone.torch", "torch")

import torch
import torch.distributed as dist

OLDEST = (2, 10)


def check_version(version: str) -> None:
    """Refuse an unsupported version of torch before any other part of it is used.

    Raises:
        ImportError: it is older than 2.10, or its version is not a number.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or tuple(map(int, found.groups())) < OLDEST:
        raise ImportError(
            f"herringbone's torch backend needs torch {OLDEST[0]}.{OLDEST[1]} or later, and this is torch {version}; "
            f'pip install "torch>={OLDEST[0]}.{OLDEST[1]}"'
        )


check_version(torch.__version__)

from ..listing import listing
from ..options import Options
from .coalescing import mend_coalescing
from .compressed import compression
from .compression_hooks import CompressionHook, compress_if_asked, compression_hook, compression_hook_of
from .destroying import mend_destroying
from .group import BackendHerringbone, ProcessGroupHerringbone, create
from .hooks import mend_builtin_hooks, mend_logging_data, mend_uneven_inputs
from .memory import empty
from .mixing import mend_mixed_groups
from .priorities import priority
from .replacing import replace_gloo_if_asked
from .timeline import mark_steps_if_asked, start_timeline, stop_timeline
from .work import Work

if TYPE_CHECKING:
    from .shards import Shards

__all__ = [
    "BackendHerringbone",
    "CompressionHook",
    "Options",
    "ProcessGroupHerringbone",
    "Shards",
    "Work",
    "compression",
    "compression_hook",
    "compression_hook_of",
    "empty",
    "priority",
    "register",
    "start_timeline",
    "stop_timeline",
]

NAME = "herringbone"


def register() -> None:
    """Register the backend ``"herringbone"`` with torch; later calls change nothing."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
        mend_mixed_groups(frozenset({NAME}))
        mend_coalescing()
        mend_destroying()
        mend_builtin_hooks()
        mend_logging_data()
        mend_uneven_inputs()
        compress_if_asked()
        mark_steps_if_asked()
        replace_gloo_if_asked()


def __getattr__(name: str) -> Any:
    # This needs numpy, but the backend does not.
    if name == "Shards":
        from .shards import Shards

        return Shards
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = listing(__name__)

# For programs that import this module before torch's import is over, or that read no entry points.
register()
