"""The processes of a launcher's ranks, for tests that kill them from outside."""

from __future__ import annotations

import re
from pathlib import Path

RANK = re.compile(rb"(?:^|\0)RANK=(\d+)\0")
PARENT = re.compile(r"^PPid:\s+(\d+)$", re.MULTILINE)


def ranks_of(launcher: int) -> dict[int, int]:
    """The process of each rank that a launcher has started and that lives, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = PARENT.search((folder / "status").read_text())
            if parent is None or int(parent[1]) != launcher:
                continue
            rank = RANK.search((folder / "environ").read_bytes())
        except OSError:  # it has ended meanwhile
            continue
        if rank is not None:
            found[int(rank[1])] = int(folder.name)
    return found
