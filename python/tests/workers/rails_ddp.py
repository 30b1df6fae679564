"""DistributedDataParallel whose gradients add up on hosts first, beside the same training over torch's Gloo.

Usage: rails_ddp.py RANKS_PER_HOST. Each rank compares the losses of all steps, and its weights with those of rank 0.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from simulated import LanedStandIn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 12


def losses(group: dist.ProcessGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each step of a small convolutional network, and the weights in the end."""
    torch.manual_seed(5)
    layers = [nn.Conv2d(1, 7, 3), nn.ReLU(), nn.BatchNorm2d(7), nn.Flatten(), nn.Linear(7 * 36, 11), nn.ReLU(), nn.Linear(11, 3)]
    model = DistributedDataParallel(nn.Sequential(*layers), process_group=group, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(dist.get_rank())
    seen = []
    for _ in range(STEPS):
        images, labels = torch.randn(6, 1, 8, 8, generator=draw), torch.randint(3, (6,), generator=draw)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
        seen.append(mean)
    return torch.stack(seen), torch.cat([weight.detach().flatten() for weight in model.parameters()])


def main(each: int) -> None:
    os.environ["NCCL_HOSTID"] = f"host {int(os.environ['RANK']) // each}"
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    expected, _ = losses(gloo)
    accelerator = LanedStandIn(seed=dist.get_rank())
    before = dist.group.WORLD.stats()["workers_shm"]["sent"]
    found, weights = losses(dist.group.WORLD)
    [said] = dist.group.WORLD.member.on_hosts()
    assert "add up first" in said, said
    torch.testing.assert_close(found, expected)
    assert found[-1] < found[0], found
    first = weights.clone()
    dist.broadcast(first, 0, group=gloo)
    assert torch.equal(first, weights)
    print(f"moved: {dist.group.WORLD.stats()['workers_shm']['sent'] - before}", flush=True)
    accelerator.end()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
