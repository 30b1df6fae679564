"""One replica that torchft's Manager leads: `replica.py LIGHTHOUSE OWN WAY dies|lives`.

It trains until it has been together with another replica for some steps; one that is to die does so in the last of them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import DistributedDataParallel, Manager, Optimizer

STEPS = 5
"""Together, in a row."""

SECONDS = timedelta(seconds=20)


def group(way: str) -> dist.ProcessGroup:
    """What the manager takes: its own kind of group, or one of torch."""
    if way == "torchft":
        from herringbone.torchft import ProcessGroupHerringbone

        return ProcessGroupHerringbone(timeout=SECONDS)
    dist.init_process_group("herringbone", store=dist.HashStore(), rank=0, world_size=1, timeout=SECONDS, enable_reconfigure=True)
    return dist.group.WORLD


def main() -> None:
    lighthouse, own, way, ending = sys.argv[1:]
    torch.manual_seed(int(own))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pg = group(way)

    def load(state: dict[str, dict[str, torch.Tensor]]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=pg,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=SECONDS,
        quorum_timeout=SECONDS,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{own}",
        hostname="127.0.0.1",
    )
    wrapped, managed = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)
    together = 0
    while together < STEPS:
        step = manager.current_step()
        managed.zero_grad()
        loss = (wrapped(torch.full((2, 4), 1.0 + int(own))) - 3).square().mean()
        if ending == "dies" and together == STEPS - 1:
            manager.wait_quorum()  # so that the other counts on this one for the step
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        managed.step()
        done = manager.current_step() > step
        print(f"step {step} of {manager.num_participants()} {'done' if done else 'left out'}", flush=True)
        together = together + 1 if done and manager.num_participants() == 2 else 0
        time.sleep(0.1)
    print("weights", model.weight.detach().flatten().tolist(), flush=True)
    manager.shutdown()
    pg.shutdown()


if __name__ == "__main__":
    main()
