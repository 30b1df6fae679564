"""Groups of torch whose ranks are lost: DiLoCo continues over the group that torch forms of the others."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from averaging import model, train, weights

import herringbone
from herringbone.optim import DiLoCo, LocalSGD

kind = sys.argv[1]
dist.init_process_group("herringbone")
own = dist.get_rank()
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
store.set(f"handle/{own}", dist._get_reconfigure_handle())
handles = [store.get(f"handle/{rank}").decode() for rank in range(dist.get_world_size())]

net = model()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
averaging = DiLoCo(net, optimizer, sync_every=3) if kind == "diloco" else LocalSGD(net, optimizer, 3)
steps, before = 0, None
while averaging.rounds < 4:
    if own == 1 and steps == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        before = averaging.rounds
        train(net, optimizer.step, range(steps, steps + 1))
    except herringbone.PeerLostError as error:
        assert averaging.rounds == before and list(error.ranks) == [1], error
        print("lost", flush=True)
        left = [handle for rank, handle in enumerate(handles) if rank not in error.ranks]
        dist._reconfigure(1, left)
        averaging.regroup()
        assert averaging.rounds == before + 1, "the round has ended, over the new group"
    steps += 1
assert averaging.communicator.size == 2 and steps == 12
mine = weights(net)
others = [torch.empty_like(mine) for _ in range(2)]
dist.all_gather(others, mine)
assert torch.equal(*others)
averaging.close()
print("done", flush=True)
dist.destroy_process_group()
