"""A rank that leaves in one of several ways, and says on its last line what it was told.

Usage: ways_out.py numpy|torch WAY. The place is the environment's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import herringbone

LARGE = 2_000_000
"""Elements of an operation that is under way for a while."""


class Numpy:
    """The group of numpy programs."""

    def __init__(self) -> None:
        self.group = herringbone.init(timeout=30)
        self.rank, self.size = self.group.rank, self.group.size

    def begin(self, count: int = LARGE) -> Any:
        self.array = np.ones(count, np.float32)
        return self.group.all_reduce(self.array, async_op=True)

    def add(self) -> None:
        self.begin(10).wait()
        assert (self.array == self.size).all(), self.array

    def leave(self) -> None:
        self.group.close()


class Torch:
    """The group of torch programs."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("herringbone")
        self.group = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def begin(self, count: int = LARGE) -> Any:
        import torch

        self.tensor = torch.ones(count)
        return self.dist.all_reduce(self.tensor, group=self.group, async_op=True)

    def add(self) -> None:
        self.begin(10).wait()
        assert (self.tensor == self.size).all(), self.tensor

    def leave(self) -> None:
        self.dist.destroy_process_group()


def error_of(call: Callable[[], object]) -> str:
    """The type of the error of a call."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def fork(ranks: Numpy | Torch) -> str:
    """The child is told that it has no group, and ends without harm; the parent goes on."""
    ranks.add()
    work = ranks.begin()
    child = os.fork()
    if child == 0:
        # An operation that was over before may be waited for.
        is_reported = error_of(ranks.add) == "ForkedError" and error_of(work.wait) in ("ForkedError", "nothing")
        os._exit(0 if is_reported else 1)
    _, status = os.waitpid(child, 0)
    work.wait()
    ranks.add()
    ranks.leave()
    return f"the child ended with {os.waitstatus_to_exitcode(status)}"


def fork_and_exit(ranks: Numpy | Torch) -> str:
    """The child ends as programs do, with all that is registered for the end."""
    ranks.add()
    child = os.fork()
    if child == 0:
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    ranks.add()
    ranks.leave()
    return f"the child ended with {os.waitstatus_to_exitcode(status)}"


def leave_twice(ranks: Numpy | Torch) -> str:
    ranks.add()
    ranks.leave()
    return error_of(ranks.leave)


def use_after(ranks: Numpy | Torch) -> str:
    ranks.add()
    ranks.leave()
    return error_of(ranks.add)


def exit_in_flight(ranks: Numpy | Torch) -> str:
    """All ranks end and wait for nothing: what all have called ends."""
    ranks.add()
    works = [ranks.begin() for _ in range(3)]
    return f"{len(works)} under way"


def raise_in_flight(ranks: Numpy | Torch) -> str:
    """Rank 1 fails with work under way; the others are told so in their next call."""
    ranks.add()
    work = ranks.begin()
    if ranks.rank == 1:
        raise OSError("the last rank has no disk")
    work.wait()
    return error_of(ranks.add)


WAYS = [fork, fork_and_exit, leave_twice, use_after, exit_in_flight, raise_in_flight]


if __name__ == "__main__":
    face = {"numpy": Numpy, "torch": Torch}[sys.argv[1]]()
    print({way.__name__: way for way in WAYS}[sys.argv[2]](face), flush=True)
