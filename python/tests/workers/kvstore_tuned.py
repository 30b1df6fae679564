"""A worker that changes the numbers of its store's optimizer while the store is in use: of type dist_sync, or of the one it is told."""

from __future__ import annotations

import sys

import numpy as np

from herringbone import ArgumentError, MismatchError, kvstore
from herringbone.kvstore.remote import RemoteKVStore

kind = sys.argv[1] if len(sys.argv) > 1 else "dist_sync"
kv = kvstore.create(kind)
n, rank, out = kv.num_workers, kv.rank, np.zeros(3)


def pushed(store: kvstore.KVStore, key: str, value: float) -> float:
    """The value of a key after a push, of all workers' pushes if they take part in it."""
    store.push(key, np.full(3, value / n))
    store.barrier()
    store.pull(key, out)
    store.barrier()
    assert (out == out[0]).all()
    return float(out[0])


# Rank 0's numbers are taken; what each changes then counts. The workers' pushes are one step here, and as many on servers.
optimizer = kvstore.create_optimizer("sgd", learning_rate=1 if rank == 0 else 9, momentum=0.5)
kv.init(["w", "frozen"], [np.zeros(3), np.zeros(3)])
kv.set_optimizer(optimizer)
optimizer.set_lr_mult({"frozen": 0})
velocity = weight = 0.0
for rate in (1, 0.5, 0.25):
    optimizer.params["learning_rate"] = rate
    if kind == "dist_async":
        for _ in range(n):
            velocity = 0.5 * velocity - rate / n
            weight += velocity
    else:
        velocity = 0.5 * velocity - rate
        weight += velocity
    # A push on servers comes with the change, so rank 0's is the first.
    if kind == "dist_async":
        for turn in range(n):
            if turn == rank:
                kv.push("w", np.full(3, 1 / n))
                kv.pull("w", out)
            kv.barrier()
        kv.pull("w", out)
        got = float(out[0])
        kv.barrier()
    else:
        got = pushed(kv, "w", 1)
    assert np.isclose(got, weight), (rate, got, weight)
assert pushed(kv, "frozen", 1) == 0
assert kv.optimizer is not None and kv.optimizer.params["learning_rate"] == 0.25

if kind == "dist_async":
    # Rank 0's scheduler sets the servers' rate, by its pushes times the workers.
    kv.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=lambda count: float(count) if rank == 0 else 1e9))
    kv.init("s", np.zeros(3))
    for _ in range(2):
        if rank == 0:
            kv.push("s", np.ones(3))
        kv.barrier()
    kv.push("s", np.ones(3))
    kv.barrier()
    kv.pull("s", out)
    # Rank 0 has pushed three times in all, and the others at a rate of two or three pushes.
    least, most = -(n + 2 * n + 3 * n + (n - 1) * 3 * n), -(n + 2 * n + 3 * n + (n - 1) * 2 * n)
    assert least <= out[0] <= most, out
    try:
        optimizer = kvstore.create_optimizer("sgd")
        kv.set_optimizer(optimizer)
        optimizer.params["momentum"] = 0.5
        kv.push("s", np.ones(3))
    except ArgumentError as error:
        assert "momentum has become above 0" in str(error), error
    else:
        raise AssertionError("servers have no velocity for it")
    assert isinstance(kv, RemoteKVStore)
    kv.close()
    raise SystemExit

# A scheduler travels with rank 0's optimizer, and one of the program's own is each worker's.
schedule = kvstore.MultiFactorScheduler([1, 2], 0.5, base_lr=4)
for chosen in (schedule if rank == 0 else None, lambda count: 8 / 2**count):
    other = kvstore.create("dist_sync")
    other.init("s", np.zeros(3))
    other.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=chosen))
    assert [pushed(other, "s", 1) for _ in range(3)] == [-4, -6, -7]

# Workers that change different things are told, all of them.
optimizer.params["learning_rate"] = 1 + rank
kv.push("w", np.ones(3))
try:
    kv.pull("w", out)
except MismatchError as error:
    assert n > 1 and " by sgd(learning_rate=" in str(error), error
else:
    assert n == 1
optimizer.params["learning_rate"] = 1
before = np.zeros(3)
kv.pull("w", before)
assert pushed(kv, "w", 0) != before[0]
