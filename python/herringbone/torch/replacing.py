"""With ``HERRINGBONE_REPLACE=gloo``, programs that name the backend "gloo" run on Herringbone."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..aliases import REPLACED as HOROVOD
from ..aliases import VARIABLE, asked_for
from ..errors import ConfigError
from .group import BackendHerringbone, ProcessGroupHerringbone, create

__all__ = ["REAL", "replace_gloo_if_asked"]

REPLACED = "gloo"
REAL = "torch-gloo"
"""The name of torch's own Gloo in this case."""


def replace_gloo_if_asked() -> None:
    """Register Herringbone under the name "gloo", and torch's Gloo under :data:`REAL`, if the environment requests it.

    If the variable has an invalid value, this warns, and no group of that name can be made. It does not raise, because
    torch calls it during its import, and would advise to load no backends.
    """
    asked = asked_for() - {HOROVOD}
    if not asked:
        return
    real = getattr(c10d, "_create_gloo_process_group", None)
    if asked != {REPLACED}:
        wrong = ",".join(sorted(asked - {REPLACED}))
        problem = f'{VARIABLE}: {wrong!r} cannot be used; it must be "{REPLACED}", "{HOROVOD}", "{REPLACED},{HOROVOD}" or empty'
        logging.getLogger("herringbone").warning("herringbone: %s", problem)
        if real is not None:
            refuse = functools.partial(_refuse, problem)
            dist.Backend.register_backend(REPLACED, refuse, extended_api=True, devices=["cpu"])
        return
    if real is None:
        _rename_in_older_torch()
        return
    register = functools.partial(dist.Backend.register_backend, extended_api=True)
    register(REAL, real, devices=["cpu", "cuda"])
    register(REPLACED, _create_in_its_place, devices=["cpu", "cuda"])
    # torch's flight recorder leaves out groups of these names, because torch's Gloo records its calls itself.
    recording: set[str] = getattr(c10d, "_FR_SELF_RECORDING_BACKENDS", set())
    recording.discard(REPLACED)
    recording.add(REAL)


def _refuse(problem: str, *_: Any) -> NoReturn:
    raise ConfigError(problem)


def _rename_in_older_torch() -> None:
    """Let torch before 2.14, which makes Gloo groups itself, make ours if the backend's name is given.

    ``get_backend`` then says "herringbone".
    """
    module: Any = c10d
    make = module._new_process_group_helper
    names = {REPLACED: "herringbone", REAL: REPLACED}
    dist.Backend.default_device_backend_map["cpu"] = names[REPLACED]

    def renamed(part: str) -> str:
        device, colon, name = part.rpartition(":")
        return device + colon + names.get(name, name)

    @functools.wraps(make)
    def mended(size: int, rank: int, ranks: list[int], backend: str, *more: Any, **named: Any) -> Any:
        wanted = ",".join(map(renamed, str(backend).split(",")))
        if wanted != backend and rank == 0 and not ranks:
            _say_so()
        return make(size, rank, ranks, dist.Backend(wanted), *more, **named)

    module._new_process_group_helper = mended


@functools.cache
def _say_so() -> None:
    if os.environ.get("HERRINGBONE_LOG") != "off":
        said = f'{VARIABLE}={REPLACED}, so the backend "{REPLACED}" of this program is Herringbone; torch\'s own is "{REAL}"'
        logging.getLogger("herringbone").warning("herringbone: %s", said)


def _create_in_its_place(opts: Any, options: Any) -> ProcessGroupHerringbone | BackendHerringbone:
    group = create(opts, options, title=REPLACED)
    if not opts.global_ranks_in_group and opts.group_rank == 0:
        _say_so()
    return group
