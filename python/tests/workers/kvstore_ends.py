"""A program that ends right after a push, for which another worker is late; its store is there until the end, or gone before."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from herringbone import kvstore


def updated(key: int, received: Any, stored: Any) -> None:
    print(f"updated by {received[0]:g}", flush=True)


def pushed() -> kvstore.KVStore:
    kv = kvstore.create("dist_sync")
    kv.init(3, np.zeros(4, np.float32))
    kv.set_updater(updated)
    if kv.rank == 1:
        time.sleep(0.5)
    kv.push(3, np.ones(4, np.float32))
    return kv


if sys.argv[1] == "kept":
    kept = pushed()
else:
    pushed()
