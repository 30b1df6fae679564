"""How the optimizers of stores count updates, and the schedulers that are asked by the count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from herringbone import ArgumentError, kvstore

np = pytest.importorskip("numpy")


def pulled(kv: kvstore.KVStore, key: Any) -> float:
    out = np.zeros(3)
    kv.pull(key, out)
    assert (out == out[0]).all()
    return float(out[0])


def test_a_scheduler_is_asked_from_the_first_update_on() -> None:
    asked: list[int] = []

    def schedule(count: int) -> float:
        asked.append(count)
        return 1 / count

    kv = kvstore.create()
    kv.init([1, 2], [np.zeros(3)] * 2)
    kv.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=schedule))
    for _ in range(2):
        kv.push([1, 2], [np.ones(3)] * 2)
    assert pulled(kv, 1) == pulled(kv, 2) == -1.5 and sorted(set(asked)) == [1, 2]


def test_a_push_that_a_scheduler_spoils_counts_for_none_of_its_keys() -> None:
    optimizer = kvstore.create_optimizer("sgd", lr_scheduler=lambda count: float("nan") if count == 3 else 1.0)
    kv = kvstore.create()
    kv.init([1, 2, 3], [np.zeros(3)] * 3)
    kv.set_optimizer(optimizer)
    for _ in range(2):
        kv.push(2, np.ones(3))
    for keys in ([1, 2], [2, 1]):
        with pytest.raises(ArgumentError, match="push: sgd cannot have a learning_rate of NaN"):
            kv.push(keys, [np.ones(3)] * 2)
    assert optimizer.num_update == 2 and [pulled(kv, key) for key in (1, 2)] == [0, -2]
    kv.push([1, 3], [np.ones(3)] * 2)
    assert optimizer.num_update == 2 and [pulled(kv, key) for key in (1, 2, 3)] == [-1, -2, -1]
