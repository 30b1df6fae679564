"""One process of bench/table_figures.py: a worker of Herringbone's, or a worker or a server of torch's RPC.

A worker says `ready`, does what it reads on its standard input, one name and a number of calls a line, and answers with the seconds.
"""

import os
import random
import sys
import time
import typing

import numpy as np

RANK, WORKERS, SERVERS = int(os.environ["RANK"]), int(os.environ["WORKERS"]), int(os.environ["SERVERS"])
ROWS, WIDTH, KEYS, DENSE = 1_000_000, 64, 10_000, 25 << 20
SHARE = ROWS // SERVERS
PAUSE = 0.004
"""Seconds of a worker's own step, in which it sleeps."""


def drawn():
    """Which rows a worker pushes and pulls, and what it pushes."""
    numbers = np.random.default_rng(RANK)
    keys = np.sort(numbers.choice(ROWS, KEYS, replace=False))
    return keys, numbers.standard_normal((KEYS, WIDTH)).astype(np.float32)


def obey(works):
    """Does what it is asked, until it is asked nothing more."""
    print("ready", flush=True)
    for line in sys.stdin:
        name, calls = line.split()
        began = time.perf_counter()
        for _ in range(int(calls)):
            works[name]()
        print(time.perf_counter() - began, flush=True)


def step_of(table):
    """A step of a worker, where one of them, drawn at random, sleeps twice its own step more. All draw the same."""
    values, random_numbers = np.ones((1000, WIDTH), np.float32), random.Random(5)

    def step():
        time.sleep(PAUSE * (3 if random_numbers.randrange(WORKERS) == RANK else 1))
        table.push_range(0, values)
        table.pull_range(0, len(values))

    return step


def tables():
    """A worker of Herringbone's."""
    import herringbone

    keys, gradients = drawn()
    rows = np.empty_like(gradients)
    values = np.ones((DENSE // 4 // WIDTH, WIDTH), np.float32)
    got = np.empty_like(values)
    with herringbone.init() as group, herringbone.ParameterServer() as servers:
        common = {"width": WIDTH, "optimizer": "add"}
        large = servers.table("large", rows=ROWS, **common)
        whole = servers.table("whole", rows=len(values), consistency="sync", **common)
        bounded, sync = (servers.table(f"small {bound}", rows=1000, consistency=bound, **common) for bound in (4, "sync"))

        def sparse():
            large.push(keys, gradients)
            large.pull(keys, rows)

        def dense():
            whole.push_range(0, values)
            whole.pull_range(0, len(values), got)

        obey(
            {
                "sparse": sparse,
                "dense": dense,
                "all-reduce": lambda: group.all_reduce(values.copy()),
                "bounded": step_of(bounded),
                "sync": step_of(sync),
            }
        )


def plain_rpc():
    """A worker or a server of torch's RPC, as one writes it plainly."""
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    place = RANK - WORKERS
    name = f"server{place}" if place >= 0 else f"worker{RANK}"
    if place >= 0:
        Share.rows = torch.zeros(SHARE, WIDTH)
    rpc.init_rpc(name, rank=RANK, world_size=WORKERS + SERVERS)
    if place < 0:
        keys, gradients = drawn()
        halves = [torch.from_numpy(half) for half in np.split(keys, [np.searchsorted(keys, SHARE)])]
        pieces = torch.from_numpy(gradients).split([len(half) for half in halves])
        local = [half - server * SHARE for server, half in enumerate(halves)]

        def at_each(call, *lists):
            sent = [
                rpc.rpc_async(f"server{server}", call, arguments) for server, arguments in enumerate(zip(*lists, strict=True))
            ]
            return torch.futures.wait_all(sent)

        def sparse():
            at_each(Share.push, local, pieces)
            torch.cat(at_each(Share.pull, local))

        obey({"sparse": sparse})
    rpc.shutdown()


class Share:
    """A server's part of a table, for torch's RPC."""

    rows: typing.Any = None

    @classmethod
    def push(cls, keys, gradients):
        """Adds gradients."""
        cls.rows.index_add_(0, keys, gradients)

    @classmethod
    def pull(cls, keys):
        """Rows."""
        return cls.rows.index_select(0, keys)


if __name__ == "__main__":
    # Calls name the class by this module, which is another one where it is the program.
    sys.modules["table_worker"] = sys.modules["__main__"]
    {"tables": tables, "rpc": plain_rpc}[sys.argv[1]]()
