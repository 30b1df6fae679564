"""The part of Horovod's interface that is the same for every framework: everything but operations on tensors.

It passes names on, like the modules above, and has no ``__all__``, because type checkers read only lists that are written out.
"""

from .barriers import *
from .basics import *
from .exceptions import HorovodInternalError as HorovodInternalError
from .operations import Adasum as Adasum
from .operations import Average as Average
from .operations import Max as Max
from .operations import Min as Min
from .operations import Product as Product
from .operations import Sum as Sum
from .process_sets import ProcessSet as ProcessSet
from .process_sets import global_process_set as global_process_set
