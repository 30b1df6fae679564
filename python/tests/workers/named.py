"""A rank that submits named operations in its own order, in one of several ways, and prints what it saw as JSON.

Usage: named.py WAY. The place is the environment's.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import herringbone
from herringbone._herringbone import Controller, NamedError, NamedWork

NAMES = {"float32": "f32", "float16": "f16", "float64": "f64", "int32": "i32", "int64": "i64", "uint16": "bf16", "uint8": "u8"}
"""numpy has no bfloat16: its bits are in uint16."""


class Ranks:
    """This rank's controller, and the calls of the tests."""

    def __init__(self, **options: Any) -> None:
        self.group = herringbone.init(timeout=60)
        self.rank, self.size = self.group.rank, self.group.size
        self.controller = Controller(self.group._native, **options)

    def reduce(self, name: str, array: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None = None, **more: Any) -> NamedWork:
        target = array if out is None else out
        return self.controller.submit(
            "allreduce", name, array, target, dtype=NAMES[array.dtype.name], shape=array.shape, **more
        )

    def move(self, operation: str, name: str, array: np.ndarray[Any, Any], **more: Any) -> NamedWork:
        return self.controller.submit(operation, name, array, None, dtype=NAMES[array.dtype.name], shape=array.shape, **more)

    def counters(self) -> dict[str, int]:
        return self.controller.counters()

    def barrier(self, name: str) -> None:
        self.controller.submit("barrier", name, None, None, dtype="u8", shape=[]).wait()

    def leave(self) -> None:
        self.controller.shutdown()
        self.group.close()


def values(rank: int, name: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Numbers that say whose they are; of bfloat16 the upper halves of float32."""
    numbers = np.random.default_rng(1000 * rank + name).standard_normal(count).astype(np.float32)
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(dtype)


def told(call: Callable[[], object]) -> str:
    """The type and text of the error of a call."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def any_order() -> dict[str, Any]:
    """Names come in another order on each rank, over and over; sums are those of all ranks, and the cache saves rank 0 all."""
    ranks = Ranks()
    order = random.Random(ranks.rank)
    expected = {name: sum(values(rank, name, 100 + name, "float32") for rank in range(ranks.size)) for name in range(40)}
    seen = []
    for step in range(30):
        names = list(range(40))
        order.shuffle(names)
        arrays = {name: values(ranks.rank, name, 100 + name, "float32") for name in names}
        works = [ranks.reduce(f"tensor.{name}", arrays[name]) for name in names]
        for work in works:
            work.wait(30)
        assert all(np.allclose(arrays[name], expected[name], atol=1e-5) for name in names), step
        if step in (9, 29):
            seen.append(ranks.counters())
    ranks.leave()
    return {"first": seen[0], "last": seen[1]}


WAYS: list[Callable[[], dict[str, Any]]] = [any_order]


if __name__ == "__main__":
    result = {way.__name__: way for way in WAYS}[sys.argv[1]]()
    print(json.dumps(result), flush=True)
