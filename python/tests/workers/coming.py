"""A rank that wants to take part, and says what became of it: one line of JSON, with the seconds that the joining took.

Usage: coming.py numpy|torch LIMIT. The place is the environment's. A rank that is let in sums, waits for a line on its
standard input, and sums again. With STORE_FILE torch's ranks meet there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta


def over_numpy(limit: float) -> tuple[Callable[[], float], Callable[[], None]]:
    import numpy

    import herringbone

    group = herringbone.init(timeout=limit)

    def add() -> float:
        values = numpy.ones(100, dtype="float32")
        group.all_reduce(values)
        return float(values.min())

    return add, herringbone.finalize


def over_torch(limit: float) -> tuple[Callable[[], float], Callable[[], None]]:
    import torch.distributed as dist

    file, place = os.environ.get("STORE_FILE"), {}
    if file is not None:
        place = {"init_method": f"file://{file}"}
        place |= {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("herringbone", timeout=timedelta(seconds=limit), **place)

    def add() -> float:
        import torch

        values = torch.ones(100)
        dist.all_reduce(values)
        return float(values.min())

    return add, dist.destroy_process_group


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(face: str, limit: float) -> None:
    if face == "torch":
        import torch.distributed  # noqa: F401
    else:
        import numpy  # noqa: F401
    import herringbone

    began = time.monotonic()
    try:
        add, leave = {"numpy": over_numpy, "torch": over_torch}[face](limit)
    except (herringbone.HerringboneError, RuntimeError, ValueError) as error:
        say(seconds=time.monotonic() - began, kind=type(error).__name__, error=str(error))
        return
    say(seconds=time.monotonic() - began, sum=add())
    sys.stdin.readline()
    say(sum=add())
    leave()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
