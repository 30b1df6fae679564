"""All-reduces until the test says that it is enough: what each moves through the port of a rank's host, its time, bits and plan."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import herringbone
import numpy as np
from counted_ports import moved

BYTES = 4 << 20
INPUTS = 5
"""So many inputs come by turns: the same input has the same result, whatever the plan."""


def main() -> None:
    folder = Path(os.environ["RESULTS"])
    with herringbone.init() as group, (folder / f"{group.rank}.jsonl").open("w", buffering=1) as lines:
        rng = np.random.default_rng(group.rank)
        inputs = [rng.standard_normal(BYTES // 4, np.float32) for _ in range(INPUTS)]
        step, stop = 0, np.zeros(1, np.int64)
        while not stop[0]:
            total = inputs[step % INPUTS].copy()
            before, began = moved(), time.monotonic()
            group.all_reduce(total)
            seconds, after = time.monotonic() - began, moved()
            line = {"step": step, "seconds": seconds, "digest": hashlib.sha256(total).hexdigest()}
            line |= {way: (after[way] - before[way]) / BYTES for way in before}
            line |= {"plan": group.explain(BYTES // 4), "changes": group.stats()["rebalanced"]}
            lines.write(json.dumps(line) + "\n")
            step += 1
            stop[0] = (folder / "stop").exists()
            group.broadcast(stop, root=0)


if __name__ == "__main__":
    main()
