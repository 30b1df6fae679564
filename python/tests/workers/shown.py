"""Ranks that sum a known number of times, wait, and sum again until they are told to end: what they show of it is looked at meanwhile."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import herringbone
import numpy as np

SUMS = 20
COUNT = 10_000


def main() -> None:
    goes_on, late, ends = (Path(sys.argv[1], name) for name in ("goes_on", "late", "ends"))
    comm = herringbone.init()
    array = np.full(COUNT, 1.0, dtype=np.float32)
    for _ in range(SUMS):
        assert (comm.all_reduce(array.copy()) == comm.size).all()
    print("summed", flush=True)
    while not goes_on.exists():
        time.sleep(0.02)
    while True:
        if comm.rank == 1 and late.exists():
            time.sleep(1)
            late.unlink()
        # The ranks end together: the last element says whether one of them wants to.
        array[-1] = 1 + 1000 * ends.exists()
        total = comm.all_reduce(array.copy())
        assert (total[:-1] == comm.size).all()
        if total[-1] >= 1000:
            break
        time.sleep(0.001)
    print("done", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
