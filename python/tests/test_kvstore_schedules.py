"""How the optimizers of stores count updates, and the schedulers that are asked by the count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from herringbone import ArgumentError, kvstore
from herringbone.kvstore.optimizer import described, of_described, settle

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


def test_counts_go_on_from_where_they_begin_also_after_a_file(tmp_path: Path) -> None:
    def made(begin: int) -> tuple[kvstore.KVStore, kvstore.Optimizer]:
        kv = kvstore.create()
        kv.init(1, np.zeros(3))
        optimizer = kvstore.create_optimizer("sgd", lr_scheduler=float, begin_num_update=begin)
        kv.set_optimizer(optimizer)
        return kv, optimizer

    for begin, saved_from, expected in ((100, 100, 105), (0, 0, 5), (100, 0, 105)):
        kv, optimizer = made(saved_from)
        for _ in range(5):
            kv.push(1, np.ones(3))
        kv.save_optimizer_states(tmp_path / "states")
        assert optimizer.num_update == saved_from + 5
        kv, optimizer = made(begin)
        kv.load_optimizer_states(tmp_path / "states")
        assert optimizer.num_update == expected
        kv.push(1, np.ones(3))
        assert pulled(kv, 1) == -(expected + 1) and optimizer.num_update == expected + 1


def test_the_correction_of_the_bias_goes_on_from_where_the_counts_begin() -> None:
    optimizer = kvstore.create_optimizer("adam", learning_rate=1.0, beta1=0.5, beta2=0.75, epsilon=0, begin_num_update=2)
    weight = np.zeros(3)
    optimizer.update("w", np.ones(3), weight)
    # MXNet's rule at its third update, of a mean and a variance that begin: rate * sqrt(1 - beta2**3) / (1 - beta1**3) * mean / sqrt(variance)
    assert np.allclose(weight, -np.sqrt(1 - 0.75**3) / (1 - 0.5**3) * 0.5 / np.sqrt(0.25))
    assert optimizer.states["w"]["step"] == 3 and optimizer.num_update == 3
    with pytest.raises(ArgumentError, match="begin_num_update is 4294967295; pass a whole number from 0, below 4,294,967,295"):
        kvstore.create_optimizer("sgd", begin_num_update=(1 << 32) - 1)


def test_a_scheduler_that_travels_stays_the_programs_object_as_it_is() -> None:
    sent = kvstore.FactorScheduler(10, 0.5, base_lr=0.1, warmup_steps=5, warmup_begin_lr=0.05)
    sent.note = "more than its class has"  # type: ignore[attr-defined]
    first = kvstore.create_optimizer("sgd", lr_scheduler=sent, learning_rate=0.01)  # below where the warm-up begins
    packed = described(first)
    same, other = kvstore.FactorScheduler(3), kvstore.PolyScheduler(9)
    for scheduler, stays in ((sent, True), (same, True), (other, False), (None, False), (lambda count: 1.0, False)):
        optimizer = kvstore.create_optimizer("sgd", lr_scheduler=scheduler)
        settle(optimizer, packed)
        settled = optimizer.lr_scheduler
        assert isinstance(settled, kvstore.FactorScheduler) and (settled is scheduler) == stays
        assert vars(settled) == vars(sent) and settled(2) == sent(2)
    same.base_lr = 7.0
    assert sent.base_lr == 0.01 and other.max_update == 9
    proposed = of_described(packed, first)
    assert proposed.lr_scheduler is not sent and proposed.lr_scheduler is not None and proposed.lr_scheduler(2) == sent(2)


def test_any_callable_is_a_scheduler_and_what_does_not_travel_is_each_workers_own() -> None:
    class Own(kvstore.LRScheduler):
        """Of a program, without a constructor that has run."""

        def __init__(self, rates: dict[int, float]) -> None:
            self.rates = rates

        def __call__(self, num_update: int) -> float:
            return self.rates[num_update]

    base, changed = kvstore.LRScheduler(0.5), kvstore.FactorScheduler(2, 0.5, base_lr=4)
    vars(base)["_decayed"] = lambda count: count / 4
    vars(changed)["owner"] = object()
    for schedule, rate in ((Own({1: 0.25}), 0.25), (base, 0.25), (changed, 4), (lambda count: 0.25, 0.25)):
        given = described(kvstore.create_optimizer("sgd", lr_scheduler=schedule))
        other = kvstore.create_optimizer("sgd", lr_scheduler=schedule)
        settle(other, given)
        assert other.lr_scheduler is schedule
        with pytest.raises(ArgumentError, match="an lr_scheduler of its own, which cannot be sent"):
            settle(kvstore.create_optimizer("sgd"), given)
        kv = kvstore.create()
        kv.init(1, np.zeros(3))
        kv.set_optimizer(other)
        kv.push(1, np.ones(3))
        assert pulled(kv, 1) == -rate


def test_stores_with_one_optimizer_have_states_of_their_own() -> None:
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1.0, momentum=0.5)
    first, second = kvstore.create(), kvstore.create()
    for kv in (first, second, first, second):
        if kv.optimizer is None:
            kv.init(1, np.zeros(3))
        kv.set_optimizer(optimizer)  # the second time it keeps the states
        kv.push(1, np.ones(3))
    assert pulled(first, 1) == pulled(second, 1) == -2.5
    assert optimizer.states[1]["step"] == 2 and first.optimizer is optimizer
    optimizer.set_learning_rate(0.0)
    optimizer.states = {}
    for kv, value in ((first, -2.5), (second, -2.5 - 0.75)):
        kv.push(1, np.ones(3))
        assert pulled(kv, 1) == value
