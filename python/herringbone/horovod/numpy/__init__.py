"""Horovod's interface for numpy arrays: that of ``horovod.mxnet``, without MXNet.

``import herringbone.horovod.numpy as hvd``. Operations are synchronous, and take a ``priority``.
"""

from __future__ import annotations

from ..common import interface
from ..common.interface import *
from .operations import (
    allgather,
    allreduce,
    allreduce_,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_reducescatter,
    reducescatter,
)
from .training import (
    DistributedOptimizer,
    DistributedTrainer,
    Parameter,
    allgather_object,
    broadcast_object,
    broadcast_parameters,
)

__all__ = [
    "DistributedOptimizer",
    "DistributedTrainer",
    "Parameter",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_object",
    "broadcast_parameters",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]
__all__ += interface.__all__
