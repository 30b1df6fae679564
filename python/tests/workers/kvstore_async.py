"""A worker of a store of type dist_async; started by test_kvstore_remote.py, and by ps-lite's lines by test_ps_lite.py."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from herringbone import ArgumentError, MismatchError, TableError, kvstore
from herringbone.kvstore.remote import RemoteKVStore

SHAPE = (3, 70, 11)


def full(value: float, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.full(shape, value, np.float32)


def pulled(kv: kvstore.KVStore, key: Any, shape: tuple[int, ...] = SHAPE) -> Any:
    out = full(-1, shape)
    kv.pull(key, out)
    return out


def everything() -> None:
    """Values, optimizers before and after init, rows, and what all workers push."""
    kv = kvstore.create("dist_async")
    n, rank = kv.num_workers, kv.rank
    kv.init(["a", "one"], [full(rank + 5), full(rank, ())])
    assert (pulled(kv, "a") == 5).all() and pulled(kv, "one", ()) == 0
    kv.barrier()
    kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.5 if rank == 0 else 9))
    assert (pulled(kv, "a") == 5).all()  # rank 0's is taken, and the values stay
    kv.barrier()
    kv.push("a", [full(1), full(2)], priority=-1)
    kv.barrier()
    assert (pulled(kv, "a") == 5 - 0.5 * 3 * n).all()
    kv.barrier()
    kv.set_optimizer(kvstore.create_optimizer("adam", learning_rate=0.25))
    kv.init("w", full(1))
    out, mine = full(0), full(2)
    kv.pushpull("w", mine, out)
    assert (out < 1).all()
    kv.barrier()
    assert np.allclose(pulled(kv, "w"), 1 - 0.25 * n, atol=1e-5)
    kv.set_optimizer("test")
    kv.init("rows", kvstore.RowSparse(full(4, (2, 3)), [1, 6], (9, 3)))
    kv.push("rows", [kvstore.RowSparse(full(1, (2, 3)), [6, 8], (9, 3)), kvstore.RowSparse(full(1, (1, 3)), [8], (9, 3))])
    kv.barrier()
    some = kvstore.RowSparse.zeros((9, 3))
    kv.row_sparse_pull("rows", some, row_ids=[8, 6, 0, 6])
    assert some.indices.tolist() == [0, 6, 8] and some.data[:, 0].tolist() == [0, 4 + n, 2 * n], some.data
    assert pulled(kv, "rows", (9, 3))[:, 2].tolist() == [0, 4, 0, 0, 0, 0, 4 + n, 0, 2 * n]
    kv.barrier()
    kv.broadcast("late", full(rank), out)
    assert (out == 0).all() and kv.num_dead_node() == 0


def killed() -> None:
    """Worker 1 is killed; the others do without it."""
    kv = kvstore.create("dist_async")
    kv.init(1, full(0))
    kv.set_optimizer("test")
    kv.push(1, full(1))
    kv.barrier()
    if kv.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    kv.push(1, full(1))
    kv.barrier()
    assert (pulled(kv, 1) == 2 * kv.num_workers - 1).all() and kv.num_dead_node() == 1
    print(f"rank {kv.rank} has waited {time.monotonic() - began:.1f} s", flush=True)


def back() -> None:
    """Worker 1 is killed, and comes back: it finds the values that there are."""
    kv = kvstore.create("dist_async")
    kv.init(1, full(7))
    kv.set_optimizer(kvstore.create_optimizer("test", rescale_grad=2))
    if kv.rank == 1 and len(sys.argv) == 2:
        os.execv(sys.executable, [sys.executable, sys.argv[0], "back", "again"])
    if kv.rank == 1:
        assert (pulled(kv, 1) >= 7).all()
    kv.push(1, full(1))
    deadline = time.monotonic() + 60
    while not (pulled(kv, 1) == 7 + 2 * kv.num_workers).all():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def back_first() -> None:
    """Rank 0 comes back, twice: a scheduler of its own, which does not travel, goes on, in whatever order it calls."""
    kv, shape, lives = kvstore.create("dist_async"), (3,), len(sys.argv) - 1
    optimizer = kvstore.create_optimizer("sgd", lr_scheduler=float)
    if lives == 3:
        kv.set_optimizer(optimizer)
    kv.init(1, full(0, shape))
    if lives < 3:
        kv.set_optimizer(optimizer)
    for _ in range(3):
        kv.push(1, full(1, shape))
    out = pulled(kv, 1, shape)
    updates = 3 * lives
    assert (out == -updates * (updates + 1) / 2).all() and optimizer.num_update == updates, (out, optimizer.num_update)
    if lives < 3:
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])


def first_values() -> None:
    """An init that is refused, or that the workers call differently, leaves no value that counts later."""
    kv = kvstore.create("dist_async")
    kv.set_optimizer("lamb")
    refused_with(ArgumentError, "key 1 has 20000 elements", lambda: kv.init([0, 1], [full(5), full(5, (20000,))]))
    kv.init(0, full(6))
    assert (pulled(kv, 0) == 6).all()
    refused_with(MismatchError, "init", lambda: kv.init([2, 3 + kv.rank], [full(5)] * 2))
    # Whichever worker is late finds a table of another width.
    refused_with((MismatchError, TableError), "init", lambda: kv.init(9, full(0, (2 + kv.rank,))), "differs in width")
    refused_with(ArgumentError, "elements of int8", lambda: kv.init(9, np.zeros(3, np.int8)))
    kv.init([2, 3, 4, 9], [full(7)] * 4)
    assert all((pulled(kv, key) == 7).all() for key in (2, 3, 4, 9))
    refused_with(ArgumentError, "has a value already", lambda: kv.init(4, full(8)))
    assert isinstance(kv, RemoteKVStore)
    # A server that refuses one worker's table leaves the others in no meeting.
    if kv.rank == 1:
        kv._servers.table = cannot_open  # type: ignore[method-assign]
        refused_with(TableError, "this worker gets no table", lambda: kv.init([5, 6], [full(8)] * 2))
        del kv._servers.table
    else:
        refused_with(MismatchError, "it has failed on rank 1, whose error says why", lambda: kv.init([5, 6], [full(8)] * 2))
    kv.init([5, 6], [full(9)] * 2)
    assert all((pulled(kv, key) == 9).all() for key in (5, 6))


def cannot_open(*_: object, **__: object) -> Any:
    raise TableError("this worker gets no table", "5")


def refused() -> None:
    """An optimizer that the keys cannot have leaves all workers with the one before, whoever is late and whoever can have it."""
    for before in (None, kvstore.create_optimizer("sgd", learning_rate=1.0)):
        kv = kvstore.create("dist_async")
        assert isinstance(kv, RemoteKVStore)
        kv.init(1, full(0, (20000,)))
        if before is not None:
            kv.set_optimizer(before)
        message, plan = kv._meeting.message, kv._plan
        if kv.rank == 1:
            kv._meeting.message = lambda: (time.sleep(0.5), message())[1]  # type: ignore[method-assign]
        refused_with(ArgumentError, "key 1 has 20000 elements", lambda: kv.set_optimizer("lamb"))
        steps = kvstore.MultiFactorScheduler(list(range(1000, 601000, 1000)), 0.5)
        refused_with(
            ArgumentError, "scheduler is too long", lambda: kv.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=steps))
        )
        unknown = kvstore.create_optimizer("sgd")
        unknown.params["note"] = object()
        error, words = (TypeError, "'note'") if kv.rank == 0 else (MismatchError, "set_optimizer: it has failed on rank 0")
        refused_with(error, words, lambda: kv.set_optimizer(unknown))
        if kv.rank == 1:
            kv._plan = cannot_plan  # type: ignore[method-assign]
        refused_with(MismatchError, "set_optimizer: it has failed on rank 1", lambda: kv.set_optimizer("adam"))
        kv._plan = plan  # type: ignore[method-assign]
        kv.barrier()
        assert (message().size > 0) == (before is not None)
        if before is not None:
            assert kv.optimizer is not None and kv.optimizer.name == "sgd"
            kv.push(1, full(1, (20000,)))
            kv.barrier()
            assert (pulled(kv, 1, (20000,)) == -kv.num_workers).all()
            kv.barrier()
        kv.close()


def cannot_plan(*_: object) -> Any:
    raise ArgumentError("this worker cannot have it")


def refused_with(
    error: type[Exception] | tuple[type[Exception], ...], words: str, call: Callable[[], object], other: str | None = None
) -> None:
    try:
        call()
    except error as raised:
        assert words in str(raised) or (other is not None and other in str(raised)), raised
    else:
        raise AssertionError("it was not refused")


def mistaken() -> None:
    """Workers that call different things are told so."""
    kv = kvstore.create("dist_async")
    try:
        kv.init(1 + kv.rank, full(0))
    except Exception as error:
        print(type(error).__name__, flush=True)


def fails() -> None:
    """An exception ends worker 1, and worker 0 does not wait for it."""
    kv = kvstore.create("dist_async")
    kv.init(1, full(0))
    if kv.rank == 1:
        raise SystemExit("worker 1 fails")
    kv.barrier()


def waits() -> None:
    """Pulls until a server is lost."""
    kv = kvstore.create("dist_async")
    kv.init(1, full(0))
    print("waits", flush=True)
    while True:
        pulled(kv, 1)


def synchronous() -> None:
    """The same program in all roles, with a store of type dist_sync."""
    kv = kvstore.create("dist_sync")
    kv.init(3, full(kv.rank + 5))
    kv.push(3, full(kv.rank + 1))
    assert (pulled(kv, 3) == kv.num_workers * (kv.num_workers + 1) / 2).all()
    print(f"rank {kv.rank} of {kv.num_workers}", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
