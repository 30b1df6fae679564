"""Herringbone: all gradients, one sum.

With torch::

    torch.distributed.init_process_group("herringbone")

and everything of ``torch.distributed`` that DistributedDataParallel uses goes over the engine. Without torch::

    with herringbone.init() as group:      # RANK, WORLD_SIZE, HERRINGBONE_STORE from the environment
        group.all_reduce(array)            # a numpy array, in place

Importing this package does not import torch.
"""

from __future__ import annotations

from . import errors
from ._herringbone import __version__
from .aliases import replace_horovod_if_asked
from .communicator import Communicator
from .compression import Residuals
from .dependency import Engine
from .elastic import Elastic
from .errors import *
from .joining import empty, finalize, init
from .options import Options
from .registration import register_once_torch_is_there
from .shards import ShardGroup
from .state import broadcast_state
from .tables import ParameterServer, Table
from .work import Work

__all__ = [
    "Communicator",
    "Elastic",
    "Engine",
    "Options",
    "ParameterServer",
    "Residuals",
    "ShardGroup",
    "Table",
    "Work",
    "__version__",
    "broadcast_state",
    "empty",
    "finalize",
    "init",
]
__all__ += errors.__all__


register_once_torch_is_there()
replace_horovod_if_asked()
