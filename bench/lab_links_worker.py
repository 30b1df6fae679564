"""One rank of the lab: all algorithms take turns in one process, each with a job of its own. Rank 0 prints a line for each turn."""

import json
import math
import os
import sys
import time

import herringbone
import numpy as np

BUFFERS = 8
"""Operations in a row go over so many buffers, one after the other."""


class GlooJob:
    """torch's Gloo in the place of a job."""

    def __init__(self, setup, number):
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        self.torch, self.dist = torch, dist
        meet = f"tcp://{setup['address']}:{setup['port'] + number}"
        dist.init_process_group("gloo", init_method=meet, rank=setup["rank"], world_size=setup["ranks"])

    def all_reduce(self, values, async_op=False):
        """Sums an array in place."""
        return self.dist.all_reduce(self.torch.from_numpy(values), async_op=async_op)

    def explain(self, _):
        """What it says of its plans."""
        return "Gloo's own choice"


def connect(setup, number, algorithm, knows, order="ranks"):
    """The job of one algorithm, which may know the links, and adds in an order."""
    if algorithm == "gloo":
        return GlooJob(setup, number)
    os.environ.pop("HERRINGBONE_TOPOLOGY", None)
    if knows:
        os.environ["HERRINGBONE_TOPOLOGY"] = setup["topology"]
    options = herringbone.Options(algorithm=algorithm, token=setup["token"], fold_order=order)
    store = f"{setup['address']}:{setup['port'] + number}"
    return herringbone.init(rank=setup["rank"], size=setup["ranks"], store=store, options=options, timeout=120)


class Rank:
    """What a rank does turn by turn."""

    def __init__(self, setup):
        self.setup, self.rank = setup, setup["rank"]
        self.jobs = {name: connect(setup, number, *how) for number, (name, *how) in enumerate(setup["algorithms"])}
        self.control = connect(setup, len(self.jobs), None, False)
        self.expected = setup["ranks"] * (setup["ranks"] + 1) / 2
        self.alone = {}

    def agreed(self, value):
        """Rank 0's number, on all ranks."""
        number = np.array([value], dtype=np.float64)
        return float(self.control.broadcast(number, root=0)[0])

    def check(self, name, size):
        """Whether a sum is right, in every element."""
        values = np.full(size // 4, self.rank + 1, dtype=np.float32)
        self.jobs[name].all_reduce(values)
        if not (values == self.expected).all():
            raise SystemExit(f"rank {self.rank}: a sum of {size} bytes by {name} is wrong")

    def turn(self, name, size, count):
        """Seconds of an operation, the slowest rank's, where so many are in a row; fewer where they would take too long."""
        job = self.jobs[name]
        if count > 1:
            count = max(2, min(count, math.ceil(self.setup["most"] / self.alone[name, size])))
        buffers = [np.zeros(size // 4, dtype=np.float32) for _ in range(min(count, BUFFERS))]
        self.control.barrier()
        began = time.perf_counter()
        works = [job.all_reduce(buffers[each % BUFFERS], async_op=True) for each in range(count)]
        for work in works:
            work.wait()
        took = np.array([time.perf_counter() - began])
        slowest = self.agreed(self.control.all_reduce(took, "max")[0])
        if count == 1:
            self.alone[name, size] = min(slowest, self.alone.get((name, size), math.inf))
        return count, slowest / count

    def run(self):
        """All turns of all rounds."""
        for size in self.setup["sizes"]:
            for name, job in self.jobs.items():
                self.check(name, size)
                if self.rank == 0:
                    self.say(plan=name, bytes=size, why=job.explain(size // 4))
            for count in self.setup["counts"]:
                for round_ in range(self.setup["single"] if count == 1 else self.setup["rounds"]):
                    names = list(self.jobs)
                    for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
                        done, seconds = self.turn(name, size, count)
                        if self.rank == 0:
                            self.say(algorithm=name, bytes=size, count=count, done=done, seconds=seconds)

    @staticmethod
    def say(**line):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    Rank(json.loads(sys.argv[1])).run()
