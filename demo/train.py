"""Trains a residual network on scikit-learn's handwritten digits with DistributedDataParallel.

An ordinary DDP script, started by torchrun once per worker. The one thing that concerns Herringbone is the
backend's name: `--backend herringbone` and `--backend gloo` run the same lines. Every rank leaves
`rank<r>.json` in `--out`, rank 0 its parameters as well, so that `run.py` can compare the ranks with each
other and the two runs as a whole.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import time

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from progress import Progress

WIDTH = 1536
BLOCKS = 6
BATCH = 32
LEARNING_RATE = 0.01
SEED = 7


class Block(nn.Module):
    """x + two linear layers: two tensors of 9.4 MB each, so that a 25 MiB bucket holds a few of them."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, x):
        return x + self.layers(x)


def network():
    """28.5 million parameters: 114 MB of gradients in every step."""
    blocks = [Block(WIDTH) for _ in range(BLOCKS)]
    return nn.Sequential(nn.Linear(64, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))


def digits():
    """The 1,797 images of 8 x 8 pixels, in a fixed order: (train images, labels), (test images, labels)."""
    images, labels = load_digits(return_X_y=True)
    order = numpy.random.default_rng(SEED).permutation(len(images))
    images = torch.tensor(images[order] / 16.0 - 0.5, dtype=torch.float32)
    labels = torch.tensor(labels[order])
    test = len(images) // 5
    return (images[test:], labels[test:]), (images[:test], labels[:test])


def own_batches(count, epoch, rank, world):
    """This rank's batches of an epoch: every rank draws the same order and takes its own part of it."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch))
    step = BATCH * world
    for start in range(0, count - step + 1, step):
        yield order[start + rank * BATCH : start + (rank + 1) * BATCH]


def accuracy(model, images, labels):
    """The share of the images that the model gets right."""
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def digest(model):
    """SHA-256 over the bits of all parameters."""
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().numpy().tobytes())
    return sha.hexdigest()


class Waiting:
    """How long backward passes went on after their last gradient: the time spent waiting for sums."""

    def __init__(self, model):
        self.seconds, self.last_gradient = 0.0, 0.0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient_is_there)

    def _gradient_is_there(self, _):
        self.last_gradient = time.monotonic()

    def backward(self, loss):
        """`loss.backward()`, which returns once all sums are there."""
        loss.backward()
        self.seconds += time.monotonic() - self.last_gradient


def engine_stats(backend):
    """What the engine counted on this rank; Gloo counts nothing."""
    return dist.group.WORLD.stats() if backend == "herringbone" else None


def train(model, waiting, epochs, rank, world, progress):
    """Trains for `epochs`; returns a list with accuracy, loss and seconds of each."""
    (images, labels), test = digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    history = []
    for epoch in range(epochs):
        began, losses = time.monotonic(), []
        for batch in own_batches(len(images), epoch, rank, world):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            waiting.backward(loss)
            optimizer.step()
            losses.append(loss.item())
            progress.step(f"epoch {epoch + 1}/{epochs}  loss {losses[-1]:.4f}")
        seconds = time.monotonic() - began
        right = accuracy(model.module, *test)
        history.append({"accuracy": right, "loss": sum(losses) / len(losses), "seconds": seconds})
        progress.line(f"epoch {epoch + 1}/{epochs}  accuracy {right:7.2%}  {seconds:5.1f} s")
    return history


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--backend", required=True)
    arguments.add_argument("--epochs", type=int, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    options = arguments.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)
    dist.init_process_group(options.backend, timeout=datetime.timedelta(minutes=3))
    rank, world = dist.get_rank(), dist.get_world_size()

    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    waiting = Waiting(model)
    steps = options.epochs * (len(digits()[0][0]) // (BATCH * world))
    progress = Progress(options.backend, steps, visible=rank == 0)
    began = time.monotonic()
    history = train(model, waiting, options.epochs, rank, world, progress)
    seconds = time.monotonic() - began
    progress.close()

    parameters = list(model.module.parameters())
    result = {
        "rank": rank,
        "digest": digest(model.module),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "steps": steps,
        "seconds": seconds,
        "waiting": waiting.seconds,
        "history": history,
        "stats": engine_stats(options.backend),
    }
    (options.out / f"rank{rank}.json").write_text(json.dumps(result))
    if rank == 0:
        arrays = {name: value.detach().numpy() for name, value in model.module.named_parameters()}
        numpy.savez(options.out / "parameters.npz", **arrays)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
