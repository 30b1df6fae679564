"""A store whose pushes are compressed, beside MXNet's rules in numpy: each worker keeps what it loses, for each key."""

from __future__ import annotations

import itertools

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


for store, (kind, threshold) in itertools.product(("dist_sync", "dist_device_sync"), (("2bit", 0.5), ("2bit", 2.0), ("1bit", 0.0))):
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
group.close()
print("equal", flush=True)
