"""A rank that sums arrays in steps, of which one rank is late in each, while a timeline is written.

Usage: timeline.py STEPS LATE SECONDS [ELEMENTS]. The place is the environment's.
"""

from __future__ import annotations

import sys
import time

import numpy as np

import herringbone


def main(steps: int, late: int, seconds: float, elements: int) -> None:
    """Take the steps."""
    group = herringbone.init(timeout=60)
    array = np.ones(elements, np.float32)
    group.barrier()
    for _ in range(steps):
        group.mark_step()
        if group.rank == late:
            time.sleep(seconds)
        group.all_reduce(array, op="average")
    assert (array == 1).all()
    group.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 1000)
