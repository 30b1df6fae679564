"""Workers of a store that do not call alike: all of them are told, and go on."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

import herringbone
from herringbone import kvstore


def full(value: float, shape: tuple[int, ...] = (4, 6)) -> np.ndarray:
    return np.full(shape, value, np.float32)


group = herringbone.init(timeout=60)
kv = kvstore.create("dist_sync", communicator=group)
n, rank = kv.num_workers, kv.rank
is_odd = rank == n - 1
reported: list[str] = []


def mismatch(call: Callable[[], object], wait: bool = True) -> None:
    """All ranks learn of it at the latest in their next call, and the one after that works."""
    try:
        call()
        if wait:
            kv.wait_all()
        kv.barrier()
    except herringbone.MismatchError as error:
        reported.append(str(error))
    else:
        raise AssertionError(f"rank {rank} was told nothing")
    try:
        kv.wait_all()
    except herringbone.MismatchError:
        pass
    kv.barrier()


def works(key: str, at: int) -> None:
    out = full(9)
    kv.push(key, full(at + rank))
    kv.pull(key, out)
    assert (out == n * at + n * (n - 1) / 2).all(), out


# Keys of one size.
kv.init(["a", "b"], [full(1), full(2)])
mismatch(lambda: kv.push("b" if is_odd else "a", full(5)))
for key, value in (("a", 1), ("b", 2)):
    out = full(9)
    kv.pull(key, out)
    assert (out == value).all(), "what was not agreed changes nothing"
works("a", 3)

# The rate is that of the number of updates, and what was not agreed is none.
kv.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=lambda count: 2.0**count))
mismatch(lambda: kv.push("b" if is_odd else "a", full(1)))
for key, value in (("b", 2 - 2), ("b", 0 - 4), ("a", sum(range(3, n + 3)) - 4)):
    kv.push(key, full(1 / n))
    kv.pull(key, out)
    assert np.allclose(out, value), (key, out)
kv.set_updater(None)

# An optimizer of rank 0 that does not travel is none on any rank.
odd = kvstore.create_optimizer("sgd")
odd.params["note"] = object()
expected, words = (
    (TypeError, "'note'")
    if rank == 0
    else (herringbone.ArgumentError, "rank 0's optimizer contains something that cannot be sent")
)
try:
    kv.set_optimizer(odd)
except expected as error:
    assert words in str(error), error
else:
    raise AssertionError("it was taken")
works("b", 0)
assert kv.optimizer is None

# Shapes of one size, in init, whose keys then have no value anywhere.
shape = (6, 4) if is_odd else (4, 6)
mismatch(lambda: kv.init("c", full(1, shape)))
try:
    kv.pull("c", full(9, shape))
except herringbone.ArgumentError as error:
    assert "call init first" in str(error)
else:
    raise AssertionError("a key stays after an init that failed")
kv.init("c", full(7 + rank))
works("c", 4)

# Keys that are new to all, of which some take another one.
mismatch(lambda: kv.init("e" if is_odd else "d", full(1)))
kv.init(["d", "e"], [full(1), full(1)])
works("e", 2)

# Calls, and rows beside a dense value of as many elements.
mismatch(lambda: (kv.pushpull if is_odd else kv.push)("a", full(1)))
kv.init("rows", kvstore.RowSparse.zeros((3, 7)))
kv.init("flat", full(0, (24,)))
ones = kvstore.RowSparse(np.ones((1, 7), np.float32), [1], (3, 7))
mismatch(lambda: kv.push("flat", full(1, (24,))) if is_odd else kv.push("rows", ones))
kv.push("rows", ones)
pulled = kvstore.RowSparse.zeros((3, 7))
kv.row_sparse_pull("rows", pulled, row_ids=[0, 1, 2])
assert (pulled.toarray() == [[0] * 7, [n] * 7, [0] * 7]).all()

# A store that stores nothing.
direct = kvstore.create("horovod", communicator=group, engine=kv.engine)
mismatch(lambda: direct.pushpull(2 if is_odd else 1, full(1)))
summed = full(rank)
direct.pushpull(1, summed)
assert (summed == n * (n - 1) / 2).all()

# What is refused on this rank before it begins is no call.
if is_odd:
    for call in (
        lambda: kv.push(["a", "b"], [full(1), full(1, (2, 2))]),
        lambda: kv.pushpull(["a", "b"], [full(1), full(1)], out=[full(1), full(1, (2, 2))]),
        lambda: kv.broadcast("new", full(1), out=full(1, (2, 2))),
        lambda: kv.init(["f", "a"], [full(1), full(1)]),
        lambda: direct.pushpull([1, 2], [full(1), full(1)], out=[full(1), full(1, (2, 2))]),
        lambda: direct.broadcast([1, 2], [full(1), full(1)], out=[full(1), full(1, (2, 2))]),
    ):
        try:
            call()
        except herringbone.ArgumentError:
            continue
        raise AssertionError("it was not refused")
works("b", 1)
kv.wait_all()

# In the last call of all; rank 0, which only sends in it, may learn of it where the job ends.
ends = 0
for end in (lambda: kv.init("last", full(1, shape)), kv.wait_all, group.close):
    try:
        end()
    except herringbone.MismatchError as error:
        assert "the ranks disagree" in str(error), error
        ends += 1
assert ends == 1, ends

print(json.dumps({"told": reported}))
