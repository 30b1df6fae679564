"""All-reduce through torch.distributed with the backend herringbone, in the loop that the rigs prescribe.

Started once per rank. In: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; BENCH_SIZES (bytes, comma-separated),
BENCH_BUDGET_S (seconds per size), BENCH_OUT (a folder), BENCH_EXTRA_HOSTS (hosts with a reducer at port 7070). For each
size one f32 sum in place of (rank+1) * (i%17 + 1), checked in full, then the timed back-to-back loop on zeroes. Out:
BENCH_OUT/r<rank>.jsonl, one object per size.
"""

import json
import os
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist

from herringbone import Options

REDUCER_PORT = 7070
ITERATIONS = 3, 20000


def join():
    """Joins the job that the environment describes; returns rank and world size."""
    hosts = [host for host in os.environ.get("BENCH_EXTRA_HOSTS", "").split(",") if host]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "herringbone",
        init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rank=rank,
        world_size=world,
        pg_options=Options(reducers=[f"{host}:{REDUCER_PORT}" for host in hosts] or None),
    )
    return rank, world


def cpu_seconds():
    """What this process has used, with all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def is_right(count, rank, world):
    """Sums the pattern once; whether every element is what it has to be."""
    pattern = (torch.arange(count) % 17 + 1).to(torch.float32)
    buffer = pattern * (rank + 1)
    dist.all_reduce(buffer)
    return torch.equal(buffer, pattern * (world * (world + 1) // 2))


def iterations(buffer, rank, budget):
    """How many fit the budget, from two warm-ups of rank 0; the others learn it by adding zero."""
    began = time.perf_counter()
    dist.all_reduce(buffer)
    dist.all_reduce(buffer)
    each = (time.perf_counter() - began) / 2
    least, most = ITERATIONS
    agreed = torch.tensor([max(least, min(most, int(budget / each))) if rank == 0 else 0], dtype=torch.float32)
    dist.all_reduce(agreed)
    return int(agreed.item())


def timed(buffer, count):
    """`count` all-reduces back to back: wall seconds, CPU seconds, and the seconds of each, ascending."""
    dist.all_reduce(buffer)
    marks = [0.0] * (count + 1)
    used, marks[0] = cpu_seconds(), time.perf_counter()
    for index in range(1, count + 1):
        dist.all_reduce(buffer)
        marks[index] = time.perf_counter()
    used = cpu_seconds() - used
    return marks[-1] - marks[0], used, sorted(after - before for before, after in zip(marks, marks[1:]))


def measure(size, rank, world, budget):
    """The line of one size."""
    count = size // 4
    right = is_right(count, rank, world)
    buffer = torch.zeros(count)
    wall, used, each = timed(buffer, iterations(buffer, rank, budget))
    return {
        "bytes": size,
        "iters": len(each),
        "wall_s": wall,
        "cpu_s": used,
        "med_s": each[len(each) // 2],
        "p10_s": each[len(each) // 10],
        "p90_s": each[len(each) * 9 // 10],
        "ok": right,
    }


def main():
    torch.set_num_threads(1)
    rank, world = join()
    sizes = [int(size) for size in os.environ.get("BENCH_SIZES", "4,1024,65536,1048576").split(",")]
    budget = float(os.environ.get("BENCH_BUDGET_S", "0.5"))
    right = True
    with open(pathlib.Path(os.environ.get("BENCH_OUT", ".")) / f"r{rank}.jsonl", "w") as out:
        for size in sizes:
            line = measure(size, rank, world, budget)
            right &= line["ok"]
            print(json.dumps(line), file=out, flush=True)
    dist.destroy_process_group()
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
