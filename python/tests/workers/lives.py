"""A job that joins and leaves again and again: nothing is left of any of its lives."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

import herringbone

KEPT = 1
"""The descriptor that stands in for others in forked children."""
SECONDS = 20
"""Threads that end may hold a descriptor a moment longer."""


def taken() -> tuple[int, int]:
    """The open descriptors, and the mapped segments."""
    mappings = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), mappings.count("memfd:herringbone")


def main() -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    before, _ = taken()
    for store in sys.argv[1:]:
        with herringbone.init(rank=rank, size=size, store=store, timeout=60) as group:
            assert (group.all_reduce(np.ones(100_000, np.float32)) == group.size).all()
    del group
    deadline = time.monotonic() + SECONDS
    while taken() != (before + KEPT, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert taken() == (before + KEPT, 0), (before, taken())
    print("lived", flush=True)


if __name__ == "__main__":
    main()
