"""Rank 0, and then rank 1, kills itself in its first start, and the others take its next process in."""

from __future__ import annotations

import os
import signal

import herringbone
import numpy as np

attempt = int(os.environ["DMLC_NUM_ATTEMPT"])
print("starts", attempt, os.getpid())
group = herringbone.init()
losses = 0
while True:
    try:
        # A new process learns from the others how many ranks were lost.
        losses = int(group.all_reduce(np.array([losses]), "max")[0])
        if losses == 2:
            break
        if attempt == 0 and group.rank == losses:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(np.ones(1000, np.float32))
    except herringbone.PeerLostError:
        group = group.replace(timeout=30)
        losses += 1
print("sum", int(group.all_reduce(np.array([group.rank + 1]))[0]), os.getpid())
group.close()
