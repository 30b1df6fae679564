"""A rank of the soak. It reads what to do as lines of its standard input, and answers each with a line of JSON.

form RANK SIZE STORE    joins, sums, and says what it has
operations N            as many calls of every kind, in turns, on small and large arrays
groups N                as many groups, made, used and closed one after the other
sum                     sums until a rank is lost; goes on with those that are left, sums with them, and closes
close                   leaves in order
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict

import herringbone
import numpy as np
from counters import Taken

SIZES = [3, 5_000, 100_000]
"""Elements: of one message, of several, of several segments, which reducers get where there are some."""
ROUND = 9
"""Calls of a round."""
LARGE_EVERY = 20
"""Of how many rounds one has large arrays."""


def checked_sum(comm: herringbone.Communicator, count: int) -> None:
    values = np.full(count, comm.rank + 1, np.float32)
    comm.all_reduce(values)
    assert (values == comm.size * (comm.size + 1) / 2).all(), values


def one_round(comm: herringbone.Communicator, number: int) -> None:
    """A call of every kind."""
    count = SIZES[2] if number % LARGE_EVERY == 0 else SIZES[number % 2]
    size, part = comm.size, np.full(count, comm.rank, np.float32)
    whole = np.zeros(count * size, np.float32)
    checked_sum(comm, count)
    comm.all_reduce(part.copy(), "max", async_op=True).wait()
    comm.broadcast(part.copy(), root=number % size)
    comm.reduce(part.copy(), root=number % size)
    comm.all_gather(part, out=whole)
    assert (whole.reshape(size, count) == np.arange(size)[:, None]).all()
    comm.reduce_scatter(whole, out=part.copy())
    comm.all_to_all(whole, out=whole.copy())
    comm.barrier()
    works = [comm.send(part, (comm.rank + 1) % size, async_op=True)]
    comm.recv(part.copy(), (comm.rank - 1) % size)
    works[0].wait()


class Rank:
    """A process that takes part in one world after the other."""

    comm: herringbone.Communicator | None = None

    def form(self, rank: str, size: str, store: str) -> None:
        self.comm = herringbone.init(rank=int(rank), size=int(size), store=store, timeout=60)
        checked_sum(self.comm, SIZES[2])

    def operations(self, number: str) -> None:
        assert self.comm is not None
        for turn in range(-(-int(number) // ROUND)):
            one_round(self.comm, turn)

    def groups(self, number: str) -> None:
        assert self.comm is not None
        for turn in range(int(number)):
            group = self.comm.subgroup(range(self.comm.size))
            checked_sum(group, SIZES[turn % 2])
            group.close()

    def sum(self) -> None:
        assert self.comm is not None
        print("sums", flush=True)
        try:
            while True:
                checked_sum(self.comm, SIZES[2])
        except herringbone.PeerLostError:
            left = self.comm.shrink(timeout=30)
        checked_sum(left, SIZES[1])
        left.close()
        self.close()

    def close(self) -> None:
        herringbone.finalize()
        self.comm = None


def main() -> None:
    rank = Rank()
    for line in sys.stdin:
        what, *how = line.split()
        getattr(rank, what)(*how)
        # What waits for the collector is no leak.
        gc.collect()
        print(json.dumps(asdict(Taken.of())), flush=True)


if __name__ == "__main__":
    main()
