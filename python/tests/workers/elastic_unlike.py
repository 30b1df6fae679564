"""A rank of an elastic job, of which one has other settings than those that have made rounds: `elastic_unlike.py WRONG FOLDER`.

The wrong one catches its error, and stays until the others have made a round.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from herringbone.errors import ArgumentError
from herringbone.optim.members import Job


class Made:
    """What all ranks have alike."""

    call = "DiLoCo"

    def __init__(self, rounds: int, rate: str) -> None:
        self.rounds, self.settings = rounds, {"outer_lr": rate}

    def save(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load(self, state: dict[str, Any]) -> bool:
        self.rounds = state["rounds"]
        return True


def main() -> None:
    wrong, folder, rank = int(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
    state = Made(0, "0.5") if rank == wrong else Made(3, "0.7")
    try:
        job = Job(state, state.load)
    except ArgumentError as error:
        print(f"refused: {error}", flush=True)
        until = time.monotonic() + 40
        while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        return
    with job, job.step() as group:
        group.barrier()
        print(f"a round of {group.size}", flush=True)
        (folder / str(rank)).touch()


main()
