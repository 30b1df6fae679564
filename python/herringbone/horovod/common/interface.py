"""What Horovod's interface has for every framework, under the names that programs import: all but operations on tensors."""

from __future__ import annotations

from . import basics
from .barriers import barrier, join
from .basics import *
from .exceptions import HorovodInternalError
from .operations import Adasum, Average, Max, Min, Product, Sum
from .process_sets import ProcessSet, global_process_set

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "barrier",
    "global_process_set",
    "join",
]
__all__ += basics.__all__
