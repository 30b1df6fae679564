"""One worker of the study of compression: trains networks with each codec, with and without feedback, and at several learning rates."""

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Mapping

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
MOMENTUM, WARM_UP = 0.9, 40
"""Of trainings at several learning rates; the steps of a warm-up of the share."""


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


@dataclasses.dataclass(frozen=True)
class Way:
    """One way to train: a codec, and what goes with it."""

    label: str
    codec: str | None = None
    feedback: bool = False
    scale: float = 1.0
    """The loss is multiplied by it, and the rate divided."""
    momentum: float = 0.0
    options: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """More arguments of the hook."""


def ways(task):
    """What the study compares."""
    limits = task.thresholds
    yield Way("none")
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
            yield Way(codec, codec, feedback)
    # Its codes are +1 and -1, so gradients have to be about as large.
    for feedback in (True, False):
        yield Way("onebit:0", "onebit:0", feedback, limits["onebit"])


def ways_at_rates(task):
    """What is trained at each of several learning rates, with momentum."""
    yield Way("none", momentum=MOMENTUM)
    for codec in ("int8", "sign", f"twobit:{task.thresholds['twobit']}", "topk:0.01", "randomk:0.1"):
        for feedback in (True, False):
            yield Way(codec, codec, feedback, momentum=MOMENTUM)
    for warmup in (0, WARM_UP):
        yield Way("topk:0.01", "topk:0.01", True, options={"momentum": MOMENTUM, "warmup_steps": warmup})


def sent():
    """The payload bytes that this rank has sent up to now."""
    stats = dist.group.WORLD.member.communicator.stats()
    return sum(stats[way]["sent"] for way in ("workers_shm", "workers_tcp", "reducers_tcp"))


class Training:
    """One training: its curve, and how large the residual was."""

    def __init__(self, task, way, rate, steps, name):
        """``rate`` is the learning rate of the first step; it falls to 0 along a cosine."""
        self.task, self.rate, self.steps, self.scale = task, rate / way.scale, steps, way.scale
        self.model = DistributedDataParallel(task.network(), find_unused_parameters=False)
        self.hook = None
        if way.codec is not None:
            self.hook = herringbone.torch.compression_hook(way.codec, feedback=way.feedback, name=name, **way.options)
            self.model.register_comm_hook(None, self.hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.rate, momentum=way.momentum)
        self.curve = []
        """Points of a step, the bytes sent, and the loss."""
        self.held = []
        """At three points of time, the residual's length in lengths of the mean gradient."""

    def run(self):
        """Train."""
        losses, before = [], sent()
        for step in range(self.steps):
            self.optimizer.param_groups[0]["lr"] = self.rate * 0.5 * (1 + math.cos(math.pi * step / self.steps))
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, step)
            (loss * self.scale).backward()
            if step and step % (self.steps // 4) == 0:
                self._look_at_residual()
            self.optimizer.step()
            losses.append(loss.item())
            if len(losses) == AVERAGED:
                self.curve.append((step + 1, sent() - before, sum(losses) / AVERAGED))
                losses = []

    def _look_at_residual(self):
        if self.hook is not None and self.hook.feedback:
            left = sum(float(left.square().sum()) for _, left in self.hook.state_dict()["left"].values())
            gradient = sum(float(parameter.grad.square().sum()) for parameter in self.model.parameters())
            self.held.append(math.sqrt(left / gradient) if gradient else math.nan)


def results_of(task, way, rate, steps, name):
    """Train once: what the page needs of it."""
    training = Training(task, way, rate, steps, name)
    training.run()
    score = task.score(training.model.module)
    if dist.get_rank() == 0:
        fed = "with" if way.feedback else "without"
        print(
            f"{task.name} {way.label} at {rate} {fed} feedback, {dict(way.options)}: {score:.2f} %", file=sys.stderr, flush=True
        )
    held = sorted(training.held)[len(training.held) // 2] if training.held else None
    return {
        "task": task.name,
        "title": task.title,
        "codec": way.label,
        "feedback": way.feedback,
        "options": dict(way.options),
        "rate": rate,
        "curve": training.curve,
        "score": score,
        "held": held,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", default="digits,text")
    parser.add_argument("--rates", default="", help="train the first task at these learning rates in place of the study")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("herringbone")
    tasks = [kind() for kind in (DigitsTask, TextTask) if kind.name in arguments.tasks.split(",")]
    if arguments.rates:
        rates = [float(rate) for rate in arguments.rates.split(",")]
        trainings = [(tasks[0], way, rate) for way in ways_at_rates(tasks[0]) for rate in rates]
    else:
        trainings = [(task, way, task.rate) for task in tasks for way in ways(task)]
    results = [
        results_of(task, way, rate, arguments.steps, f"{task.name}{number}") for number, (task, way, rate) in enumerate(trainings)
    ]
    if dist.get_rank() == 0:
        arguments.out.write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
