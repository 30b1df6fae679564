"""torchft's LocalSGD and DiLoCo over herringbone.torchft, and ours over a group of torch: `averaging_torchft.py LIGHTHOUSE`.

It prints how far the parameters of each pair are apart, relative to the largest one.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from averaging import STEPS, alike, model, train, weights
from torch import nn
from torchft import Manager
from torchft.local_sgd import DiLoCo as TheirDiLoCo
from torchft.local_sgd import LocalSGD as TheirLocalSGD

from herringbone.optim import DiLoCo, LocalSGD
from herringbone.torchft import ProcessGroupHerringbone

SECONDS = timedelta(seconds=30)
STREAMING = {"fragment_sync_delay": 1, "fragment_update_alpha": 0.25}


def outers(net: Any) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(net[at].parameters(), lr=0.7, momentum=0.9, nesterov=True) for at in (0, 2)]


def theirs(kind: str, manager: Any, net: Any, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    if kind == "local":
        return TheirLocalSGD(manager, net, optimizer, 3)
    if kind == "diloco":
        outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        return TheirDiLoCo(manager, [net], optimizer, outer, 4)
    return TheirDiLoCo(manager, [net[0], net[2]], optimizer, outers(net), 6, **STREAMING)


def ours(kind: str, net: Any, optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    if kind == "local":
        return LocalSGD(net, optimizer, 3)
    if kind == "diloco":
        return DiLoCo(net, optimizer, sync_every=4)
    return DiLoCo([net[0], net[2]], optimizer, outers(net), sync_every=6, **STREAMING)


def by_torchft(kind: str, lighthouse: str) -> nn.Module:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pg = ProcessGroupHerringbone(timeout=SECONDS)
    # Ranks begin with equal models. The manager would bring rank 0's to the others only after their first steps.
    manager = Manager(
        pg=pg,
        load_state_dict=None,
        state_dict=None,
        min_replica_size=2,
        use_async_quorum=False,
        init_sync=False,
        timeout=SECONDS,
        quorum_timeout=SECONDS,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"{kind}_{dist.get_rank()}",
        hostname="127.0.0.1",
    )
    with theirs(kind, manager, net, optimizer):
        train(net, optimizer.step, range(STEPS))
    assert manager.current_step() > 0
    dist.barrier()
    manager.shutdown(wait=False)
    pg.shutdown()
    return net


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    for kind in ("local", "diloco", "streaming"):
        reference = by_torchft(kind, sys.argv[1])
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        with ours(kind, net, optimizer):
            train(net, optimizer.step, range(STEPS))
        assert alike(net) == alike(reference)
        first, second = weights(net), weights(reference)
        print(f"{kind} {float((first - second).abs().max() / second.abs().max()):g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
