"""Horovod's interface for torch, on Herringbone: ``import herringbone.horovod.torch as hvd``."""

from __future__ import annotations

from . import elastic, mpi_ops
from .compression import Compression
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .mpi_ops import *
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
]
__all__ += mpi_ops.__all__
