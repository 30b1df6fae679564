"""DDP whose reducers come to harm: prints each step, and in the end a digest of all losses and parameters."""

from __future__ import annotations

import hashlib
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = next((int(word) for word in sys.argv[1:2] if word.isdigit()), 24)
PAUSE_SECONDS = 0.05
"""Of a step: so that what happens to reducers happens in the middle."""


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    digest = hashlib.sha256()
    for step in range(STEPS):
        torch.manual_seed(1000 * step + dist.get_rank())
        inputs, targets = torch.randn(16, 256), torch.randn(16, 8)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        digest.update(loss.detach().numpy().tobytes())
        print(f"step {step}", flush=True)
        time.sleep(PAUSE_SECONDS)
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"digest {digest.hexdigest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
