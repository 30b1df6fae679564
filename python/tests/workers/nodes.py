"""A job of several nodes as torchrun starts it: a DDP step whose sums are right; then a rank of the last node is killed.

Every survivor writes who was lost to a file. torchrun starts all ranks again, and in its second life the job ends well.

Usage, once per node: nodes.py NODES RANKS_PER_NODE, with torchrun's PYTHON_EXEC. The node starts torchrun, which starts this file again for each rank.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from values import rank, same, size

FAILED = 42


def node(nodes: int, each: int) -> None:
    """Become this node's torchrun. The node's name is that of the machine: it says its address, and whether it is the first."""
    own, first = os.environ["HOST_ADDRESS"], os.environ["MASTER_ADDR"]
    python = os.environ["PYTHON_EXEC"]
    launcher = [python, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={each}"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:29600", "--rdzv-id=nodes", f"--local-addr={own}"]
    options = [f"--rdzv-conf=is_host={own == first}", "--max-restarts=1"]
    os.execv(python, [*launcher, *meeting, *options, __file__])


class Weights(nn.Module):
    """Several weights, in several buckets; each has the rank's number as its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.zeros(40_000) for _ in range(4)])

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return sum((part * number).sum() for part in self.parts)


def step() -> None:
    """A step of DDP and a sum of integers: every rank's part is in them once."""
    numbers = range(1, size() + 1)
    model = DistributedDataParallel(Weights(), bucket_cap_mb=0.1)
    model(torch.tensor(float(rank() + 1))).backward()
    for part in model.module.parts:
        same(part.grad, torch.full((40_000,), sum(numbers) / size()))
    tensor = torch.arange(1000) * (rank() + 1)
    dist.all_reduce(tensor)
    same(tensor, torch.arange(1000) * sum(numbers))


def main() -> None:
    # torchrun ends a node's other ranks once one is dead; here they say first who was lost.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    life, folder = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(os.environ["RESULTS"])
    step()
    moved = dist.group.WORLD.stats()
    assert moved["workers_shm"]["sent"] and moved["workers_tcp"]["sent"], moved
    dist.barrier()
    if life == 0:
        try:
            work = dist.all_reduce(torch.ones(4_000_000), async_op=True)
            if rank() == size() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            work.wait()
            dist.barrier()
        except dist.DistBackendError as error:
            (folder / f"told{rank()}").write_text(f"{type(error).__name__}: {error}")
            sys.exit(FAILED)
    (folder / f"done{rank()}").write_text(f"life {life}, node {os.environ['GROUP_RANK']}")
    dist.destroy_process_group()


if __name__ == "__main__":
    node(int(sys.argv[1]), int(sys.argv[2])) if sys.argv[1:] else main()
