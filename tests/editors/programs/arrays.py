"""A program of numpy arrays."""

from __future__ import annotations

import numpy as np
from typing_extensions import assert_type

import herringbone


def train(group: herringbone.Communicator) -> None:
    """Start a sum, compute meanwhile, and wait for it."""
    gradient = np.ones(1 << 20, np.float32)
    work = group.all_reduce(gradient, "average", async_op=True, compression="int8", tensor="layer1")
    gradient = work.wait(timeout=60.0)
    print(gradient.mean(), group.rank, group.size, work.done())


def main() -> None:
    """Join, train, and go on with the ranks that are left."""
    with herringbone.init(options=herringbone.Options(transport="tcp")) as group:
        try:
            train(group)
        except herringbone.PeerLostError as error:
            assert_type(error.ranks, tuple[int, ...])
            group = group.shrink(timeout=30.0)
        except herringbone.MismatchError as error:
            assert_type(error.calls, dict[int, str])
        print(group.explain(1 << 20, np.float32, "all_reduce"), group.describe(), group.stats())


def later(group: herringbone.Communicator) -> None:
    """Functions that say what they use."""
    with herringbone.Engine(threads=2) as engine:
        array = np.ones(4)
        done = engine.var("done")

        def double() -> None:
            array[...] *= 2

        engine.push(double, mutates=[array, done])
        engine.all_reduce(group, array, "max")
        engine.wait(array)
        assert_type(done.version, int)


def served() -> None:
    """Rows on servers."""
    with herringbone.ParameterServer(["127.0.0.1:7070"]) as servers:
        table = servers.table("embedding", rows=100, width=8)
        keys = np.arange(4)
        table.push(keys, np.ones((4, 8), np.float32))
        print(table.pull(keys).shape, table.step)
