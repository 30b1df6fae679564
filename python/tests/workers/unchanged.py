"""A script for Gloo, as anybody would have written it; then torch's own Gloo under its other name."""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    assert model._get_ddp_logging_data()["backend_name"] == dist.get_backend() == "gloo"
    model(torch.full((1, 2), float(dist.get_rank() + 1))).sum().backward()
    group = dist.new_group(backend="gloo")
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    real = dist.new_group(backend="torch-gloo")
    again = torch.ones(1)
    dist.all_reduce(again, group=real)
    kinds = [type(dist.group.WORLD).__name__, type(group).__name__, type(real._get_backend(torch.device("cpu"))).__name__]
    print(dist.get_backend(), *kinds, model.module.weight.grad[0, 0].item(), total.item(), again.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
