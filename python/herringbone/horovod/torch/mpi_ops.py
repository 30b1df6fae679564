"""All operations under the name of Horovod's module, from which programs import them."""

from __future__ import annotations

from ..common import interface
from ..common.handles import poll, synchronize
from ..common.interface import *
from . import moves, reductions
from .moves import *
from .reductions import *

__all__ = ["poll", "synchronize"]
__all__ += interface.__all__
__all__ += moves.__all__
__all__ += reductions.__all__
