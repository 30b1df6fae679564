"""The last rank makes another call than the others, or leaves, while hosts add up first: every rank gets an error.

Usage: rails_confused.py RANKS_PER_HOST. Each case has a group of its own, which is over in the end.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from simulated import LanedStandIn

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


def check_told(group: dist.ProcessGroup, work: dist.Work, expected: type[BaseException]) -> None:
    """The call fails, and so does the next one."""
    deadline = time.monotonic() + 50
    while work.exception() is None:
        assert time.monotonic() < deadline, "the call does not end"
        time.sleep(0.01)
    assert isinstance(work.exception(), expected), work.exception()
    cases.error_of(expected, lambda: dist.all_reduce(torch.ones(3), group=group))


def check_mismatch(group: dist.ProcessGroup, work: dist.Work) -> None:
    check_told(group, work, herringbone.MismatchError)
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
        check_told(group, dist.all_reduce(torch.ones(1000), group=group, async_op=True), herringbone.PeerLostError)
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
        check_told(group, work, herringbone.PeerLostError)
    dist.barrier()


if __name__ == "__main__":
    os.environ["NCCL_HOSTID"] = f"host {int(os.environ['RANK']) // int(sys.argv[1])}"
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    STAND_IN = LanedStandIn(seed=3)
    cases.run(CASES, dist.get_rank())
    STAND_IN.end()
