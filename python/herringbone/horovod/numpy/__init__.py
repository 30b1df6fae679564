"""Horovod's interface for numpy arrays: the interface of ``horovod.mxnet``, without MXNet.

``import herringbone.horovod.numpy as hvd``. Operations are synchronous, and take a ``priority``.
"""

from ...listing import listing as _listing
from ...needs import needs as _needs

_needs("herringbone.horovod.numpy", "numpy")

from ..common.interface import *
from .operations import *
from .training import *

__dir__ = _listing(__name__)
