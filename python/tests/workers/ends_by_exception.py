"""Ranks with stores and pushes on the way, of which the last one ends by an exception, at a place that its argument names."""

from __future__ import annotations

import sys
import time

import numpy as np

import herringbone
from herringbone import kvstore

where = sys.argv[1]
ones = np.ones(1000, np.float32)
if where in ("local", "updater"):
    kv = kvstore.create("device")
    rank, size = 0, 1
else:
    kv = kvstore.create("dist_async" if where == "async" else "dist_sync")
    rank, size = kv.rank, kv.num_workers
    if where == "group":
        herringbone.init()
    elif where == "horovod":
        import herringbone.horovod.numpy as hvd

        hvd.init()
kv.set_optimizer("test")
kv.init(1, ones)
if where == "updater":

    def updater(key: int, received: np.ndarray, stored: np.ndarray) -> None:
        raise KeyError("an updater")

    kv.set_updater(updater)
engine = herringbone.Engine(2)
if where == "engine":
    engine.push(lambda: 1 / 0, name="divides")
elif where == "sleeps":
    engine.push(lambda: time.sleep(3), name="sleeps")
for _ in range(20):
    kv.push(1, ones)
last = rank == size - 1
if last:
    kv.push(1, ones)
    raise ValueError("the end")
try:
    kv.push(1, ones)
    kv.pull(1, ones)
    kv.pull(1, ones)
    kv.barrier()
    kv.push(1, ones)
    kv.pull(1, ones)
except herringbone.PeerLostError as error:
    print("told:", error.ranks)
