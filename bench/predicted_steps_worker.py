"""A rank of bench/predicted_steps.py: trains one of its models under DistributedDataParallel, as a user's script does.

Usage: predicted_steps_worker.py MODEL STEPS. Rank 0 prints the seconds of each step as JSON, without those that warm up. `python -m
herringbone.profile` runs the same script, which knows nothing of profiles.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 4


def perceptron():
    """Five matrices of 4 MiB, and a batch: nearly all of its time is in gradients and sums."""
    layers = [layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.Tanh())]
    return nn.Sequential(*layers), (32, 1024)


def convolutions():
    """Many operations for each of 1.2 million parameters, and a last matrix of half of them, whose sum begins first."""
    channels = [3, 32, 64, 128]
    layers = []
    for into, out in zip(channels, channels[1:]):
        layers += [nn.Conv2d(into, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 512), nn.ReLU(), nn.Linear(512, 10)), (32, 3, 32, 32)


MODELS = {"perceptron": perceptron, "convolutions": convolutions}


def main():
    """Trains."""
    kind, steps = MODELS[sys.argv[1]], int(sys.argv[2])
    dist.init_process_group("herringbone")
    torch.manual_seed(1)
    network, shape = kind()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    seconds = []
    for _ in range(WARM_UP_STEPS + steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(torch.randn(shape)).square().mean()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        print(json.dumps(seconds[WARM_UP_STEPS:]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
