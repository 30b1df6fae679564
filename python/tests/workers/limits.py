"""Ranks of one host, of which one or all may open too few files, or take too little address space, to share its memory."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import numpy as np

import herringbone

GIB = 1 << 30


def limit_address_space(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)


def limit_files(more: int) -> None:
    """Leave ``more`` numbers for new descriptors."""
    free = [number for number in range(256) if not is_open(number)]
    set_limit(resource.RLIMIT_NOFILE, free[more])


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def set_limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def main() -> None:
    what, limited = sys.argv[1], Path(sys.argv[2])
    if what == "address space of all from the beginning":
        limit_address_space(2 * GIB)
    group = herringbone.init(timeout=60)
    if group.rank == 1 and what == "files":
        limit_files(2)
    if group.rank == 1 and what == "address space":
        limit_address_space(GIB)
    if group.rank == 1:
        limited.touch()
    # Rank 0 makes the link to rank 1, and does not before that is limited.
    while not limited.exists():
        time.sleep(0.01)
    for _ in range(2):
        assert (group.all_reduce(np.ones(100_000, np.float32)) == group.size).all()
    stats = group.stats()
    print("shared" if stats["workers_shm"]["sent"] else "over TCP" if stats["workers_tcp"]["sent"] else "", flush=True)
    group.close()


if __name__ == "__main__":
    main()
