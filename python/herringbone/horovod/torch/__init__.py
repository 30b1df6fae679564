"""Horovod's interface for torch, on Herringbone: ``import herringbone.horovod.torch as hvd``."""

from __future__ import annotations

from . import elastic, functions, mpi_ops
from .compression import Compression
from .functions import *
from .mpi_ops import *
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm

__all__ = ["Compression", "DistributedOptimizer", "SyncBatchNorm", "elastic"]
__all__ += functions.__all__
__all__ += mpi_ops.__all__
