"""Horovod's interface for numpy arrays: that of ``horovod.mxnet``, without MXNet.

``import herringbone.horovod.numpy as hvd``. Operations are synchronous, and take a ``priority``.
"""

from __future__ import annotations

from ..common import interface
from ..common.interface import *
from . import operations, training
from .operations import *
from .training import *

__all__: list[str] = []
__all__ += interface.__all__
__all__ += operations.__all__
__all__ += training.__all__
