"""One worker of the study of compression: trains two networks with each codec, with and without feedback."""

import argparse
import json
import math
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import herringbone.torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "demo"), str(ROOT / "examples")]

from model import Text, Transformer
from train import Block, Digits

SEED = 7
AVERAGED = 10
"""A point of a curve is the mean of so many steps."""


class DigitsTask:
    """The demo's network, a quarter as wide, on handwritten digits."""

    name, title, rate = "digits", "The demo's network: handwritten digits", 0.3
    thresholds = {"twobit": 0.002, "threshold": 0.002, "onebit": 500.0}

    def __init__(self):
        self.data = Digits()

    def network(self):
        torch.manual_seed(SEED)
        width = 256
        blocks = [Block(width) for _ in range(3)]
        return nn.Sequential(nn.Linear(64, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 10))

    def loss(self, model, step):
        images, labels = self.data.batch(step, dist.get_rank(), dist.get_world_size())
        return nn.functional.cross_entropy(model(images), labels)

    def score(self, model):
        """The share of the tests that are right, in per cent."""
        return 100 * self.data.accuracy(model)


class TextTask:
    """The example's transformer, small, on the sources of Python's library."""

    name, title, rate = "text", "A small transformer: Python's sources, byte by byte", 0.5
    thresholds = {"twobit": 0.002, "threshold": 0.002, "onebit": 500.0}

    def __init__(self):
        self.data = Text(64, SEED)

    def network(self):
        torch.manual_seed(SEED)
        return Transformer(64, 2, 4, 64)

    def loss(self, model, step):
        seen, following = self.data.batch(step, 8, dist.get_rank(), dist.get_world_size())
        return nn.functional.cross_entropy(model(seen).flatten(0, 1), following.flatten())

    def score(self, model):
        """The share of held-out bytes that are guessed, in per cent."""
        seen, following = self.data.held_out(64, 0, 1)
        with torch.no_grad():
            return 100 * (model(seen).argmax(-1) == following).float().mean().item()


def codecs(task):
    """What is compared: a label, the codec, whether it feeds back, and by what the loss is multiplied."""
    limits = task.thresholds
    yield "none", None, False, 1.0
    for codec in (
        "bf16",
        "int8",
        "sign",
        f"twobit:{limits['twobit']}",
        "topk:0.01",
        "randomk:0.01",
        f"threshold:{limits['threshold']}",
    ):
        for feedback in (True, False):
            yield codec, codec, feedback, 1.0
    # Its codes are +1 and -1, so gradients have to be about as large.
    for feedback in (True, False):
        yield "onebit:0", "onebit:0", feedback, limits["onebit"]


def sent():
    """The payload bytes that this rank has sent up to now."""
    stats = dist.group.WORLD.member.communicator.stats()
    return sum(stats[way]["sent"] for way in ("workers_shm", "workers_tcp", "reducers_tcp"))


def train(task, steps, codec, feedback, scale, name):
    """Train once: the curve as (step, bytes, loss), and the score."""
    model = DistributedDataParallel(task.network(), find_unused_parameters=False)
    if codec is not None:
        hook = herringbone.torch.compression_hook(codec, feedback=feedback, name=name)
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate / scale)
    curve, losses, before = [], [], sent()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = task.rate / scale * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        loss = task.loss(model, step)
        (loss * scale).backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == AVERAGED:
            curve.append((step + 1, sent() - before, sum(losses) / AVERAGED))
            losses = []
    return curve, task.score(model.module)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default="digits,text")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("herringbone")
    results = []
    for task in (kind() for kind in (DigitsTask, TextTask) if kind.name in arguments.tasks.split(",")):
        for number, (label, codec, feedback, scale) in enumerate(codecs(task)):
            curve, score = train(task, arguments.steps, codec, feedback, scale, f"{task.name}{number}")
            results.append(
                {"task": task.name, "title": task.title, "codec": label, "feedback": feedback, "curve": curve, "score": score}
            )
            if dist.get_rank() == 0:
                print(f"{task.name} {label} {'with' if feedback else 'without'} feedback: {score:.2f} %", file=sys.stderr)
    if dist.get_rank() == 0:
        arguments.out.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
