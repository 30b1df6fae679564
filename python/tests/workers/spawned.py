"""A group of processes that torch.multiprocessing spawns and that meet at a file, with options given in Python."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from cases import error_of

import herringbone


def work(rank: int, size: int, path: str) -> None:
    token = "the secret of one job"
    options = herringbone.Options(algorithm="ring", transport="tcp", fold_order="hosts", token=token)
    dist.init_process_group("herringbone", init_method=f"file://{path}", rank=rank, world_size=size, pg_options=options)
    tensor = torch.full((100_000,), float(rank))
    dist.all_reduce(tensor)
    assert (tensor == sum(range(size))).all()
    stats = dist.group.WORLD.stats()
    assert list(stats["operations"]["all_reduce"]) == ["ring"], stats
    assert stats["workers_shm"]["sent"] == 0 and stats["workers_tcp"]["sent"] > 0, stats
    dist.destroy_process_group()
    mixed(rank, size, path + "-mixed")
    for wrong, said in (
        ({"algorithm": "magic"}, "magic"),
        ({"fold_order": "host"}, 'fold_order: "host" is not a fold order: use one of ranks, hosts'),
    ):
        error_of(
            herringbone.ConfigError,
            lambda wrong=wrong: dist.init_process_group(
                "herringbone",
                init_method=f"file://{path}-wrong",
                rank=rank,
                world_size=size,
                pg_options=herringbone.Options(**wrong),
            ),
            said,
        )
    print(f"rank {rank} passed", flush=True)


def mixed(rank: int, size: int, path: str) -> None:
    """One backend of several: the CPU's tensors are ours, the other device's are not."""
    dist.init_process_group("cpu:herringbone,cuda:gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0].tolist() == [size * size] * 3
    backend: Any = dist.get_backend_impl(device=torch.device("cpu"))
    assert backend.stats()["operations"]["all_reduce"]
    dist.barrier()
    received, neighbours = torch.zeros(1), [(rank + 1) % size, (rank - 1) % size]
    messages = [(dist.isend, torch.tensor([float(rank)])), (dist.irecv, received)]
    for work in dist.batch_isend_irecv([dist.P2POp(*each, peer) for each, peer in zip(messages, neighbours)]):
        work.wait()
    assert received.item() == neighbours[1]
    dist.all_to_all_single(tensor, torch.full((size,), float(rank)))
    assert tensor.tolist() == list(range(size))
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(tensor, group=pair)
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(work, (3, sys.argv[1]), 3)
