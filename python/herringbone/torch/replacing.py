"""Programs that say "gloo" and run on Herringbone, because ``HERRINGBONE_REPLACE`` says so."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..errors import ConfigError
from .group import BackendHerringbone, ProcessGroupHerringbone, create

__all__ = ["REAL", "replace_gloo_if_asked"]

VARIABLE = "HERRINGBONE_REPLACE"
REPLACED = "gloo"
REAL = "torch-gloo"
"""Under which name torch's own Gloo can be had then."""


def replace_gloo_if_asked() -> None:
    """Register Herringbone under the name "gloo", and torch's Gloo under :data:`REAL`, if the environment asks for it.

    Raises:
        ConfigError: the variable names something else, or this version of torch cannot do it.
    """
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return
    if asked != REPLACED:
        raise ConfigError(f'{VARIABLE}: {asked!r} cannot be used; it may be "{REPLACED}" or empty')
    real = getattr(c10d, "_create_gloo_process_group", None)
    if real is None:
        raise ConfigError(
            f"{VARIABLE}: torch {torch.__version__} makes its Gloo groups itself; use torch 2.14 or later, or write "
            'init_process_group("herringbone")'
        )
    register = functools.partial(dist.Backend.register_backend, extended_api=True)
    register(REAL, real, devices=["cpu", "cuda"])
    register(REPLACED, _create_in_its_place, devices=["cpu"])


@functools.cache
def _say_so() -> None:
    if os.environ.get("HERRINGBONE_LOG") != "off":
        logging.getLogger("herringbone").warning(
            'herringbone: %s=%s, so the backend "%s" of this program is Herringbone; torch\'s own is "%s"',
            VARIABLE,
            REPLACED,
            REPLACED,
            REAL,
        )


def _create_in_its_place(opts: Any, options: Any) -> ProcessGroupHerringbone | BackendHerringbone:
    group = create(opts, options, title=REPLACED)
    if not opts.global_ranks_in_group and opts.group_rank == 0:
        _say_so()
    return group
