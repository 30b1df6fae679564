"""Horovod's interface for torch, on Herringbone: ``import herringbone.horovod.torch as hvd``."""

from ...listing import listing as _listing
from ...needs import needs as _needs

_needs("herringbone.horovod.torch", "torch")

from . import elastic as elastic
from .compression import Compression as Compression
from .functions import *
from .mpi_ops import *
from .optimizer import *
from .sync_batch_norm import *

__dir__ = _listing(__name__, "elastic")
