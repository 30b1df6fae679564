"""One worker of bench/ddp.py: the same training through several backends, in turns, and the trace of a few steps.

All contenders live in one process, so that their rounds interleave; each has its own model, which begins with the same
parameters and sees the same batches. Writes `rank<r>.json` into the folder of the job.
"""

import argparse
import copy
import datetime
import hashlib
import json
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024
LAYER_BYTES = 4 * WIDTH * (WIDTH + 1)
LEARNING_RATE = 0.01
SEED = 7
BUCKET_MEBIBYTES = 25
WARM_UP_STEPS = 2
ALONE = "alone"
"""The contender that does not communicate: what a step costs without it."""


class Layer(nn.Module):
    """x + tanh(linear(x)): as many as wanted follow each other without vanishing."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def network(megabytes):
    """A chain of equal layers with about `megabytes` 10^6 bytes of parameters."""
    torch.manual_seed(SEED)
    return nn.Sequential(*[Layer() for _ in range(max(1, round(megabytes * 1e6 / LAYER_BYTES)))])


class Contender:
    """A training: a model, its optimizer, and the group through which its gradients become means."""

    def __init__(self, name, group, model, batch):
        self.name, self.group, self.batch = name, group, batch
        self.module = model
        self.model = model if name == ALONE else distributed(model, group)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step(self, mark=lambda _: None):
        """One step; `mark` is told what begins."""
        mark("forward")
        self.optimizer.zero_grad()
        loss = self.model(self.batch).square().mean()
        mark("backward")
        loss.backward()
        mark("optimizer")
        self.optimizer.step()
        mark("end")

    def round(self, steps):
        """Seconds of a step, over a few."""
        dist.barrier()
        began = time.monotonic()
        for _ in range(steps):
            self.step()
        return (time.monotonic() - began) / steps

    def parameters(self):
        """All parameters as one tensor."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.module.parameters()])


def distributed(model, group):
    """The model as DDP has it by default, without a copy from gradients to buckets."""
    return DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET_MEBIBYTES, gradient_as_bucket_view=True)


class Trace:
    """When a step computed which layer, and when each bucket was being summed; seconds of a clock of this host."""

    def __init__(self, contender):
        self.contender, self.steps = contender, []
        contender.model = distributed(contender.module, contender.group)
        contender.model.register_comm_hook(None, self.all_reduce)
        layers = enumerate(contender.module)
        self.hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, layer=layer: self.gradient(layer))
            for layer, module in layers
            for parameter in module.parameters()
        ]

    def all_reduce(self, _, bucket):
        """DDP's own hook, with a clock before and behind it."""
        current, began = self.steps[-1], time.monotonic()
        buffer = bucket.buffer().div_(dist.get_world_size())
        size = buffer.numel() * buffer.element_size()
        work = dist.all_reduce(buffer, group=self.contender.group, async_op=True)

        def summed(future):
            current["buckets"].append({"bytes": size, "began": began, "ended": time.monotonic()})
            return future.value()[0]

        return work.get_future().then(summed)

    def gradient(self, layer):
        """A gradient of a layer is there; the last one of a layer counts."""
        self.steps[-1]["layers"][layer] = time.monotonic()

    def mark(self, what):
        """A part of the step begins."""
        self.steps[-1][what] = time.monotonic()

    def run(self, steps):
        """Traces `steps` steps behind a few that only warm up."""
        for _ in range(WARM_UP_STEPS + steps):
            self.steps.append({"layers": {}, "buckets": []})
            self.contender.step(self.mark)
        for hook in self.hooks:
            hook.remove()
        for step in self.steps:
            step["layers"] = sorted(step["layers"].items(), key=lambda each: each[1])
        return self.steps[WARM_UP_STEPS:]


def contenders(options):
    """Joins the job and builds one training per backend, and the one that is alone."""
    first, *others = options.backends.split(",")
    dist.init_process_group(first, timeout=datetime.timedelta(minutes=5))
    groups = {first: dist.group.WORLD} | {name: dist.new_group(backend=name) for name in others}
    model = network(options.megabytes)
    generator = torch.Generator().manual_seed(SEED + dist.get_rank())
    batch = torch.randn(options.compute, WIDTH, generator=generator)
    names = [*groups, ALONE]
    return [Contender(name, groups.get(name), copy.deepcopy(model), batch) for name in names]


def race(everyone, options):
    """Seconds of a step, per contender and round."""
    seconds = {each.name: [] for each in everyone}
    for each in everyone:
        each.round(WARM_UP_STEPS)
    for number in range(options.rounds):
        for each in everyone:
            seconds[each.name].append(each.round(options.steps))
        if dist.get_rank() == 0:
            shown = ", ".join(f"{name} {rounds[-1]:.3f} s a step" for name, rounds in seconds.items())
            print(f"round {number + 1} of {options.rounds}: {shown}", file=sys.stderr, flush=True)
    return seconds


def agreement(everyone):
    """The digest of each contender's parameters, and the greatest difference of the first one's to another's."""
    trained = {each.name: each.parameters() for each in everyone if each.name != ALONE}
    first, *others = trained.values()
    return {
        "digests": {name: hashlib.sha256(values.numpy().tobytes()).hexdigest() for name, values in trained.items()},
        "difference": max(((first - other).abs().max().item() for other in others), default=0.0),
        "finite": all(bool(values.isfinite().all()) for values in trained.values()),
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--backends", required=True)
    arguments.add_argument("--megabytes", type=float, required=True)
    arguments.add_argument("--compute", type=int, required=True)
    arguments.add_argument("--rounds", type=int, required=True)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--traced", type=int, required=True)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    everyone = contenders(options)
    result = {
        "parameters": sum(parameter.numel() for parameter in everyone[0].module.parameters()),
        "layers": len(everyone[0].module),
        "seconds": race(everyone, options),
        **agreement(everyone),
    }
    if options.traced:
        result["trace"] = {each.name: Trace(each).run(options.traced) for each in everyone if each.name != ALONE}
    (options.out / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
