"""A program for Gloo with an accelerator's tensors, on Herringbone: it takes what torch's own Gloo takes, with the same values."""

from __future__ import annotations

from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from simulated import StandIn, synchronized_waits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from values import pieces, rank, same, size

import herringbone.torch

CASES, case = cases.registry()

DEVICES = (torch.device("cpu"), torch.device("cuda"))


@case
def gloo_is_herringbone_on_both_devices() -> None:
    assert dist.get_backend() == "gloo"
    for name in ("gloo", "cpu:gloo,cuda:gloo", "cuda:gloo"):
        group = dist.new_group(backend=name)
        served = {device.type: group._get_backend(device) for device in DEVICES if device in group._device_types}
        assert "cuda" in served
        for backend in served.values():
            assert isinstance(backend, (herringbone.torch.BackendHerringbone, herringbone.torch.ProcessGroupHerringbone)), name
    own = dist.new_group(backend="torch-gloo")
    assert {type(own._get_backend(device)).__name__ for device in DEVICES} == {"ProcessGroupGloo"}


@case
def what_gloo_takes_has_its_values() -> None:
    """torch's list of what Gloo does with CUDA tensors, and what it does besides; its own Gloo computes on the host."""
    gloo = dist.new_group(backend="torch-gloo")
    inputs = pieces(1200 * size(), torch.float32)
    mine = inputs[rank()]
    results: list[list[torch.Tensor]] = []
    for group in (dist.group.WORLD, gloo):
        got: list[torch.Tensor] = []
        for call in (dist.all_reduce, lambda tensor, group: dist.broadcast(tensor, 1, group=group)):
            tensor = mine.clone()
            call(tensor, group=group)
            got.append(tensor)
        parts = [torch.zeros_like(mine) for _ in range(size())]
        dist.all_gather(parts, mine, group=group)
        whole = torch.zeros(size() * mine.numel())
        dist.all_gather_into_tensor(whole, mine, group=group)
        part = torch.zeros(1200)
        dist.reduce_scatter_tensor(part, mine.clone(), group=group)
        exchanged = torch.zeros_like(mine)
        dist.all_to_all_single(exchanged, mine, group=group)
        at_root = [torch.zeros_like(mine) for _ in range(size())] if rank() == 0 else None
        dist.gather(mine, at_root, 0, group=group)
        scattered = torch.zeros(1200)
        dist.scatter(scattered, [*mine.view(size(), -1)] if rank() == 0 else None, 0, group=group)
        received = torch.zeros_like(mine)
        work = dist.isend(mine, (rank() + 1) % size(), group=group)
        dist.recv(received, (rank() - 1) % size(), group=group)
        work.wait()
        sparse = torch.sparse_coo_tensor(torch.tensor([[rank(), 2]]), torch.tensor([1.0, 2.0]), (5,), check_invariants=True)
        dist.all_reduce(sparse, group=group)
        got += [*parts, whole, part, exchanged, *(at_root or []), scattered, received, sparse.to_dense()]
        results.append(got)
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)


@case
def ddp_has_the_losses_of_gloo() -> None:
    gloo = dist.new_group(backend="torch-gloo")
    losses = []
    for group in (dist.group.WORLD, gloo):
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank())
        for _ in range(5):
            values = torch.randn(8, 16, generator=generator)
            optimizer.zero_grad()
            loss = (model(values) - values.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    # Two summands have one order.
    assert size() > 2 or losses[:5] == losses[5:], losses


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    STAND_IN = StandIn(dist.get_rank() + 5)
    with synchronized_waits():
        cases.run(CASES, dist.get_rank())
    assert STAND_IN.hazards() == []
    STAND_IN.end()
    dist.destroy_process_group()
