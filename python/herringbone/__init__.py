"""Herringbone: all gradients, one sum. It sums arrays over the processes of a training, with the same bits every time.

With torch, DistributedDataParallel and the rest of ``torch.distributed`` use it after::

    torch.distributed.init_process_group("herringbone")

With numpy, in a program that ``herringbone launch -n 4 -- python train.py`` starts::

    with herringbone.init() as group:
        group.all_reduce(array, "average")

Other interfaces: ``herringbone.horovod.torch``, ``herringbone.kvstore`` (MXNet), ``herringbone.rabit``, and
``herringbone.optim`` for training that sums less often. ``help(herringbone.Communicator)`` lists all collectives, ``herringbone
doctor`` checks a machine. Documentation: https://github.com/herringbone-rs/herringbone/blob/main/docs/README.md
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import *
from .registration import register_once_torch_is_there

if TYPE_CHECKING:
    from ._herringbone import __version__
    from .communicator import Communicator
    from .compression import Residuals
    from .dependency import Engine
    from .elastic import Elastic
    from .joining import empty, finalize, init
    from .names import Algorithm, Codec, Collective, FoldOrder, Operation, Transport
    from .options import Options
    from .shards import ShardGroup
    from .state import broadcast_state
    from .tables import ParameterServer, Table
    from .work import Work

__all__ = [
    "Algorithm",
    "Codec",
    "Collective",
    "Communicator",
    "Elastic",
    "Engine",
    "FoldOrder",
    "Operation",
    "Options",
    "ParameterServer",
    "Residuals",
    "ShardGroup",
    "Table",
    "Transport",
    "Work",
    "__version__",
    "broadcast_state",
    "empty",
    "finalize",
    "init",
]
__all__ += errors.__all__

_PLACES = {
    "Algorithm": "names",
    "Codec": "names",
    "Collective": "names",
    "Communicator": "communicator",
    "Elastic": "elastic",
    "Engine": "dependency",
    "FoldOrder": "names",
    "Operation": "names",
    "Options": "options",
    "ParameterServer": "tables",
    "Residuals": "compression",
    "ShardGroup": "shards",
    "Table": "tables",
    "Transport": "names",
    "Work": "work",
    "__version__": "_herringbone",
    "broadcast_state": "state",
    "empty": "joining",
    "finalize": "joining",
    "init": "joining",
}
"""The module of each name. It is imported at the first access of the name, because every ``import torch`` imports this
package."""

_FACES = {"embedding", "horovod", "kvstore", "optim", "profile", "rabit", "torch", "torchft"}
"""The modules that programs import explicitly."""


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
        globals()[name] = value
        return value
    if name in _PLACES.values():
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "errors", *(_FACES & globals().keys()), *(name for name in globals() if name.startswith("__"))})


register_once_torch_is_there()
if os.environ.get("HERRINGBONE_REPLACE"):
    importlib.import_module(".aliases", __name__).replace_horovod_if_asked()
