"""A training loop with a DataLoader worker alive, in which the last rank is killed in the middle of an all-reduce."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

STEPS_BEFORE = 5


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    moment = Path(sys.argv[1])
    loader = DataLoader(range(1000), batch_size=1, num_workers=1, multiprocessing_context="fork")
    for step, _ in enumerate(loader):
        tensor = torch.ones(4_000_000)
        try:
            work = dist.all_reduce(tensor, async_op=True)
            if rank == last and step == STEPS_BEFORE:
                moment.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            work.wait()
        except dist.DistBackendError as error:
            after = time.time() - float(moment.read_text())
            print(f"after {after:.3f} s {type(error).__name__}: {error}", flush=True)
            raise SystemExit(42) from None


if __name__ == "__main__":
    main()
