"""One process of bench/table_figures.py: a worker, in which all contenders take turns, or a server of torch's RPC. Rank 0 prints JSON."""

import json
import os
import random
import sys
import time

import numpy as np
import torch
import torch.distributed.rpc as rpc

import herringbone

RANK, WORKERS, SERVERS = int(os.environ["RANK"]), int(os.environ["WORKERS"]), 2
ROWS, WIDTH, KEYS, DENSE = 1_000_000, 64, 10_000, 25 << 20
SHARE = ROWS // SERVERS


class Share:
    """Half of a table, as one writes it plainly for torch's RPC."""

    rows = torch.zeros(0)

    @classmethod
    def push(cls, keys, gradients):
        """Adds gradients."""
        cls.rows.index_add_(0, keys, gradients)

    @classmethod
    def pull(cls, keys):
        """Rows."""
        return cls.rows.index_select(0, keys)


def timed(work, group, calls):
    """Seconds of so many calls, of the slowest worker."""
    group.barrier()
    began = time.perf_counter()
    for _ in range(calls):
        work()
    spent = np.array([time.perf_counter() - began])
    group.all_reduce(spent, op="max")
    return float(spent[0])


def sparse(table, group, rounds, calls):
    """Rows per second, pushed and then pulled, of the tables and of torch's RPC."""
    random_numbers = np.random.default_rng(RANK)
    keys = np.sort(random_numbers.choice(ROWS, KEYS, replace=False))
    gradients = random_numbers.standard_normal((KEYS, WIDTH)).astype(np.float32)
    rows = np.empty_like(gradients)
    halves = [torch.from_numpy(half) for half in np.split(keys, [np.searchsorted(keys, SHARE)])]
    pieces = torch.from_numpy(gradients).split([len(half) for half in halves])
    local = [half - server * SHARE for server, half in enumerate(halves)]

    def ours():
        table.push(keys, gradients)
        table.pull(keys, rows)

    def theirs():
        sent = [rpc.rpc_async(f"server{server}", Share.push, (local[server], pieces[server])) for server in range(SERVERS)]
        torch.futures.wait_all(sent)
        torch.cat(torch.futures.wait_all([rpc.rpc_async(f"server{s}", Share.pull, (local[s],)) for s in range(SERVERS)]))

    seconds = [(timed(ours, group, calls), timed(theirs, group, calls)) for _ in range(rounds + 1)]
    return [[WORKERS * calls * KEYS / second for second in pair] for pair in seconds[1:]]


def dense(table, group, rounds, calls):
    """Seconds of a push and pull of 25 MiB in sync, and of an all-reduce with as many reducers."""
    values = np.ones((DENSE // 4 // WIDTH, WIDTH), np.float32)
    rows = np.empty_like(values)

    def ours():
        table.push_range(0, values)
        table.pull_range(0, len(values), rows)

    def theirs():
        group.all_reduce(values.copy())

    seconds = [(timed(ours, group, calls), timed(theirs, group, calls)) for _ in range(rounds + 1)]
    return [[second / calls for second in pair] for pair in seconds[1:]]


def bounded(tables, group, rounds, steps):
    """Steps per second if in each step one worker, drawn at random, sleeps twice its own step: bounded(4), and sync."""
    values, pause = np.ones((1000, WIDTH), np.float32), 0.004

    def step_of(table, drawn):
        def step():
            time.sleep(pause * (3 if drawn.randrange(WORKERS) == RANK else 1))
            table.push_range(0, values)
            table.pull_range(0, len(values))

        return step

    # All draw the same.
    works = [step_of(table, random.Random(5)) for table in tables]
    return [[steps / timed(work, group, steps) for work in works] for _ in range(rounds + 1)][1:]


def main():
    """A worker, or a server of torch's RPC."""
    setup = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    place = RANK - WORKERS
    if place >= 0:
        Share.rows = torch.zeros(SHARE, WIDTH)
    rpc.init_rpc(f"server{place}" if place >= 0 else f"worker{RANK}", rank=RANK, world_size=WORKERS + SERVERS)
    if place >= 0:
        rpc.shutdown()
        return
    with (
        herringbone.init() as group,
        herringbone.ParameterServer() as servers,
    ):
        common = {"width": WIDTH, "optimizer": "add"}
        large = servers.table("large", rows=ROWS, **common)
        whole = servers.table("whole", rows=DENSE // 4 // WIDTH, consistency="sync", **common)
        small = [servers.table(f"small {bound}", rows=1000, consistency=bound, **common) for bound in (4, "sync")]
        rounds = setup["rounds"]
        figures = {
            "sparse": sparse(large, group, rounds, setup["calls"]),
            "dense": dense(whole, group, rounds, setup["calls"]),
            "bounded": bounded(small, group, rounds, setup["steps"]),
        }
        group.barrier()
    if RANK == 0:
        print(json.dumps(figures), flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
