"""MXNet's KVStore for numpy and torch: values by key, summed over arrays and workers.

::

    from herringbone import kvstore

    kv = kvstore.create("dist_sync")
    kv.init(3, numpy.ones((2, 3)))
    kv.push(3, gradient)
    kv.pull(3, out=weight)

A call returns when its arrays can be used again: pushed values have been read, pulled values are there. Work in the background
overlaps: a push returns before the workers' values are summed, and ``async_op=True`` lets ``pull``, ``pushpull`` and
``broadcast`` return at once.
"""

from __future__ import annotations

from ..listing import listing
from .creation import create
from .optimizer import Optimizer, create_optimizer
from .placement import placement
from .schedulers import CosineScheduler, FactorScheduler, LRScheduler, MultiFactorScheduler, PolyScheduler
from .sparse import RowSparse
from .store import KVStore

__all__ = [
    "CosineScheduler",
    "FactorScheduler",
    "KVStore",
    "LRScheduler",
    "MultiFactorScheduler",
    "Optimizer",
    "PolyScheduler",
    "RowSparse",
    "create",
    "create_optimizer",
    "placement",
]

__dir__ = listing(__name__)
