"""A store whose pushes are compressed, beside MXNet's rules in numpy: each worker keeps what it loses, for each key."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import herringbone
from herringbone import kvstore

group = herringbone.init(timeout=60)
STEPS, SHAPE = 6, (3, 1700)


def coded(kind: str, threshold: float, wanted: np.ndarray) -> np.ndarray:
    """What MXNet's codec makes of a float32 array."""
    limit = np.float32(threshold)
    if kind == "1bit":
        return np.where(wanted > limit, np.float32(1), np.float32(-1))
    return limit * (wanted >= limit).astype(np.float32) - limit * (wanted <= -limit).astype(np.float32)


def gradient(step: int, rank: int, key: str) -> np.ndarray:
    return np.random.default_rng([step, rank, ord(key)]).standard_normal(SHAPE).astype(np.float32)


for store, (kind, threshold) in itertools.product(
    ("dist_sync", "dist_device_sync"), (("2bit", 0.5), ("2bit", 2.0), ("1bit", 0.0))
):
    kv = kvstore.create(store, communicator=group)
    kv.init(["a", "b"], [np.zeros(SHAPE, np.float32)] * 2)
    kv.set_gradient_compression({"type": kind, "threshold": threshold})
    left = {(rank, key): np.zeros(SHAPE, np.float32) for rank in range(group.size) for key in "ab"}
    for step in range(STEPS):
        for key in "ab":
            kv.push(key, gradient(step, group.rank, key))
        for key in "ab":
            expected = np.zeros(SHAPE, np.float32)
            for rank in range(group.size):
                wanted = left[rank, key] + gradient(step, rank, key)
                sent = coded(kind, threshold, wanted)
                left[rank, key] = wanted - sent
                expected += sent
            out = np.ones(SHAPE, np.float32)
            kv.pull(key, out)
            assert (out == expected).all(), (store, kind, threshold, step, key)
    try:
        kv.pushpull("a", gradient(0, 0, "a"))
        raise AssertionError("it is refused, as in MXNet")
    except herringbone.UnsupportedError as error:
        assert "use push and pull" in str(error), error
    kv.init("wide", np.zeros(4, np.float64))
    try:
        kv.push("wide", np.ones(4))
        raise AssertionError("only float32 is compressed")
    except herringbone.UnsupportedError as error:
        assert "has values of float64" in str(error), error
    kv.barrier()
# What is left belongs to one store and one codec, and a state goes to the store that loads it.
few = np.full(SHAPE, 0.25, np.float32)


def pushed(store: kvstore.KVStore, value: np.ndarray) -> float:
    out = np.ones(SHAPE, np.float32)
    store.push("a", value)
    store.pull("a", out)
    assert (out == out.flat[0]).all()
    return float(out.flat[0]) / group.size


stores = [kvstore.create("dist_sync", communicator=group) for _ in range(2)]
for kv in stores:
    kv.init("a", np.zeros(SHAPE, np.float32))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
one, other = stores
assert [pushed(one, few), pushed(other, few / 2), pushed(one, few), pushed(other, few)] == [0, 0, 0.5, 0]
state = other.compression_state_dict()
assert (state["workers"]["'a'"]["left"] == np.float32(0.375)).all() and group.compression_state_dict() == {}
other.set_gradient_compression({"type": "2bit"})
assert pushed(other, few / 2) == 0.5, "the same codec"
one.load_compression_state_dict(state)
assert pushed(one, few / 2) == 0.5
one.load_compression_state_dict(state)
one.set_gradient_compression({"type": "2bit", "threshold": 1.0})
assert pushed(one, few * 3) == 0, "another codec"
for wrong, said in ((state, "the state belongs to twobit:0.5"), ({}, "lacks codec")):
    try:
        one.load_compression_state_dict(wrong)
        raise AssertionError("it is refused")
    except (herringbone.ArgumentError, TypeError) as error:
        assert said in str(error), error

# A resumed store is one that was not interrupted.


def pushes(steps: range, state: dict[str, Any] | None = None) -> tuple[list[bytes], dict[str, Any]]:
    """What arrives in each step, and the state after them."""
    kv, arrived = kvstore.create("dist_sync", communicator=group), []
    kv.init("a", np.zeros(SHAPE, np.float32))
    kv.set_gradient_compression({"type": "2bit", "threshold": 1.5})
    if state is not None:
        kv.load_compression_state_dict(state)
    for step in steps:
        kv.push("a", gradient(step, group.rank, "a"))
        out = np.zeros(SHAPE, np.float32)
        kv.pull("a", out)
        arrived.append(out.tobytes())
    return arrived, kv.compression_state_dict()


straight, end = pushes(range(6))
_, half = pushes(range(3))
resumed, end_of_resumed = pushes(range(3, 6), half)
without, _ = pushes(range(3, 6))
assert resumed == straight[3:] != without
assert (end["workers"]["'a'"]["left"] == end_of_resumed["workers"]["'a'"]["left"]).all()
group.close()
print("equal", flush=True)
