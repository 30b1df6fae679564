"""A program of Horovod."""

from __future__ import annotations

import torch
from typing_extensions import assert_type

import herringbone.horovod
import herringbone.horovod.torch as hvd


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, steps: int) -> float:
    """Keeps its own signature."""
    for _ in range(steps):
        state.commit()
    return 0.5


def main(model: torch.nn.Module) -> None:
    """Wrap the optimizer, and reduce."""
    hvd.init()
    inner = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
    compression = hvd.Compression.fp16
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), compression, op=hvd.Average)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert_type(hvd.allreduce(torch.ones(1), op=hvd.Sum), torch.Tensor)
    assert_type(hvd.poll(hvd.allreduce_async(torch.ones(1))), bool)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
    assert_type(train(state, 3), float)


def count(start: int) -> str:
    """A function of the ranks."""
    return str(start)


assert_type(herringbone.horovod.run(count, (3,), np=2), list[str])
