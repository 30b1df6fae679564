"""The last rank makes another call than the others, while hosts add up first: every rank gets an error.

Usage: rails_confused.py RANKS_PER_HOST WAY, which is "length", "op", "type", "leaves" or "aborts".
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from simulated import LanedStandIn

import herringbone


def main(each: int, way: str) -> None:
    os.environ["NCCL_HOSTID"] = f"host {int(os.environ['RANK']) // each}"
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    accelerator = LanedStandIn(seed=3)
    dist.all_reduce(torch.ones(3))
    assert "add up first" in dist.group.WORLD.member.on_hosts()[0]
    is_last = dist.get_rank() == dist.get_world_size() - 1
    if way == "leaves" and is_last:
        dist.destroy_process_group()
        return
    length = 1003 if way == "length" and is_last else 1000
    op = dist.ReduceOp.MAX if way == "op" and is_last else dist.ReduceOp.SUM
    if way == "aborts" and is_last:
        # So that its call is not over when it leaves.
        accelerator.rest()
    expected = herringbone.PeerLostError if way in ("leaves", "aborts") else herringbone.MismatchError
    try:
        if way == "type":
            work = dist.broadcast(torch.ones(length, dtype=torch.int32 if is_last else torch.float32), 0, async_op=True)
        else:
            work = dist.all_reduce(torch.ones(length), op, async_op=True)
        if way == "aborts" and is_last:
            dist.group.WORLD.abort()
            assert isinstance(work.exception(), herringbone.ClosedError), work.exception()
            accelerator.end()
            print("next call: there is no group", flush=True)
            return
        while work.exception() is None:
            time.sleep(0.01)
        assert isinstance(work.exception(), expected), work.exception()
        dist.all_reduce(torch.ones(3))
    except expected as error:
        print(f"next call: {error}", flush=True)
    if way in ("length", "op", "type"):
        # A rank that makes its call after another one has left would be told of that.
        store, ranks = dist.distributed_c10d._get_default_store(), range(dist.get_world_size())
        with contextlib.suppress(RuntimeError):  # the store's process may leave first
            store.set(f"told {dist.get_rank()}", "")
            store.wait([f"told {rank}" for rank in ranks])
    accelerator.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
