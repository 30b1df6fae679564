"""All-reduces of several sizes, one after the other; rank 0 prints which algorithm each has taken, and whether its sum is right."""

from __future__ import annotations

import json
import sys

import numpy as np

import herringbone

with herringbone.init(timeout=30) as comm:
    expected = comm.size * (comm.size + 1) // 2
    for count in map(int, sys.argv[1:]):
        values = np.full(count, comm.rank + 1, dtype=np.float32)
        comm.all_reduce(values)
        wrong = np.array([np.count_nonzero(values != expected)])
        comm.all_reduce(wrong)
        if comm.rank == 0:
            print(json.dumps({"algorithm": comm.explain(count).split(":")[0], "wrong": int(wrong[0])}), flush=True)
