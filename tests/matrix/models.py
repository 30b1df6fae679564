"""Features: what torch builds on a group to train a model, to save it and to compile it."""

import copy
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from checks import SIZE, NotHere, close, feature, folder, mine, needed, rank, same, same_on_all, total
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))


def batch(step: int, owner: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * step + owner))


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> torch.Tensor:
    """Some steps on this rank's part of each batch; the parameters after them."""
    optimizer = optimizer or sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step, rank())).square().mean().backward()
        optimizer.step()
    return values(model)


def expected(make: Callable[[nn.Module], torch.optim.Optimizer] = sgd) -> torch.Tensor:
    """The parameters after the same steps in one process, on all parts."""
    model = network()
    optimizer = make(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.stack([model(batch(step, owner)).square().mean() for owner in range(SIZE)]).mean().backward()
        optimizer.step()
    return values(model)


def trains(tolerance: float = 1e-5, hook: Callable[[DDP], None] | None = None, **settings: object) -> None:
    """Fail unless DDP trains as one process does, and all ranks have the same bits."""
    model = DDP(network(), bucket_cap_mb=0.0005, **settings)
    if hook is not None:
        hook(model)
    found = train(model)
    close(found, expected(), tolerance)
    same_on_all(found)


@feature("DDP")
def ddp() -> None:
    trains()


@feature("DDP: gradient_as_bucket_view")
def views() -> None:
    trains(gradient_as_bucket_view=True)


@feature("DDP: static_graph")
def static_graph() -> None:
    trains(static_graph=True)


class Branches(nn.Module):
    """Each rank uses one of two branches, and none the third."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(3, 1, bias=False) for _ in range(3)])

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.branches[rank()](tensor)


@feature("DDP: find_unused_parameters")
def unused() -> None:
    model = DDP(Branches(), find_unused_parameters=True)
    model(mine().view(1, 3)).sum().backward()
    for owner in range(SIZE):
        same(model.module.branches[owner].weight.grad, mine(of=owner).view(1, 3) / SIZE)
    assert model.module.branches[2].weight.grad is None


@feature("DDP: no_sync")
def no_sync() -> None:
    model = DDP(nn.Linear(3, 1, bias=False))
    with model.no_sync():
        model(mine().view(1, 3)).sum().backward()
    same(model.module.weight.grad, mine().view(1, 3))
    model(mine().view(1, 3)).sum().backward()
    same(model.module.weight.grad, total().view(1, 3))


@feature("DDP: join with uneven inputs")
def join() -> None:
    model = DDP(nn.Linear(3, 1, bias=False))
    with model.join():
        for _ in range(1 + rank()):
            model.zero_grad()
            model(mine().view(1, 3)).sum().backward()
    if rank() == 1:
        same(model.module.weight.grad, mine().view(1, 3) / SIZE)
    same_on_all(model.module.weight)


@feature("DDP: sparse gradients")
def sparse_gradients() -> None:
    model = DDP(nn.Embedding(4, 2, sparse=True))
    model(torch.tensor([rank(), 2])).sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_sparse
    same(gradient.to_dense(), torch.tensor([[0.5, 0.5], [0.5, 0.5], [1.0, 1.0], [0.0, 0.0]]))


@feature("DDP: hooks of fp16 and bf16")
def compressed() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks

    for hook in (hooks.fp16_compress_hook, hooks.bf16_compress_hook):
        trains(0.02, lambda model, hook=hook: model.register_comm_hook(None, hook))


@feature("DDP: built-in hooks")
def built_in_hooks() -> None:
    kinds = dist.BuiltinCommHookType
    for kind, tolerance in ((kinds.ALLREDUCE, 1e-5), (kinds.FP16_COMPRESS, 0.02)):
        trains(tolerance, lambda model, kind=kind: model._register_builtin_comm_hook(kind))


@feature("DDP: hook of PowerSGD")
def power_sgd() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    model = DDP(nn.Linear(64, 64, bias=False), bucket_cap_mb=0.005)
    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, power.powerSGD_hook)
    for _ in range(4):
        # Gradients of rank one, which are compressed without loss.
        model.zero_grad()
        model(torch.full((1, 64), rank() + 1.0)).sum().backward()
    close(model.module.weight.grad, torch.full((64, 64), 1.5), 1e-3)
    same_on_all(model.module.weight.grad)


@feature("DDP: post-local SGD")
def post_local() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    model = DDP(network())
    alone, _ = dist.new_subgroups(group_size=1)
    state = local.PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=1)
    model.register_comm_hook(state, local.post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    found = train(model, PostLocalSGDOptimizer(sgd(model), averager))
    # Step 0 is averaged by gradients, steps 1 and 2 by parameters where the period ends.
    close(total_of(found) / SIZE, expected(), 0.02)
    assert (found - values(network())).abs().max() > 1e-3


def total_of(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


@feature("ZeroRedundancyOptimizer")
def zero() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(network())
    adam = torch.optim.Adam
    found = train(model, ZeroRedundancyOptimizer(model.parameters(), adam, lr=0.01))
    close(found, expected(lambda model: adam(model.parameters(), lr=0.01)), 1e-4)
    same_on_all(found)


@feature("FSDP1")
def fsdp1() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    model = FSDP(network(), device_id=torch.device("cpu"))
    train(model)
    with FSDP.summon_full_params(model):
        close(values(model), expected())


@feature("FSDP2")
def fsdp2() -> None:
    model = sharded()
    train(model)
    close(full(model), expected())


@feature("FSDP2: buffers in the group's memory")
def mapped_buffers() -> None:
    model = sharded()
    needed(model, "set_allocate_memory_from_process_group_for_comm")(True)
    train(model)
    close(full(model), expected())


def sharded() -> nn.Module:
    """The network, of which each rank has a part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = network(), init_device_mesh("cpu", (SIZE,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def full(model: Any) -> torch.Tensor:
    """All parameters of a sharded model."""
    return torch.cat([parameter.full_tensor().detach().reshape(-1) for parameter in model.parameters()])


@feature("DTensor")
def dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(8.0).view(4, 2)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    same(rows.to_local(), whole.chunk(SIZE)[rank()])
    same(rows.full_tensor(), whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    same(columns.to_local().contiguous(), whole.chunk(SIZE, 1)[rank()].contiguous())
    product = rows.t() @ distribute_tensor(whole, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    same(product.redistribute(mesh, [Replicate()]).to_local(), whole.t() @ whole)


@feature("tensor parallel")
def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network()[:3], init_device_mesh("cpu", (SIZE,)), plan)
    found = model(batch(0, 0))
    close(found, network()[:3](batch(0, 0)))
    found.sum().backward()


def saved(save: Callable[..., object]) -> None:
    """Fail unless what `save` has saved of a sharded model is loaded again."""
    from torch.distributed import checkpoint

    model = sharded()
    before = copy.deepcopy({name: value.full_tensor() for name, value in model.state_dict().items()})
    path = folder() / "checkpoint"
    done = save(model.state_dict(), checkpoint_id=path)
    if done is not None and hasattr(done, "result"):
        done.result()
    dist.barrier()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = model.state_dict()
    checkpoint.load(state, checkpoint_id=path)
    for name, value in state.items():
        same(value.full_tensor(), before[name])


@feature("checkpoints: save, load")
def checkpoints() -> None:
    from torch.distributed import checkpoint

    saved(checkpoint.save)


@feature("checkpoints: async_save")
def asynchronous_checkpoints() -> None:
    from torch.distributed import checkpoint

    saved(checkpoint.async_save)


@feature("torch.compile: a DDP step, aot_eager")
def compiled_eagerly() -> None:
    found = train(torch.compile(DDP(network()), backend="aot_eager"))
    close(found, expected())
    same_on_all(found)


@feature("torch.compile: a DDP step, inductor")
def compiled() -> None:
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "g++"), "clang++")):
        raise NotHere("inductor needs a C++ compiler, and there is no g++ and no clang++")
    found = train(torch.compile(DDP(network())))
    close(found, expected(), 1e-4)
    same_on_all(found)


@feature("torch.compile: functional collectives")
def compiled_collectives() -> None:
    from torch.distributed import _functional_collectives as functions

    def step(tensor: torch.Tensor) -> torch.Tensor:
        return functions.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    same(torch.compile(step, backend="aot_eager", fullgraph=True)(mine()), total() * 2 + 1)


@feature("pipelining")
def pipelining() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model, parts = network(), (slice(0, 2), slice(2, 5))
    stage = PipelineStage(model[parts[rank()]], rank(), SIZE, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda found, wanted: (found - wanted).square().mean())
    inputs, wanted = batch(0, 0), torch.zeros(4, 2)
    found = schedule.step(inputs) if rank() == 0 else schedule.step(target=wanted)
    reference = network()
    answer = reference(inputs)
    answer.square().mean().backward()
    if rank() == 1:
        close(found, answer.detach())
    for own, other in zip(model[parts[rank()]].parameters(), reference[parts[rank()]].parameters()):
        close(own.grad, other.grad)


@feature("DistributedSampler, averaged parameters")
def averaged() -> None:
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    sampler = needed(torch.utils.data, "DistributedSampler")(range(6), shuffle=False)
    assert list(sampler) == [rank(), rank() + 2, rank() + 4]
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(mine().view(1, 3))
    average_parameters(model.parameters(), dist.group.WORLD)
    same(model.weight.detach(), total().view(1, 3) / SIZE)
