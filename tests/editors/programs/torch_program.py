"""A program of torch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import assert_type

import herringbone.torch as backend
from herringbone.optim import DiLoCo, LocalSGD


def main() -> None:
    """Gradients are summed by the backend, and averaged with less often."""
    dist.init_process_group("herringbone")
    buffer = backend.empty((3, 4), torch.float32)
    assert_type(buffer, torch.Tensor)
    with backend.compression("topk:0.01", tensor="buffer"), backend.priority(1):
        dist.all_reduce(buffer)
    model = torch.nn.Linear(4, 4)
    hook = backend.compression_hook("int8")
    assert_type(hook, backend.CompressionHook)
    assert_type(backend.compression_hook_of(DistributedDataParallel(model)), backend.CompressionHook | None)
    backend.start_timeline("timeline")
    backend.stop_timeline()


def averaged(model: torch.nn.Module) -> None:
    """Averages now and then."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with LocalSGD(model, optimizer, sync_every=10, wire="bf16") as averaging:
        averaging.state_dict()
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    with DiLoCo([model], optimizer, outer, sync_every=20) as averaging:
        averaging.state_dict()
