"""What an all-reduce moves through the port of a rank's host, and what the plan says, for tests on hosts of unlike ports."""

from __future__ import annotations

import json
import os
from pathlib import Path

import herringbone
import numpy as np

BYTES = 8 << 20
TIMES = 3


def moved() -> dict[str, int]:
    """Bytes that have come in and gone out through the host's interface since it is there, headers included."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    fields = next(line for line in lines if line.strip().startswith("eth0")).partition(":")[2].split()
    return {"into": int(fields[0]), "out": int(fields[8])}


def main() -> None:
    with herringbone.init() as group:
        values = np.full(BYTES // 4, group.rank + 1, np.float32)
        group.barrier()
        before = moved()
        for _ in range(TIMES):
            total = values.copy()
            group.all_reduce(total)
        group.barrier()
        after = moved()
        assert (total == group.size * (group.size + 1) / 2).all()
        outcome = {way: (after[way] - before[way]) / TIMES / BYTES for way in before} | {"plan": group.explain(BYTES // 4)}
        Path(os.environ["RESULTS"], f"{group.rank}.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
