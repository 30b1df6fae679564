"""DistributedDataParallel and what torch builds on it, against the same training through Gloo."""

from __future__ import annotations

import copy
import functools
import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cases
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import autograd, rpc
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as quantization
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CASES, case = cases.registry()

STEPS = 4
BUCKET_MB = 0.05
"""Small enough for a dozen buckets, several of them in flight."""

gloo: dist.ProcessGroup


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def network() -> nn.Module:
    torch.manual_seed(7)
    layers = [layer for _ in range(6) for layer in (nn.Linear(96, 96), nn.Tanh())]
    return nn.Sequential(nn.Linear(32, 96), *layers, nn.Linear(96, 8))


class Branches(nn.Module):
    """A network of which each step uses a part only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.branches = nn.ModuleList([nn.Linear(32, 8) for _ in range(3)])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.branches[0 if values.sum() > 0 else 1](values)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def batches(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(16, 32, generator=generator), torch.randn(16, 8, generator=generator)) for _ in range(STEPS)]


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for values, wanted in batches(rank()):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(values), wanted).backward()
        optimizer.step()


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def check_same_bits(model: nn.Module) -> None:
    mine = parameters(model)
    everyones = [torch.empty_like(mine) for _ in range(size())]
    dist.all_gather(everyones, mine)
    assert all(torch.equal(everyones[0].view(torch.int32), other.view(torch.int32)) for other in everyones)


def check_training(
    model: nn.Module,
    hook: Callable[[DistributedDataParallel], None] | None = None,
    rtol: float = 1e-4,
    **settings: object,
) -> None:
    """Train ``model`` over both backends: the ranks end with the same bits, the backends with close values."""
    results = []
    for group in (None, gloo):
        twin = DistributedDataParallel(copy.deepcopy(model), process_group=group, bucket_cap_mb=BUCKET_MB, **settings)
        if hook is not None:
            hook(twin)
        train(twin, sgd(twin))
        check_same_bits(twin)
        results.append(parameters(twin))
    torch.testing.assert_close(results[0], results[1], rtol=rtol, atol=1e-5)


def all_reduces() -> int:
    return sum(dist.group.WORLD.stats()["operations"].get("all_reduce", {}).values())


@case
def training_equals_gloo() -> None:
    before = all_reduces()
    check_training(network())
    assert all_reduces() - before > STEPS, "a step sums several buckets"


@case
def training_with_gradients_as_views() -> None:
    check_training(network(), gradient_as_bucket_view=True)


@case
def training_with_unused_parameters() -> None:
    check_training(Branches(), find_unused_parameters=True)


@case
def training_with_a_static_graph() -> None:
    check_training(network(), static_graph=True)


@case
def training_in_half_precision() -> None:
    model = network().to(torch.bfloat16)
    twin = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    values, wanted = (tensor.to(torch.bfloat16) for tensor in batches(rank())[0])
    nn.functional.mse_loss(twin(values), wanted).backward()
    gradient = next(model.parameters()).grad
    everyones = [torch.empty_like(gradient) for _ in range(size())]
    dist.all_gather(everyones, gradient)
    assert all(torch.equal(gradient, other) for other in everyones)


@case
def compressing_hooks() -> None:
    for hook in (default_hooks.fp16_compress_hook, default_hooks.bf16_compress_hook):
        check_training(network(), hook=lambda model: model.register_comm_hook(None, hook), rtol=0.05)


@case
def power_sgd_hook_that_starts_collectives_in_callbacks() -> None:
    """Several buckets at once, which end a process that trains over Gloo; here every run has the same bits."""
    results = []
    for _ in range(2):
        model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        train(model, sgd(model))
        check_same_bits(model)
        results.append(parameters(model))
    assert torch.equal(*results)
    assert not torch.equal(results[0], parameters(network()))


class TwoStages:
    """Averages each bucket in two calls, of which the second is made when the first is over: at another time on each rank."""

    def __init__(self, nested: bool) -> None:
        self.nested = nested

    def first(self, state, bucket):  # torch compares annotations with its own types, and these are texts
        started = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return started.then(self.in_a_callback if self.nested else functools.partial(second_stage, 1.0 / size()))

    def in_a_callback(self, future: torch.futures.Future) -> torch.Tensor:
        return future.then(functools.partial(second_stage, 1.0 / size())).wait()


def second_stage(scale: float, future: torch.futures.Future) -> torch.Tensor:
    time.sleep(random.random() * 0.002)
    tensor = future.value()[0].div_(size())
    return dist.all_reduce(tensor, async_op=True).get_future().wait()[0].mul_(scale)


@case
def hooks_of_two_stages() -> None:
    for nested in (False, True):
        hook = TwoStages(nested).first
        check_training(network(), hook=lambda model: model.register_comm_hook(None, hook))
    for hook in (quantization.quantization_pertensor_hook, quantization.quantization_perchannel_hook):
        model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
        model.register_comm_hook(None, hook)
        train(model, sgd(model))
        check_same_bits(model)


@case
def training_under_distributed_autograd() -> None:
    """Its backward pass has a thread of C++, in which nothing of Python calls the hook."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.environ['RESULTS']}/rpc")
    rpc.init_rpc(f"worker{rank()}", rank=rank(), world_size=size(), rpc_backend_options=options)
    model, twin = (DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB) for _ in range(2))
    twin.register_comm_hook(None, TwoStages(nested=False).first)
    values, wanted = batches(rank())[0]
    for ddp in (model, twin):
        with autograd.context() as context:
            autograd.backward(context, [nn.functional.mse_loss(ddp(values), wanted)])
            gradients = autograd.get_gradients(context)
        for parameter in ddp.parameters():
            parameter.grad = gradients[parameter]
    plain = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    nn.functional.mse_loss(plain(values), wanted).backward()
    for ddp in (model, twin):
        for mine, expected in zip(ddp.parameters(), plain.parameters()):
            torch.testing.assert_close(mine.grad, expected.grad)
    rpc.shutdown()


@case
def gradients_that_accumulate() -> None:
    model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    (first, _), (second, _), *_ = batches(rank())
    with model.no_sync():
        model(first).sum().backward()
    model(second).sum().backward()
    reference = network()
    for other in range(size()):
        (first, _), (second, _), *_ = batches(other)
        (reference(first).sum() + reference(second).sum()).div(size()).backward()
    for mine, wanted in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-4, atol=1e-4)


@case
def zero_redundancy_optimizer() -> None:
    model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))
    check_same_bits(model)
    plain = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    train(plain, torch.optim.Adam(plain.parameters(), lr=0.01))
    torch.testing.assert_close(parameters(model), parameters(plain), rtol=1e-4, atol=1e-6)


@case
def uneven_inputs() -> None:
    model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    optimizer = sgd(model)
    with Join([model]):
        for values, wanted in batches(rank())[: 1 + rank() % 3]:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(values), wanted).backward()
            optimizer.step()
    check_same_bits(model)


class Numbers(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((32,), index / 64), torch.full((8,), float(index % 2))


@case
def data_loaders_that_fork() -> None:
    model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    optimizer = sgd(model)
    loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for values, wanted in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(values + rank()), wanted).backward()
            optimizer.step()
    check_same_bits(model)


@case
def sharded_models() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (size(),)))
    train(model, torch.optim.SGD(model.parameters(), lr=0.05))
    whole = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    train(whole, torch.optim.SGD(whole.parameters(), lr=0.05))
    in_mapped_memory: Any = network()
    fully_shard(in_mapped_memory, mesh=init_device_mesh("cpu", (size(),)))
    if hasattr(in_mapped_memory, "set_allocate_memory_from_process_group_for_comm"):
        in_mapped_memory.set_allocate_memory_from_process_group_for_comm(True)
    train(in_mapped_memory, torch.optim.SGD(in_mapped_memory.parameters(), lr=0.05))
    for one, other in zip(model.parameters(), in_mapped_memory.parameters()):
        assert torch.equal(one.to_local(), other.to_local())
    full = torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])
    torch.testing.assert_close(full, parameters(whole), rtol=1e-4, atol=1e-6)


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo")
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
