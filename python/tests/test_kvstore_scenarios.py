"""The scenarios of MXNet's own tests of its KVStore (``tests/python/unittest/test_kvstore.py``), told anew."""

from __future__ import annotations

from typing import Any

import pytest

from herringbone import ArgumentError, kvstore
from herringbone.kvstore import RowSparse

np = pytest.importorskip("numpy")

SHAPE = (4, 4)
DEVICES = 4
KINDS = ["local", "device", "LOCAL_UPDATE_CPU", "local_allreduce_device"]
KEYS: list[tuple[Any, list[Any]]] = [(3, [5, 7, 11]), ("a", ["b", "c", "d"])]
"""One key, and a list of keys: as whole numbers and as texts."""


def full(value: float) -> Any:
    return np.full(SHAPE, value, np.float32)


def several(value: float = 9) -> list[Any]:
    return [full(value) for _ in range(DEVICES)]


def made(kind: str, one: Any, keys: list[Any], first: float = 0) -> kvstore.KVStore:
    kv = kvstore.create(kind)
    kv.init(one, full(first))
    kv.init(keys, [full(first)] * len(keys))
    return kv


def are(outs: Any, value: float) -> bool:
    if isinstance(outs, (list, tuple)):
        return all(are(out, value) for out in outs)
    return bool((np.asarray(outs) == value).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_a_first_value_is_pulled_to_one_and_to_all_devices(kind: str, one: Any, keys: list[Any]) -> None:
    kv, out, outs, lists = made(kind, one, keys, 2), full(9), several(), [several() for _ in keys]
    kv.pull(one, out=out)
    kv.pull(one, out=outs)
    kv.pull(keys, out=lists)
    assert are([out, outs, lists], 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_devices_are_aggregated(kind: str, one: Any, keys: list[Any]) -> None:
    kv, outs, lists = made(kind, one, keys), several(), [several() for _ in keys]
    kv.push(one, several(1))
    kv.pull(one, out=outs)
    assert are(outs, DEVICES)
    kv.push(keys, [several(2) for _ in keys])
    kv.pull(keys, out=lists)
    assert are(lists, 2 * DEVICES)


@pytest.mark.parametrize("kind", ["local", "device"])
@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_an_updater_gets_what_is_aggregated(kind: str, one: Any, keys: list[Any]) -> None:
    kv, outs, lists = made(kind, one, keys), several(), [several() for _ in keys]
    called: list[Any] = []

    def twice(key: Any, received: Any, stored: Any) -> None:
        called.append(key)
        stored += received * 2

    kv.set_updater(twice)
    kv.push(one, several(1))
    kv.pull(one, out=outs)
    assert are(outs, 2 * DEVICES)
    pushes = 4
    for _ in range(pushes):
        kv.push(keys, [several(1) for _ in keys])
    kv.pull(keys, out=lists)
    assert are(lists, 2 * DEVICES * pushes)
    assert called[0] == one and sorted(called[1:]) == sorted(keys * pushes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_has_the_type_that_was_asked_for(kind: str) -> None:
    assert kvstore.create(kind).type == kind.lower()
    assert (kvstore.create(kind).rank, kvstore.create(kind).num_workers) == (0, 1)


@pytest.mark.parametrize("kind", ["local", "device"])
@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_pushpull_and_broadcast_of_keys_and_devices(kind: str, one: Any, keys: list[Any]) -> None:
    kv, out, outs, lists = kvstore.create(kind), full(9), several(), [several() for _ in keys]
    kv.broadcast(one, full(1), out=out)
    kv.broadcast(keys, [full(4)] * len(keys), out=lists)
    assert are(out, 1) and are(lists, 4)
    kv.pushpull(one, full(2), out=outs)
    assert are(outs, 2)
    kv.pushpull(one, several(3), out=out)
    assert are(out, 3 * DEVICES)
    kv.pushpull(keys, [several(4) for _ in keys], out=lists)
    assert are(lists, 4 * DEVICES)
    # In place: each device's array becomes the sum.
    values = [several(1) for _ in keys]
    kv.pushpull(keys, values)
    assert are(values, DEVICES)


@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_rows_are_pulled_for_one_and_several_devices(one: Any, keys: list[Any]) -> None:
    kv = kvstore.create("local")
    kv.init(one, RowSparse.of(full(1)))
    chosen = np.random.default_rng(5)
    outs = [RowSparse.zeros(SHAPE) for _ in range(DEVICES)]
    asked = [chosen.integers(0, SHAPE[0], 6) for _ in outs]
    kv.row_sparse_pull(one, out=outs, row_ids=asked)
    for out, ids in zip(outs, asked):
        whole = out.toarray()
        assert all((row == (1 if at in ids else 0)).all() for at, row in enumerate(whole))
    # One list of rows for all of them.
    kv.row_sparse_pull(one, out=outs, row_ids=np.array([2, 2, 0]))
    assert all(out.indices.tolist() == [0, 2] for out in outs)


@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_rows_of_devices_are_aggregated(one: Any, keys: list[Any]) -> None:
    kv = kvstore.create("local")
    kv.init(one, RowSparse.zeros(SHAPE))
    kv.init(keys, [RowSparse.zeros(SHAPE) for _ in keys])
    chosen = np.random.default_rng(11)

    def some() -> RowSparse:
        rows = np.flatnonzero(chosen.integers(0, 2, SHAPE[0]))
        return RowSparse(chosen.integers(1, 9, (rows.size, SHAPE[1])).astype(np.float32), rows, SHAPE)

    everything = np.arange(SHAPE[0])
    for name in (one, *keys):
        values, out = [some() for _ in range(DEVICES)], RowSparse.zeros(SHAPE)
        kv.push(name, values)
        kv.row_sparse_pull(name, out=out, row_ids=everything)
        assert np.array_equal(out.toarray(), sum(value.toarray() for value in values))
    lists = [[some() for _ in range(DEVICES)] for _ in keys]
    kv.push(keys, lists)
    outs = [RowSparse.zeros(SHAPE) for _ in keys]
    kv.row_sparse_pull(keys, out=outs, row_ids=[everything] * len(keys))
    for out, values in zip(outs, lists):
        assert np.array_equal(out.toarray(), sum(value.toarray() for value in values))


@pytest.mark.parametrize(("one", "keys"), KEYS)
def test_pulls_that_make_no_sense_leave_their_arrays_alone(one: Any, keys: list[Any]) -> None:
    kv = made("local", one, keys, 1)
    kv.init("rows" if isinstance(one, str) else 99, RowSparse.of(full(1)))
    sparse, dense = RowSparse.zeros(SHAPE), full(9)
    with pytest.warns(UserWarning, match="are left alone"):
        kv.pull(one, out=sparse)
    with pytest.warns(UserWarning, match="are left alone"):
        kv.pull(keys, out=[RowSparse.zeros(SHAPE) for _ in keys])
    for call in (
        lambda: kv.pull([one, "none" if isinstance(one, str) else 1000], out=[sparse, sparse], ignore_sparse=False),
        lambda: kv.row_sparse_pull(one, out=dense, row_ids=np.array([1])),
        lambda: kv.row_sparse_pull("rows" if isinstance(one, str) else 99, out=dense, row_ids=np.array([1])),
        lambda: kv.pull(["none"] if isinstance(one, str) else [1000], out=[dense]),
        lambda: kv.push(0 if isinstance(one, str) else "text", dense),
    ):
        with pytest.raises(ArgumentError):
            call()
    assert are(dense, 9) and sparse.indices.size == 0
