"""Groups that end, and what is left of them: some groups with an operation fill the staging memory if they leave any taken."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import threading
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from cases import error_of
from values import rank, same, size

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


class Tells:
    """A communicator whose end finds something wrong."""

    def __init__(self, group: dist.ProcessGroup, text: str) -> None:
        member = group.member
        self.inner, self.text, member.communicator = member.communicator, text, self

    def close(self) -> None:
        self.inner.close()
        raise herringbone.MismatchError(self.text)


def check_all_ranks_add() -> None:
    tensor = torch.ones(COUNT)
    dist.all_reduce(tensor)
    same(tensor, torch.full((COUNT,), float(size())))


def is_known(group: dist.ProcessGroup) -> bool:
    return group in dist.distributed_c10d._world.pg_map


@case
def a_group_is_gone_when_its_end_tells_of_an_error() -> None:
    group, mixed = dist.new_group(), dist.new_group(backend="cpu:herringbone,cuda:gloo")
    Tells(group, "told")
    Tells(mixed._get_backend(torch.device("cpu")), "told, too")
    error_of(dist.DistBackendError, lambda: dist.destroy_process_group(group), "told")
    error_of(herringbone.MismatchError, lambda: dist.destroy_process_group(mixed), "told, too")
    assert not is_known(group) and not is_known(mixed)
    check_all_ranks_add()


@case
def an_exception_under_way_keeps_its_place() -> None:
    class Oops(Exception):
        pass

    def fail(group: dist.ProcessGroup) -> None:
        try:
            raise Oops
        finally:
            dist.destroy_process_group(group)

    group = dist.new_group()
    Tells(group, "told")
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        error_of(Oops, lambda: fail(group))
    assert printed.getvalue() == "herringbone: told\n" and not is_known(group), printed.getvalue()
    check_all_ranks_add()


@case
def all_groups_end_before_one_of_them_tells() -> None:
    """torch can begin anew then; groups of other backends end, too."""
    store = dist.PrefixStore("ended", dist.distributed_c10d._get_default_store())
    groups, place = [dist.new_group() for _ in range(3)], {"rank": rank(), "world_size": size()}
    groups.append(dist.new_group(backend="gloo"))
    for group in groups[:2]:
        Tells(group, "told")
    error = error_of(herringbone.MismatchError, dist.destroy_process_group, "told")
    assert isinstance(error, dist.DistBackendError) and isinstance(error.__context__, herringbone.MismatchError)
    assert not dist.is_initialized() and not any(map(is_known, groups))
    error_of(herringbone.ClosedError, lambda: groups[2].allreduce(torch.ones(3)))
    dist.init_process_group("herringbone", store=store, timeout=timedelta(seconds=30), **place)
    check_all_ranks_add()


@case
def the_group_of_all_ranks_works_as_before() -> None:
    check_all_ranks_add()


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=30))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
