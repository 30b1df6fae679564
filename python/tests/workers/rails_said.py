"""Sums on hosts of which the arguments tell the ranks: whether hosts add up first, and why not.

Usage: rails_said.py HOSTS DEVICES, which are lists of names, one for each rank, with commas between them. Rank 0 prints the reason.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from simulated import LanedStandIn


class Named(LanedStandIn):
    """A stand-in that the arguments name."""

    def identity(self, tensor: torch.Tensor) -> str:
        return sys.argv[2].split(",")[dist.get_rank()]


def main() -> None:
    os.environ["NCCL_HOSTID"] = sys.argv[1].split(",")[int(os.environ["RANK"])]
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    accelerator = Named(seed=3)
    size = dist.get_world_size()
    rank = dist.get_rank()

    def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
        accelerator.synchronize()
        assert torch.equal(actual, expected), f"{actual} is not {expected}"

    first = torch.ones(1)
    with torch.device("meta"):
        # A program's new tensors can be on its device, and what the ranks tell each other is on the host all the same.
        dist.all_reduce(first)
    for length in (0, 1, 1009):
        tensor, whole, part = torch.full((length,), rank + 1.0), torch.zeros(size * length), torch.zeros(length)
        dist.all_reduce(tensor)
        same(tensor, torch.full((length,), size * (size + 1) / 2))
        dist.all_gather_into_tensor(whole, torch.full((length,), float(rank)))
        same(whole, torch.arange(size, dtype=torch.float32).repeat_interleave(length))
        dist.reduce_scatter_tensor(part, whole)
        same(part, torch.full((length,), float(size * rank)))
        for root in range(size):
            moved, folded = torch.full((length,), float(rank)), torch.ones(length)
            dist.broadcast(moved, root)
            same(moved, torch.full((length,), float(root)))
            dist.reduce(folded, root)
            same(folded, torch.full((length,), float(size if root == rank else 1)))
    if rank == 0:
        print(f"said: {dist.group.WORLD.member.on_hosts()}", flush=True)
    assert accelerator.hazards() == []
    accelerator.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
