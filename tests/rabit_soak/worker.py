"""A rank of a program that a seed draws: each result is compared with the one that the same program has without losses.

    python worker.py SEED MODE

Lines on standard output say which process has come how far; run.py kills it meanwhile.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import numpy as np
from herringbone import rabit

Array = np.ndarray[Any, np.dtype[np.int64]]
OPS = {rabit.SUM: np.add, rabit.MAX: np.maximum, rabit.MIN: np.minimum, rabit.BITOR: np.bitwise_or}
COUNTS = [0, 1, 7, 200, 5_000, 60_000]
LONGEST_PAUSE = 0.02
LAST_PAUSE = 0.4
"""How long one rank waits at the end. Nobody is killed once it goes on: a process that has left cannot continue."""


class Program:
    """The same on all ranks: for each version its calls, each with its kind and how many numbers it has."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        kinds = ["broadcast", "allgather", *OPS]
        self.seed = seed
        self.bootstrap = [self.call(draw, kinds) for _ in range(draw.randrange(3))]
        self.versions = [[self.call(draw, kinds) for _ in range(draw.randint(1, 6))] for _ in range(draw.randint(10, 25))]

    @staticmethod
    def call(draw: random.Random, kinds: list[str | int]) -> tuple[str | int, int, int]:
        return draw.choice(kinds), draw.choice(COUNTS), draw.randrange(1 << 30)

    def given(self, rank: int, version: int, call: int, count: int, model: int) -> Array:
        """What a rank gives to a call."""
        numbers = np.arange(count, dtype=np.int64) * (2 * rank + 1) + (model ^ (self.seed * 31 + version * 7 + call))
        return numbers * 0x9E37_79B9 % 1_000_003

    def result(self, size: int, version: int, call: int, model: int) -> Array:
        """What comes of a call on ``size`` ranks; version -1 is before the checkpoint is loaded."""
        kind, count, root = (self.bootstrap if version < 0 else self.versions[version])[call]
        inputs = [self.given(rank, version, call, count, model) for rank in range(size)]
        if kind == "broadcast":
            return inputs[root % size]
        if kind == "allgather":
            return np.stack(inputs)
        total = inputs[0]
        for each in inputs[1:]:
            total = OPS[int(kind)](total, each)
        return total

    def models(self, size: int, version: int) -> tuple[int, list[int]]:
        """The model of all ranks, and each rank's own, after so many versions."""
        model, local = 0, [0] * size
        for each in range(version):
            found = [int(self.result(size, each, call, model).sum()) for call in range(len(self.versions[each]))]
            model, local = improved(model, sum(found)), [improved(own, sum(found) + rank) for rank, own in enumerate(local)]
        return model, local


def improved(model: int, found: int) -> int:
    return (model * 3 + found) % (1 << 40)


class Rank:
    """This process: it makes the program's calls."""

    def __init__(self, seed: int, mode: str) -> None:
        self.program, self.mode = Program(seed), mode
        self.rank, self.size = rabit.get_rank(), rabit.get_world_size()
        self.pauses = random.Random()
        self.spared = 0

    def call(self, version: int, number: int, model: int) -> int:
        """Makes a call, and returns the sum of its result."""
        kind, count, root = (self.program.bootstrap if version < 0 else self.program.versions[version])[number]
        given = self.program.given(self.rank, version, number, count, model)
        if kind == "broadcast":
            result = rabit.broadcast(given if self.rank == root % self.size else None, root % self.size)
        elif kind == "allgather":
            result = rabit.allgather(given)
        else:
            result = self.allreduce(given, int(kind))
        expected = self.program.result(self.size, version, number, model)
        if not np.array_equal(result, expected):
            sys.exit(f"rank {self.rank}: call {number} of version {version} has a wrong result")
        return int(expected.sum())

    def allreduce(self, given: Array, op: int) -> Array:
        made = []

        def prepare(out: Array) -> None:
            made.append(True)
            np.copyto(out, given)

        result = rabit.allreduce(np.empty_like(given), op, prepare)
        self.spared += not made
        return result

    def run(self) -> None:
        for number in range(len(self.program.bootstrap)):
            self.call(-1, number, 0)
        has_local = self.mode == "local"
        version, held, *rest = rabit.load_checkpoint(with_local=has_local)
        model, local = self.program.models(self.size, version)
        mine = local[self.rank]
        if version and (held["model"] != model or (has_local and rest[0] != mine)):
            sys.exit(f"rank {self.rank}: the checkpoint of version {version} has other models")
        shared = {"model": model}
        print("loads", version, flush=True)
        for version in range(version, len(self.program.versions)):  # noqa: B020
            found = 0
            for number in range(len(self.program.versions[version])):
                time.sleep(self.pauses.random() * LONGEST_PAUSE)
                found += self.call(version, number, model)
            # A lazy model is changed only here.
            model, mine = improved(model, found), improved(mine, found + self.rank)
            shared["model"] = model
            self.end_version(shared, mine)
            print("ends", os.getpid(), flush=True)
        if self.program.seed % self.size == self.rank:
            time.sleep(LAST_PAUSE)
        print("spared", self.spared, flush=True)
        print("model", os.getpid(), model, mine if has_local else 0, flush=True)

    def end_version(self, shared: dict[str, int], mine: int) -> None:
        if self.mode == "local":
            rabit.checkpoint(shared, mine)
        elif self.mode == "lazy":
            rabit.lazy_checkpoint(shared)
        else:
            rabit.checkpoint(shared)


def main() -> None:
    print("starts", os.getpid(), flush=True)
    rabit.init()
    Rank(int(sys.argv[1]), sys.argv[2]).run()
    rabit.finalize()


if __name__ == "__main__":
    main()
