"""Small functions that programs import from Horovod's module of this name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

__all__ = ["env", "num_rank_is_power_2", "split_list"]

T = TypeVar("T")


@contextlib.contextmanager
def env(**variables: str) -> Iterator[None]:
    """Set environment variables for the duration of a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def split_list(items: Sequence[T], num_parts: int) -> list[list[T]]:
    """At most ``num_chunks`` parts, whose lengths differ by at most one."""
    shares = [len(items) * at // num_parts for at in range(num_parts + 1)]
    parts = [list(items[begin:end]) for begin, end in pairwise(shares)]
    return [part for part in parts if part]


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether Adasum supports this number of ranks."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0
