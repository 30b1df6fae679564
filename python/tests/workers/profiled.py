"""A training as users write them, in one of several kinds: it knows nothing of profiles.

Usage: profiled.py KIND [BACKEND].
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

KIND = sys.argv[1]
SLEEP = 0.02
"""Of each part of a step, where parts sleep."""


class Slow(torch.autograd.Function):
    """Takes a while in the backward pass, between the gradients of two layers."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SLEEP)
        return gradient


class Net(torch.nn.Module):
    """Two layers, and a parameter of the model itself."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.hidden = torch.nn.Linear(16, 32)
        self.out = torch.nn.Linear(32, 4)

    def forward(self, rows):
        if KIND == "sleeps":
            time.sleep(SLEEP)
        hidden = self.hidden(rows).relu()
        return self.out(Slow.apply(hidden) if KIND == "sleeps" else hidden) * self.scale


class Outer(torch.nn.Module):
    """Has a model, and is never called."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def train_step(self, rows):
        return self.net(rows).square().mean()


class Sleepy(torch.optim.SGD):
    """Takes a while."""

    def step(self, closure=None):
        time.sleep(SLEEP)
        super().step(closure)


def wide():
    """Layers of several buckets, one of which is not trained."""
    layers = [torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 256), torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 8)]
    for parameter in layers[1].parameters():
        parameter.requires_grad = False
    return torch.nn.Sequential(*layers)


def losses(model, count):
    """A loss for each step, over numbers that all kinds share."""
    width = 512 if KIND.startswith("ddp") else 16
    for _ in range(count):
        yield model(torch.randn(8, width)).square().mean()


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def ddp():
    """DDP over the group of a launcher; the kind says with which settings."""
    dist.init_process_group(sys.argv[2])
    options = {
        "ddp-cap": {"bucket_cap_mb": 1},
        "ddp-unused": {"find_unused_parameters": True},
        "ddp-static": {"static_graph": True, "find_unused_parameters": True},
    }
    model = DistributedDataParallel(wide(), **options.get(KIND, {}))
    if KIND == "ddp-hook":
        model.register_comm_hook(dist.group.WORLD, allreduce_hook)
    if KIND == "ddp-weights":
        torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.01)
    numbers = losses(model, 200)
    try:
        for _ in range(100):
            if KIND == "ddp-no-sync":
                with model.no_sync():
                    next(numbers).backward()
            step(optimizer, next(numbers))
    finally:
        if KIND == "ddp-weights":
            print("weights", sum(each.double().sum().item() for each in model.parameters()))
    dist.destroy_process_group()


def compiled(model):
    if KIND == "compiled":
        return torch.compile(model, backend="eager")
    model.compile(backend="eager")
    return model


def alone():
    """One process."""
    model = Outer() if KIND == "outer" else Net()
    called = compiled(model) if KIND.startswith("compiled") else model
    optimizer = (Sleepy if KIND == "sleeps" else torch.optim.SGD)(model.parameters(), lr=0.01)
    if KIND == "named":
        Net.__name__ = "Net\033[2J"
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
    for number in range(5 if KIND == "short" else 40):
        rows = torch.randn(8, 16)
        if KIND == "fails" and number == 6:
            raise ValueError("an error of the script")
        if KIND == "exits" and number == 6:
            sys.exit(7)
        if KIND == "moves" and number == 6:
            os.chdir("/")
        if KIND == "closure":
            optimizer.step(lambda: closure(optimizer, model, rows))
        elif KIND == "untrained":
            called(rows)
        elif KIND == "functional":
            weights = list(model.parameters())
            for weight, gradient in zip(weights, torch.autograd.grad(called(rows).sum(), weights), strict=True):
                weight.grad = gradient
            optimizer.step()
        elif KIND == "manual":
            called(rows).square().mean().backward()
        elif KIND == "uncalled":
            step(optimizer, model.forward(rows).square().mean())
        else:
            if KIND == "accumulates":
                for _ in range(2):
                    called(rows).square().mean().backward()
            if KIND == "sleeps":
                time.sleep(SLEEP)
            step(optimizer, model.train_step(rows) if KIND == "outer" else called(rows).square().mean())
            if KIND == "two models":
                other.step()


def closure(optimizer, model, rows):
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    return loss


def child():
    """A process that trains a model of its own, and ends with a code of its own."""
    alone()
    print("the end of the child", flush=True)
    sys.exit(7)


torch.manual_seed(0)
if KIND == "forks":
    process = os.fork()
    if not process:
        child()
    print("the child ended with", os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
if KIND == "of two":
    first, second = Net(), Net()
    both = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    step(both, first(torch.randn(8, 16)).sum() + second(torch.randn(8, 16)).sum())
if KIND == "within":
    net = Net()
    early = torch.optim.SGD(net.parameters(), lr=0.01)
    net.out.weight.register_post_accumulate_grad_hook(lambda _: early.step())
    for loss in losses(net, 3):
        loss.backward()
if KIND.startswith("ddp"):
    ddp()
else:
    alone()
print("the end of the script")
