"""Two ranks of numpy that disagree once, exchange a message, and are asked for their records; see test_flight.py."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
from cases import error_of

import herringbone


def main() -> None:
    group = herringbone.init(timeout=30)
    error_of(herringbone.MismatchError, lambda: group.all_reduce(np.ones(3 + group.rank)))
    if group.rank == 0:
        group.send(np.ones(2), 1, tag=5)
    else:
        group.recv(np.ones(2), 0, tag=5)
        command = [sys.executable, "-m", "herringbone", "status", group.address]
        subprocess.run([*command, "--dump", os.environ["RESULTS"] + "/asked"], check=True)
    group.barrier()
    herringbone.finalize()


if __name__ == "__main__":
    main()
