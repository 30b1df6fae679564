"""The types of calls, as a type checker and an editor see them: `make check` checks this file, `make editors` too, and nothing runs it.

Each `type: ignore` names an error that the checker has to find, since one that is not needed is an error itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from typing_extensions import assert_type

import herringbone
from herringbone import Communicator, Operation, Work, kvstore
from herringbone.torch import compression

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def folds(group: Communicator, array: Floats, is_late: bool, op: Operation) -> None:
    """A sum is an array of the type that went in, or a work that gives one."""
    assert_type(group.all_reduce(array), Floats)
    assert_type(group.all_reduce(array, "max", async_op=False), Floats)
    assert_type(group.all_reduce(array, op, async_op=True), Work[Floats])
    assert_type(group.all_reduce(array, async_op=True).wait(), Floats)
    assert_type(group.all_reduce(array, async_op=is_late), Floats | Work[Floats])
    assert_type(group.all_reduce(array, "average", compression="topk:0.01", tensor="layer1"), Floats)
    assert_type(group.reduce(array, 0, async_op=True).wait(), Floats)
    assert_type(group.reduce(array), Floats)
    assert_type(group.reduce_scatter(array), Floats)
    assert_type(group.reduce_scatter(array, "min", async_op=True), Work[Floats])


def moves(group: Communicator, array: Bytes) -> None:
    """What moves keeps its type; only the root of a gather has a result."""
    assert_type(group.broadcast(array), Bytes)
    assert_type(group.broadcast(array, async_op=True), Work[Bytes])
    assert_type(group.all_gather(array, counts=[1, 2]), Bytes)
    assert_type(group.all_gather(array, async_op=True).wait(), Bytes)
    assert_type(group.gather(array), Bytes | None)
    assert_type(group.gather(array, async_op=True).wait(), Bytes | None)
    assert_type(group.scatter(None, out=array), Bytes)
    assert_type(group.scatter(array, async_op=True).wait(), Bytes)
    assert_type(group.all_to_all(array), Bytes)
    assert_type(group.all_to_all(array, async_op=True).wait(), Bytes)


def messages(group: Communicator, array: Bytes) -> None:
    """A receive gives the rank of the sender, at once or when its work is over."""
    assert_type(group.recv(array), int)
    work = group.recv(array, tag=3, async_op=True)
    assert_type(work.wait(timeout=1.0), Bytes)
    assert_type(work.source, int | None)
    assert_type(work.done(), bool)
    assert_type(group.send(array, 1, async_op=True), Work[Bytes])
    assert_type(group.barrier(async_op=True), Work[None])


def options() -> None:
    """Names with parameters and fixed ones."""
    herringbone.Options(algorithm="radix", transport="shm", fold_order="hosts")
    herringbone.Options(algorithm="radix(8,8)")
    with compression("int8"):
        torch.distributed.all_reduce(torch.ones(1))
    assert_type(kvstore.create("dist_sync"), kvstore.KVStore)


def refused(group: Communicator, array: Floats) -> None:
    """Mistakes that a checker finds before a job runs."""
    group.all_reduce(array, "mean")  # type: ignore[call-overload]
    group.all_reduce([1.0, 2.0])  # type: ignore[call-overload]
    group.all_reduce(array).wait()  # type: ignore[attr-defined]
    group.all_reduce(array, async_op=True).sum()  # type: ignore[attr-defined]
    group.broadcast(array, priority="high")  # type: ignore[call-overload]
    group.barrier(priority=1)  # type: ignore[call-overload]
    group.explain(1, collective="allreduce")  # type: ignore[arg-type]
    herringbone.Options(transport="rdma")  # type: ignore[arg-type]
