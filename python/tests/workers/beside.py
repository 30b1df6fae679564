"""What runs beside a training: checkpoints that are saved behind it, calls to other processes, torch's own checks of each call.

torch checks each call where TORCH_DISTRIBUTED_DEBUG is DETAIL, which is set for all cases; two ranks.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import cases
import torch
import torch.distributed as dist
from cases import error_of
from torch import nn
from torch.distributed import checkpoint, rpc
from torch.nn.parallel import DistributedDataParallel
from values import rank, same, size

CASES, case = cases.registry()

STEPS = 6


def from_rank_0(value: str) -> str:
    shared = [value]
    dist.broadcast_object_list(shared)
    return str(shared[0])


@case
def the_checks_are_on() -> None:
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL


@case
def a_mismatch_is_told_and_the_group_goes_on() -> None:
    mine = torch.ones(4 + rank())
    error_of(RuntimeError, lambda: dist.all_reduce(mine), "all_reduce", "rank 0", "rank 1")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    same(tensor, torch.full((4,), 2.0))


@case
def ddp_names_the_parameters_that_got_no_gradient() -> None:
    model = DistributedDataParallel(OneOfTwo())
    model(torch.ones(1, 2)).sum().backward()
    error_of(RuntimeError, lambda: model(torch.ones(1, 2)), "unused.weight", "find_unused_parameters")


class OneOfTwo(nn.Module):
    """A network of which one layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.used(values)


@case
def a_checkpoint_is_saved_while_training_goes_on() -> None:
    """In the training's own group: what the thread that saves calls comes at another time on each rank."""
    folder = Path(from_rank_0(tempfile.mkdtemp(dir=os.environ["RESULTS"])))
    torch.manual_seed(3)
    model = DistributedDataParallel(nn.Linear(200, 200))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running, saved = None, []
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.full((1, 200), float(rank() + step))).square().mean().backward()
        optimizer.step()
        if step % 2 == 0:
            state = {"model": model.module.state_dict(), "step": step}
            saved.append({name: value.clone() for name, value in state["model"].items()})
            if running is not None:
                running.result(timeout=60)
            running = checkpoint.async_save(state, checkpoint_id=folder / str(step))
    running.result(timeout=60)
    dist.barrier()
    for expected, step in zip(saved, range(0, STEPS, 2)):
        state = {"model": nn.Linear(200, 200).state_dict(), "step": -1}
        checkpoint.load(state, checkpoint_id=folder / str(step))
        assert state["step"] == step
        for name, value in expected.items():
            same(state["model"][name], value)


def twice(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


@case
def calls_to_other_processes_beside_collectives() -> None:
    # torch's RPC asks for the name of a group that it has not registered, where each call is checked.
    dist.set_debug_level(dist.DebugLevel.OFF)
    path = from_rank_0(os.path.join(os.environ["RESULTS"], "rpc"))
    chosen = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}", _transports=["uv"])
    rpc.init_rpc(f"worker{rank()}", rank=rank(), world_size=size(), rpc_backend_options=chosen)
    try:
        answers = []
        for number in range(50):
            peer = f"worker{(rank() + 1) % size()}"
            answers.append(rpc.rpc_async(peer, twice, args=(torch.full((100,), float(number)),)))
            tensor = torch.full((1000,), float(number))
            dist.all_reduce(tensor)
            same(tensor, torch.full((1000,), float(number * size())))
        for number, answer in enumerate(answers):
            same(answer.wait(), torch.full((100,), 2.0 * number))
        dist.barrier()
    finally:
        rpc.shutdown()
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
