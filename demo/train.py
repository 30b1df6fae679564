"""One worker of the demo: trains the same network through several backends, in turns.

An ordinary training with DistributedDataParallel on scikit-learn's handwritten digits; the one thing that concerns
Herringbone is the backend's name. All trainings begin with the same parameters and see the same batches, and they take
turns of a few steps, so that all of them see the same machine. A worker leaves `rank<r>.json` in `--out`, and rank 0
the parameters of each training.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import re
import statistics
import time

import numpy
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import herringbone
from herringbone.compare.progress import Bar

WIDTH = 1024
BLOCKS = 3
BATCH = 32
LEARNING_RATE = 0.02
SEED = 7
WARM_UP_STEPS = 2
"""The first turn of each training, whose times are ignored, because DDP makes its buckets and links are made."""


class Block(nn.Module):
    """x + two linear layers: two tensors of 4.2 MB each."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x):
        return x + self.layers(x)


def network():
    """6.4 million parameters: 25 MB of gradients in every step."""
    torch.manual_seed(SEED)
    blocks = [Block(WIDTH) for _ in range(BLOCKS)]
    return nn.Sequential(nn.Linear(64, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))


class Digits:
    """1,797 images of 8 x 8 pixels in a fixed order: a fifth tests, and each rank trains with its part of the rest."""

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        order = numpy.random.default_rng(SEED).permutation(len(images))
        self.images = torch.tensor(images[order] / 16.0 - 0.5, dtype=torch.float32)
        self.labels = torch.tensor(labels[order])
        self.tests = len(images) // 5

    def batch(self, step, rank, world):
        """This rank's images and labels in a step: every rank draws the same order and takes its own part of it."""
        count = len(self.images) - self.tests
        epoch, place = divmod(step, count // (BATCH * world))
        order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch)) + self.tests
        own = order[(place * world + rank) * BATCH :][:BATCH]
        return self.images[own], self.labels[own]

    def accuracy(self, model):
        """The fraction of test images that the model classifies correctly."""
        with torch.no_grad():
            guessed = model(self.images[: self.tests]).argmax(1)
        return (guessed == self.labels[: self.tests]).float().mean().item()


class Training:
    """A network, and the group through which its gradients become means."""

    def __init__(self, group, bucket_mebibytes):
        self.group = group
        self.model = DistributedDataParallel(network(), process_group=group, bucket_cap_mb=bucket_mebibytes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self.steps, self.last_gradient = 0, 0.0
        for parameter in self.model.parameters():
            parameter.register_post_accumulate_grad_hook(self._gradient_is_there)

    def _gradient_is_there(self, _):
        self.last_gradient = time.monotonic()

    def step(self, digits):
        """One step: its seconds, and the backward pass's seconds after its last gradient."""
        images, labels = digits.batch(self.steps, dist.get_rank(), dist.get_world_size())
        began = time.monotonic()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        waited = time.monotonic() - self.last_gradient
        self.optimizer.step()
        self.steps += 1
        return time.monotonic() - began, waited

    def parameters(self):
        """All of them, one behind the other."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.model.parameters()]).numpy()

    def algorithm(self):
        """The algorithm of most all-reduces; Gloo does not report one."""
        if dist.get_backend(self.group) == "gloo":
            return None
        counted = self.group.stats()["operations"]["all_reduce"]
        return max(counted, key=counted.get)


def groups(names, reducers):
    """A group of all workers for each name, apart from each other: gloo, herringbone, and reducers."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=2))
    made = {
        "gloo": lambda: dist.group.WORLD,
        "herringbone": lambda: dist.new_group(backend="herringbone"),
        "reducers": lambda: dist.new_group(backend="herringbone", pg_options=herringbone.Options(reducers=reducers.split(","))),
    }
    return {name: made[name]() for name in names.split(",")}


def sent(interface):
    """Bytes that have left through a network interface of this host; 0 without one."""
    if not interface:
        return 0
    counters = re.search(rf"^\s*{interface}:(.*)", pathlib.Path("/proc/net/dev").read_text(), re.MULTILINE)
    return int(counters[1].split()[8])


def race(trainings, digits, options):
    """Trains in turns: for each name the seconds of each step, by round, and the bytes that this host has sent."""
    times, bytes_sent = {name: [] for name in trainings}, dict.fromkeys(trainings, 0)
    steps = len(trainings) * (WARM_UP_STEPS + options.rounds * options.steps)
    bar = Bar(options.title, steps, visible=dist.get_rank() == 0)
    for number in range(options.rounds + 1):
        for name in list(trainings)[:: -1 if number % 2 else 1]:
            dist.barrier()
            before = sent(options.interface)
            times[name].append([])
            for _ in range(options.steps if number else WARM_UP_STEPS):
                times[name][-1].append(trainings[name].step(digits))
                bar.step(f"{name} {times[name][-1][-1][0]:.3f} s a step")
            bytes_sent[name] += sent(options.interface) - before
        if number:
            medians = (f"{name} {statistics.median(each[0] for each in times[name][-1]):.3f} s" for name in trainings)
            bar.line(f"round {number} of {options.rounds}, a step: {', '.join(medians)}")
    bar.close()
    return times, bytes_sent


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--title", required=True, help="what the progress is called")
    arguments.add_argument("--trainings", required=True, help="of gloo, herringbone and reducers, with commas")
    arguments.add_argument("--reducers", help="their addresses, with commas")
    arguments.add_argument("--interface", default="", help="whose bytes are counted")
    arguments.add_argument("--bucket", type=float, help="mebibytes of a bucket of gradients")
    arguments.add_argument("--rounds", type=int, required=True)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    options = arguments.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    made = groups(options.trainings, options.reducers)
    trainings = {name: Training(group, options.bucket) for name, group in made.items()}
    digits = Digits()
    times, bytes_sent = race(trainings, digits, options)

    result = {}
    for name, training in trainings.items():
        parameters = training.parameters()
        if dist.get_rank() == 0:
            numpy.save(options.out / f"{name}.npy", parameters)
        result[name] = {
            "rounds": times[name][1:],
            "sent": bytes_sent[name] / training.steps if options.interface else None,
            "steps": training.steps,
            "digest": hashlib.sha256(parameters.tobytes()).hexdigest(),
            "accuracy": digits.accuracy(training.model.module),
            "algorithm": training.algorithm(),
        }
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
