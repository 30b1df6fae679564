"""All operations under the name of Horovod's module, from which programs import them."""

from ..common.handles import poll as poll
from ..common.handles import synchronize as synchronize
from ..common.interface import *
from .moves import *
from .reductions import *
