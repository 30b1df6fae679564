"""A worker of a store of type dist_sync, and of one of type horovod on the same communicator."""

from __future__ import annotations

import json

import numpy as np
from cases import MUCH, check_out_of_memory

import herringbone
from herringbone import kvstore


def full(value: float) -> np.ndarray:
    return np.full((3, 4), value, np.float32)


group = herringbone.init(timeout=60)
kv = kvstore.create("DIST_SYNC", communicator=group)
n, rank, out = kv.num_workers, kv.rank, full(9)

# Rank 0's first value counts; a push without an updater replaces.
kv.init(3, full(rank + 5))
kv.pull(3, out)
assert (out == 5).all()
for _ in range(2):
    kv.push(3, [full(rank + 1)] * 2)
    kv.pull(3, out)
    assert (out == n * (n + 1)).all()

# MXNet's nightly scenario: rank 0's optimizer, and pushes that add up. The big array is one of them.
kv.init(99, np.zeros((1200, 1200), np.float32))
kv.set_optimizer(kvstore.create_optimizer("test", rescale_grad=2 if rank == 0 else 3))
big = np.zeros((1200, 1200), np.float32)
for _ in range(3):
    kv.push(3, full(rank + 1), priority=-1)
    kv.push(99, np.full((1200, 1200), rank + 1, np.float32))
kv.pull(3, out)
kv.pull(99, big)
assert (out == n * (n + 1) + 3 * 2 * n * (n + 1) / 2).all() and (big == 3 * 2 * n * (n + 1) / 2).all()

# Rows that some workers push.
kv.init(50, kvstore.RowSparse.zeros((2 * n, 2)))
kv.push(50, kvstore.RowSparse(np.ones((2, 2), np.float32), [rank, n], (2 * n, 2)))
rows = kvstore.RowSparse.zeros((2 * n, 2))
kv.row_sparse_pull(50, out=rows, row_ids=[n, 0, n])
assert rows.indices.tolist() == [0, n] and rows.data.tolist() == [[2, 2], [2 * n, 2 * n]]

# 150 in a row, in a store that stores nothing.
direct = kvstore.create("horovod", communicator=group, engine=kv.engine)
values = [full(rank + at) for at in range(150)]
for at, value in enumerate(values):
    direct.pushpull(at, value, priority=-at, async_op=True)
direct.wait_all()
assert all((value == n * at + n * (n - 1) / 2).all() for at, value in enumerate(values))
first = full(rank)
direct.broadcast("first", first, out=first)
assert (first == 0).all()
for call in (lambda: direct.init(1, first), lambda: direct.push(1, first), lambda: direct.pull(1, first)):
    try:
        call()
    except herringbone.UnsupportedError as error:
        assert "stores nothing" in str(error)
    else:
        raise AssertionError("a store of type horovod stores nothing")
assert kv.is_capable("optimizer") and not direct.is_capable("optimizer")

# Another store with an engine of its own, and the program's own calls between the stores': all in the order of each alone.
other, sums = kvstore.create("dist_sync", communicator=group), []
for store in (kv, other):
    store.init(7, np.zeros(3, np.float32))
one, two = np.zeros(3, np.float32), np.zeros(3, np.float32)
for at in range(50):
    kv.push(7, np.ones(3, np.float32))
    other.push(7, np.full(3, 2, np.float32))
    sums.append(np.full(3, at, np.float32))
    group.all_reduce(sums[-1])
    kv.pull(7, out=one)
    other.pull(7, out=two)
    assert (one == n * 2 * (at + 1)).all() and (two == 2 * n).all() and (sums[-1] == n * at).all(), (at, one, two, sums[-1])

# A value for which a worker has no memory: all are told, and the store goes on.
much = np.zeros(MUCH // 4, np.float32)
if n > 1:
    check_out_of_memory(rank, lambda: kv.init([11, 12], [much, np.zeros(3, np.float32)]), herringbone.OutOfMemoryError)
kv.init([11, 12], [much, np.zeros(3, np.float32)])
if n > 1:
    check_out_of_memory(rank, lambda: (kv.push(11, much), kv.pull(11, much)), herringbone.OutOfMemoryError)
    check_out_of_memory(rank, lambda: direct.pushpull("much", much), herringbone.OutOfMemoryError)
kv.push(12, np.ones(3, np.float32))
kv.pull(12, out=one)
assert one.tolist() == [2 * n] * 3

kv.barrier()
print(json.dumps({"rank": rank, "workers": n, "local": [kv.local_rank, kv.num_local_workers], "dead": kv.num_dead_node()}))
group.close()
