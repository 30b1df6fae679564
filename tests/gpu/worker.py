"""One rank of the checks on a GPU. Usage: worker.py FOLDER NAME... [--stand-in]. `tests/gpu/run.py` starts it.

Rank 0 writes NAME.json to the folder: the rows of a check, or its error. The first check that fails ends the job, because ranks that
have not made the same calls cannot go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import times
from gpu_checks import CHECKS, Place, check, checked
from places import Gpu, StandInPlace
from rows import Row, as_json

import herringbone

__all__ = ["times"]


@check
def killed(place: Place) -> list[Row]:
    """The last one: rank 1 is killed while the stream of rank 0 waits; it goes on, and the next call tells of it."""
    tensor = place.put(torch.ones(2_000_000 // place.scale))
    dist.all_reduce(tensor)
    place.synchronize()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.wait()
    except herringbone.PeerLostError:
        pass
    place.synchronize()
    while work.exception() is None:
        time.sleep(0.001)
    seconds = time.monotonic() - began
    assert isinstance(work.exception(), herringbone.PeerLostError), work.exception()
    return [checked("killed", f"a stream that waits goes on after {seconds:.2f} s")]


def main() -> None:
    folder, *names = [word for word in sys.argv[1:] if word != "--stand-in"]
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    place: Place = StandInPlace() if "--stand-in" in sys.argv else Gpu()
    for name in names:
        try:
            found: dict[str, object] = {"rows": as_json(CHECKS[name](place))}
        except BaseException as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        if dist.get_rank() == 0 or "error" in found:
            kept = Path(folder, f"{name}.{dist.get_rank()}.json")
            kept.with_suffix(".new").write_text(json.dumps(found))
            kept.with_suffix(".new").rename(kept)
        if "error" in found:
            # The other rank waits for calls that this one does not make.
            sys.stderr.flush()
            os._exit(1)
    sys.stdout.flush()
    if "killed" in names:
        os._exit(0)
    place.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
