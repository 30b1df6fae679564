"""What sums and steps of training give to the bit, for tests that compare jobs with and without a topology."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

COUNTS = (1, 1_000, 100_003, 1_000_003)
"""From those of one message to those of which links decide."""


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def sums(dtype: torch.dtype) -> list[torch.Tensor]:
    """Values whose sum depends on the order of additions."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    results = []
    for count in COUNTS:
        tensor = torch.randn(count, generator=generator).mul(10 ** (dist.get_rank() - 1)).to(dtype)
        dist.all_reduce(tensor)
        results.append(tensor)
    return results


def trained() -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 256, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def main() -> None:
    rank = int(os.environ["RANK"])
    file = Path(os.environ["RESULTS"], f"{rank}.json")
    if rank == 2 and "OTHER_LINKS" in os.environ:
        os.environ["HERRINGBONE_TOPOLOGY"] = os.environ["OTHER_LINKS"]
    try:
        dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
        dist.barrier()
    except Exception as error:
        file.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise
    outcome = {
        "float32": digest(sums(torch.float32)),
        "bfloat16": digest(sums(torch.bfloat16)),
        "trained": digest(trained()),
        "plan": dist.group.WORLD.explain(1_000_003),
    }
    file.write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
