"""A rank lacks memory, makes another call than the others, or leaves, while hosts add up first: every rank gets an error.

Usage: rails_confused.py RANKS_PER_HOST. Each case has a group of its own, which is over in the end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import NoneType
from typing import Any

import cases
import torch
import torch.distributed as dist
from simulated import LanedStandIn
from staged_lacking import lacking

import herringbone

CASES, case = cases.registry()


def is_last() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


def fresh() -> dist.ProcessGroup:
    """A group whose hosts add up first."""
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    assert "add up first" in group.member.on_hosts()[0]
    return group


def columns() -> torch.Tensor:
    """A tensor that is not in order, so that calls need a copy of it."""
    return torch.ones(2, 40).t()


def check_usable(group: Any) -> None:
    """Calls with steps and without have their results."""
    for dtype in (torch.float32, torch.int16):
        tensor = torch.ones(3, dtype=dtype)
        dist.all_reduce(tensor, group=group)
        STAND_IN.synchronize()
        assert tensor.tolist() == [dist.get_world_size()] * 3
    assert "add up first" in group.member.on_hosts()[0]


def unasked(work: Any) -> Any:
    """The work, which is over, and of which nobody has asked how it ended."""
    while not all(handle.done() for handle in work._handles):
        time.sleep(0.001)
    return work


@case
def a_rank_without_memory_fails_the_call_on_all() -> None:
    group, size = dist.new_group(), dist.get_world_size()
    whole, lacks = torch.zeros(2, 40 * size), herringbone.OutOfMemoryError
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(columns(), group=group),
        lambda: dist.all_gather_into_tensor(whole.t(), torch.ones(80), group=group),
        lambda: dist.reduce_scatter_tensor(columns(), torch.ones(80 * size), group=group),
        lambda: dist.broadcast(columns(), 1, group=group),
    ]
    for call in calls:
        with lacking():
            cases.error_of(lacks, call, "rank 1 lacks")
        check_usable(group)


@case
def calls_behind_one_that_lacks_memory_end_alike_on_all_ranks() -> None:
    tensors = [torch.ones(2000 + number) for number in range(5)]
    group: Any = fresh()
    works: list[dist.Work | None] = []
    with lacking():
        works.append(dist.all_reduce(columns(), group=group, async_op=True))
    for tensor in tensors:
        try:
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
        except herringbone.OutOfMemoryError:
            # It tells of an earlier call, and runs all the same.
            works.append(None)
    have_failed = [None if work is None else unasked(work).exception() is not None for work in works]
    for work in works:
        assert work is None or isinstance(work.exception(), (NoneType, herringbone.OutOfMemoryError)), work.exception()
    [sums] = group.member._sums.values()
    while sums._flying:
        time.sleep(0.001)
    sums.unasked()
    check_usable(group)
    seen = torch.tensor([[failed is outcome for failed in have_failed] for outcome in (True, False)], dtype=torch.int16)
    dist.all_reduce(seen, dist.ReduceOp.MAX, group=group)
    STAND_IN.synchronize()
    assert have_failed[0] and not (seen[0] & seen[1]).any(), (have_failed, seen)


@case
def a_call_without_steps_that_lacks_memory_leaves_the_group_usable() -> None:
    group, lacks = fresh(), herringbone.OutOfMemoryError
    parts = [torch.zeros(40, 2) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    with lacking(), contextlib.suppress(lacks):
        dist.gather(columns(), parts, 0, group=group)
    with contextlib.suppress(lacks):
        # Some ranks can have ended the call before, and are told by this one.
        dist.all_reduce(torch.ones(3), group=group)
    check_usable(group)


@case
def a_failure_that_nobody_asks_for_is_told_by_a_later_call_with_steps_or_without() -> None:
    group, lacks = fresh(), herringbone.OutOfMemoryError
    without, with_steps = torch.int16, torch.int32
    for failing, later in ((without, with_steps), (with_steps, without), (with_steps, with_steps)):
        tensor = torch.ones(40, 2, dtype=failing)
        given = torch.ones(2, 40, dtype=failing).t() if dist.get_rank() == 1 else tensor
        with lacking():
            kept = unasked(dist.all_reduce(given, group=group, async_op=True))
        later_call = functools.partial(dist.all_reduce, tensor.view(later), group=group)
        cases.error_of(lacks, later_call, "an earlier call has failed", "rank 1 lacks")
        check_usable(group)
        assert isinstance(kept.exception(), lacks)
        with lacking():
            asked = unasked(dist.all_reduce(given, group=group, async_op=True))
        assert isinstance(asked.exception(), lacks)
        check_usable(group)


def check_reported(group: dist.ProcessGroup, work: dist.Work, expected: type[BaseException]) -> None:
    """The call fails, and so does the next one."""
    deadline = time.monotonic() + 50
    while work.exception() is None:
        assert time.monotonic() < deadline, "the call does not end"
        time.sleep(0.01)
    assert isinstance(work.exception(), expected), work.exception()
    for dtype in (torch.float32, torch.int16):
        cases.error_of(expected, lambda dtype=dtype: dist.all_reduce(torch.ones(3, dtype=dtype), group=group))


def check_mismatch(group: dist.ProcessGroup, work: dist.Work) -> None:
    check_reported(group, work, herringbone.MismatchError)
    dist.barrier()


@case
def another_length() -> None:
    group = fresh()
    check_mismatch(group, dist.all_reduce(torch.ones(1003 if is_last() else 1000), group=group, async_op=True))


@case
def another_op() -> None:
    group = fresh()
    op = dist.ReduceOp.MAX if is_last() else dist.ReduceOp.SUM
    check_mismatch(group, dist.all_reduce(torch.ones(1000), op, group=group, async_op=True))


@case
def another_type() -> None:
    group = fresh()
    tensor = torch.ones(1000, dtype=torch.int32 if is_last() else torch.float32)
    check_mismatch(group, dist.broadcast(tensor, 0, group=group, async_op=True))


@case
def a_rank_that_leaves() -> None:
    group = fresh()
    if is_last():
        dist.destroy_process_group(group)
    else:
        check_reported(group, dist.all_reduce(torch.ones(1000), group=group, async_op=True), herringbone.PeerLostError)
    dist.barrier()


@case
def a_rank_that_aborts() -> None:
    group = fresh()
    if is_last():
        # So that its call is not over when it leaves.
        STAND_IN.rest()
    work = dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    if is_last():
        group.abort()
        assert isinstance(work.exception(), herringbone.ClosedError), work.exception()
        STAND_IN.go_on()
    else:
        check_reported(group, work, herringbone.PeerLostError)
    dist.barrier()


if __name__ == "__main__":
    os.environ["NCCL_HOSTID"] = f"host {int(os.environ['RANK']) // int(sys.argv[1])}"
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    STAND_IN = LanedStandIn(seed=3)
    cases.run(CASES, dist.get_rank())
    STAND_IN.end()
