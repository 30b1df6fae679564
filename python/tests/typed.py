"""What a program imports, as type checkers see it: `make check` checks this file, and nothing runs it."""

from typing import Any

import numpy as np
import torch

import herringbone
import herringbone.horovod.numpy
import herringbone.horovod.torch
from herringbone import Communicator, PeerLostError
from herringbone.horovod.numpy import DistributedTrainer, Max, allreduce_, size
from herringbone.horovod.torch import DistributedOptimizer, Sum, allreduce_async_, rank, synchronize
from herringbone.horovod.torch.mpi_ops import allgather, rocm_built

__all__ = ["Communicator", "DistributedOptimizer", "DistributedTrainer", "PeerLostError", "herringbone", "synchronize"]

RANKS: list[int] = [rank(), size(), herringbone.horovod.numpy.size(), herringbone.horovod.torch.size()]
HANDLES: list[int] = [allreduce_async_(tensor=torch.ones(1), op=Sum, process_set=herringbone.horovod.torch.global_process_set)]
REDUCED: list[np.ndarray[Any, np.dtype[Any]]] = [allreduce_(array=np.ones(1), op=Max, priority=1)]
MOVED: list[torch.Tensor] = [allgather(torch.ones(1), name=str(rocm_built()))]
