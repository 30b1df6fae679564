"""One rank of bench/named.py: all contenders live in this process and take turns. Writes `rank<r>.json` into the job's folder."""

import copy
import datetime
import json
import os
import pathlib
import sys
import time
from typing import Any

import ddp_worker
import numpy as np
import torch
import torch.distributed as dist

import herringbone.horovod.torch as hvd
from herringbone._herringbone import Controller
from herringbone.horovod.common import basics

SEED = 7
WARM_UP_STEPS = 3
LEAST, MOST = 4, 1 << 20
"""Bytes of the smallest and of the largest tensor of a step."""


def sizes(count):
    """Bytes of each tensor, from the least to the most in equal ratios, in an order that is no order of sizes."""
    bytes_of = np.geomspace(LEAST, MOST, count).astype(np.int64) // 4 * 4
    return [int(each) for each in np.random.default_rng(SEED).permutation(bytes_of)]


def values(rank, count):
    """Numbers whose sum depends on the order of the ranks."""
    generator = np.random.default_rng(1000 + rank)
    return [generator.standard_normal(size // 4).astype(np.float32) for size in sizes(count)]


class OneByOne:
    """`all_reduce` of one tensor after the other."""

    def __init__(self, job):
        self.job = job

    def reduce(self, arrays):
        """Sums all of them over all ranks, in place."""
        for array in arrays:
            self.job.all_reduce(array)


class Named:
    """The controller, as the Horovod modules call it."""

    def __init__(self, job):
        self.controller = Controller(job._native)

    def reduce(self, arrays):
        """Sums all of them over all ranks, in place."""
        works = [
            self.controller.submit("allreduce", f"{number} of {len(arrays)}", array, array, dtype="f32", shape=array.shape)
            for number, array in enumerate(arrays)
        ]
        for work in works:
            work.wait()

    def counters(self):
        """What the controller has counted."""
        return self.controller.counters()

    def end(self):
        """Ends the controllers of all ranks."""
        self.controller.shutdown()


class HorovodTorch:
    """Horovod's functions for torch."""

    def reduce(self, arrays):
        """Sums all of them over all ranks, in place."""
        tensors = map(torch.from_numpy, arrays)
        handles = [
            hvd.allreduce_async_(tensor, name=f"{number} of {len(arrays)}", op=hvd.Sum) for number, tensor in enumerate(tensors)
        ]
        for handle in handles:
            hvd.synchronize(handle)


class Training:
    """A training through Horovod's optimizer; otherwise it is that of `ddp_worker.Contender`."""

    def __init__(self, model, batch):
        self.module, self.batch = model, batch
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=ddp_worker.LEARNING_RATE)
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def step(self):
        """One step."""
        self.optimizer.zero_grad()
        self.module(self.batch).square().mean().backward()
        self.optimizer.step()


def turns(contenders, rounds, steps, barrier):
    """Seconds of a step of each contender, in each round. A contender is a function that makes a step."""
    seconds = {name: [] for name in contenders}
    for step in contenders.values():
        for _ in range(WARM_UP_STEPS):
            step()
    for _ in range(rounds):
        for name, step in contenders.items():
            barrier()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            seconds[name].append((time.perf_counter() - began) / steps)
    return seconds


def operations(setup, job):
    """Many tensors in a step, and one small one: seconds, and whether all contenders have the same bits."""
    named = Named(job)
    everyone: dict[str, Any] = {"one by one": OneByOne(job), "named": named, "horovod.torch": HorovodTorch()}
    sums = {}
    for name, contender in everyone.items():
        sums[name] = values(job.rank, setup["tensors"])
        contender.reduce(sums[name])
    first = sums["one by one"]
    same = all(own.tobytes() == alone.tobytes() for arrays in sums.values() for own, alone in zip(arrays, first, strict=True))
    buffers = [np.zeros(size // 4, np.float32) for size in sizes(setup["tensors"])]
    small = [np.zeros(1, np.float32)]
    many, one = (
        {name: lambda contender=contender, arrays=arrays: contender.reduce(arrays) for name, contender in everyone.items()}
        for arrays in (buffers, small)
    )
    many_seconds = turns(many, setup["rounds"], setup["steps"], job.barrier)
    before = named.counters()
    one_seconds = turns(one, setup["rounds"], setup["calls"], job.barrier)
    after = named.counters()
    named.end()
    counted = {name: after[name] - before[name] for name in ("cycles", "responses", "bytes_to_coordinator")}
    return {"many": many_seconds, "one": one_seconds, "same_bits": same, "counted": counted}


def training(setup, job):
    """The same training through torch's DistributedDataParallel on Herringbone, and through Horovod's optimizer."""
    dist.init_process_group("herringbone", timeout=datetime.timedelta(minutes=5))
    model = ddp_worker.network(setup["megabytes"])
    generator = torch.Generator().manual_seed(SEED + job.rank)
    batch = torch.randn(setup["rows"], ddp_worker.WIDTH, generator=generator)
    first = ddp_worker.Contender("herringbone", dist.group.WORLD, copy.deepcopy(model), batch)
    everyone: dict[str, Any] = {"torch backend, DDP": first, "DistributedOptimizer": Training(copy.deepcopy(model), batch)}
    contenders = {name: each.step for name, each in everyone.items()}
    seconds = turns(contenders, setup["rounds"], setup["training_steps"], dist.barrier)
    trained = [torch.cat([each.detach().flatten() for each in one.module.parameters()]) for one in everyone.values()]
    difference = (trained[0] - trained[1]).abs().max().item()
    dist.barrier()
    dist.destroy_process_group()
    return {"seconds": seconds, "parameters": trained[0].numel(), "difference": difference}


def main():
    setup = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    hvd.init()
    job = basics.job()
    result = operations(setup, job)
    if setup["megabytes"]:
        result["training"] = training(setup, job)
    pathlib.Path(setup["folder"], f"rank{job.rank}.json").write_text(json.dumps(result))
    job.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
