"""One rank of an all-reduce over NCCL; `tests/gpu/plugin.py` starts it. Rank 0 prints the seconds of each size in MiB as JSON."""

from __future__ import annotations

import json
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

SIZES = (1, 25, 100)
ROUNDS = 12


def main() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=timedelta(seconds=60))
    found = {}
    for size in SIZES:
        tensor = torch.ones(size << 18, device="cuda")
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        assert tensor[-1].item() == dist.get_world_size(), tensor
        times = []
        for _ in range(ROUNDS):
            tensor.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        found[size] = statistics.median(times[2:])
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
