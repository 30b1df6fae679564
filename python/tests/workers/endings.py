"""Groups that end, and what is left of them: some groups with an operation fill the staging memory if they leave any taken."""

from __future__ import annotations

import gc
import os
import threading
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from cases import error_of
from values import same, size

import herringbone

CASES, case = cases.registry()

GROUPS = 40
COUNT = 400_000


def group_with_an_operation() -> dist.ProcessGroup:
    group = dist.new_group()
    tensor = torch.ones(COUNT)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((COUNT,), float(size())))
    return group


@case
def groups_that_are_destroyed_after_an_operation() -> None:
    for _ in range(GROUPS):
        dist.destroy_process_group(group_with_an_operation())


@case
def groups_that_are_aborted_after_an_operation() -> None:
    for _ in range(GROUPS):
        group = group_with_an_operation()
        group.abort()
        dist.destroy_process_group(group)


@case
def groups_that_are_destroyed_during_an_operation() -> None:
    for _ in range(GROUPS):
        group = dist.new_group()
        tensor = torch.ones(COUNT)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.destroy_process_group(group)
        work.wait()
        same(tensor, torch.full((COUNT,), float(size())))


@case
def groups_that_are_aborted_during_an_operation() -> None:
    for _ in range(GROUPS):
        group = dist.new_group()
        work = dist.all_reduce(torch.ones(COUNT), group=group, async_op=True)
        group.abort()
        assert work.is_completed()
        assert work.is_success() or isinstance(work.exception(), herringbone.ClosedError), work.exception()
        dist.destroy_process_group(group)


@case
def aborting_everything_waits_for_nobody() -> None:
    """Not even where a thread waits for a call that no other rank makes."""
    store = dist.PrefixStore("aborting", dist.distributed_c10d._get_default_store())
    if dist.get_rank() == 0:
        work, ended = dist.barrier(async_op=True), []
        waiting = threading.Thread(target=lambda: ended.append(error_of(herringbone.HerringboneError, work.wait)))
        waiting.start()
        dist.distributed_c10d._abort_process_group()
        waiting.join()
        del work
        gc.collect()
        assert isinstance(ended[0], herringbone.ClosedError), ended
        store.set("aborted", "")
    else:
        # It is in the job until the abort is over, so rank 0 has not waited for its end.
        store.wait(["aborted"])
        dist.distributed_c10d._abort_process_group()
    again = dist.PrefixStore("again", store)
    dist.init_process_group("herringbone", store=again, rank=int(os.environ["RANK"]), world_size=2, timeout=timedelta(seconds=30))


@case
def the_group_of_all_ranks_works_as_before() -> None:
    tensor = torch.ones(COUNT)
    dist.all_reduce(tensor)
    same(tensor, torch.full((COUNT,), float(size())))


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=30))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
