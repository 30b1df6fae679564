"""Ranks that end their program, or leave the group, with operations under way that all have issued: those that wait get them."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("herringbone")
    how, leaver = sys.argv[1], int(sys.argv[2])
    groups = [None, dist.new_group()]
    tensors = [torch.ones(1_000_000) for _ in range(6)]
    works = [dist.all_reduce(tensor, group=groups[at % 2], async_op=True) for at, tensor in enumerate(tensors)]
    if dist.get_rank() == leaver:
        if how == "ends":
            return
        dist.destroy_process_group()
    size = 3
    for work, tensor in zip(works, tensors):
        work.wait()
        assert (tensor == size).all()
    print("all there", flush=True)


if __name__ == "__main__":
    main()
