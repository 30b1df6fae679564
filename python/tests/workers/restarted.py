"""Training that saves its state after each step; torchrun starts it again where a rank has died, and it goes on from there."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 6
DIES_AT = 3


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    checkpoint = Path(sys.argv[1])
    state = torch.load(checkpoint) if checkpoint.exists() else {"step": 0, "total": torch.zeros(1_000_000)}
    first = state["step"]
    for step in range(first, STEPS):
        gradient = torch.full((1_000_000,), float(step + rank))
        work = dist.all_reduce(gradient, async_op=True)
        if rank == last and step == DIES_AT and attempt == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        work.wait()
        state = {"step": step + 1, "total": state["total"] + gradient}
        if rank == 0:
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").rename(checkpoint)
    ranks = dist.get_world_size()
    expected = sum(step * ranks + sum(range(ranks)) for step in range(STEPS))
    assert (state["total"] == expected).all(), (state["total"][0].item(), expected)
    print(f"rank {rank} is done, attempt {attempt}, from step {first}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
