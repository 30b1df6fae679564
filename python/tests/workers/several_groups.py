"""A rank that makes several groups and stores, in an order that its argument names."""

from __future__ import annotations

import sys

import numpy as np

import herringbone
import herringbone.horovod.numpy as hvd
from herringbone import communicator, kvstore

stores: list[kvstore.KVStore] = []
groups: list[herringbone.Communicator] = []
uses_horovod = False


def check(round_number: int) -> None:
    """All that was made so far works, one beside the other."""
    values = [np.full(50, rank + round_number, np.float32) for _ in stores]
    for at, (store, value) in enumerate(zip(stores, values)):
        store.pushpull(f"value {at}", value, async_op=True)
    total = size * round_number + size * (size - 1) / 2
    summed = np.full(7, rank + round_number, np.float64)
    for group in groups:
        again = summed.copy()
        group.all_reduce(again)
        assert (again == total).all(), again
    if uses_horovod:
        result = hvd.allreduce(summed.copy(), op=hvd.Sum, name=f"round {round_number}")
        assert (result == total).all(), result
    for store, value in zip(stores, values):
        store.wait_all()
        assert (value == total).all(), value


for word in sys.argv[1].split("-"):
    if word == "store":
        stores.append(kvstore.create("dist_sync"))
        stores[-1].init([f"value {at}" for at in range(9)], [np.zeros(50, np.float32)] * 9)
    elif word == "init":
        groups.append(herringbone.init(timeout=50))
    elif word == "hvd":
        hvd.init()
        uses_horovod = True
    elif word == "options":
        try:
            herringbone.init(options=herringbone.Options(algorithm="ring"), timeout=5)
        except herringbone.HerringboneError as error:
            print(error)
            assert "This process has already joined the job, by " in str(error), error
            break
    elif word == "torch":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        try:
            herringbone.init(timeout=5)
        except herringbone.RendezvousError as error:
            assert "start the ranks by torchrun, or set HERRINGBONE_STORE to another address" in str(error), error
        rank, size = dist.get_rank(), dist.get_world_size()
        break
    elif word == "first":
        rank, size = groups[0].rank, groups[0].size
        closed: list[object] = []
        communicator.before_close.append(closed.append)
        groups[0].close()
        assert closed == [groups[1], groups[0]], closed
        try:
            herringbone.empty(3)
        except herringbone.ClosedError as error:
            assert "call herringbone.init() first" in str(error), error
        else:
            raise AssertionError("all groups have ended with the first one")
        groups[:] = [herringbone.init(timeout=50)]
        herringbone.finalize()
        assert closed[2:] == groups, closed
        break
    else:
        assert word == "close"
        stores.clear()
        groups.clear()
        herringbone.finalize()
        continue
    if stores:
        rank, size = stores[0].rank, stores[0].num_workers
    elif groups:
        rank, size = groups[0].rank, groups[0].size
    else:
        rank, size = hvd.rank(), hvd.size()
    for round_number in range(20):
        check(round_number)
sys.stdout.write(f"done {rank} of {size}\n")
