"""Groups that end, and what is left of them: some groups with an operation fill the staging memory if they leave any taken."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import threading
from collections.abc import Callable
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


def group_in_use(options: herringbone.Options | None = None) -> dist.ProcessGroup:
    """A group that has had its first call, which on an accelerator waits for all ranks."""
    group = dist.new_group(pg_options=options)
    dist.all_reduce(torch.ones(3), group=group)
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
        try:
            work = dist.all_reduce(torch.ones(COUNT), group=group, async_op=True)
        except herringbone.PeerLostError as error:
            # The other rank has aborted it before.
            assert "it aborted the group" in str(error)
            work = None
        group.abort()
        if work is not None:
            assert work.is_completed()
            ended = (herringbone.ClosedError, herringbone.PeerLostError)
            assert work.is_success() or isinstance(work.exception(), ended), work.exception()
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


def check_all_ranks_add() -> None:
    tensor = torch.ones(COUNT)
    dist.all_reduce(tensor)
    same(tensor, torch.full((COUNT,), float(size())))


def send_as_the_root(group: dist.ProcessGroup | None = None) -> bool:
    """Each rank says that it is the root. Whether this call tells of it: not on rank 0, which is first, and waits for nobody."""
    store, number = dist.distributed_c10d._get_default_store(), next(NUMBERS)
    if rank() > 0:
        store.wait([f"sent {number}"])
    is_reported = tells(lambda: dist.broadcast(torch.ones(3), rank(), group=group))
    if rank() == 0:
        assert not is_reported
        store.set(f"sent {number}", "")
    return is_reported


NUMBERS = itertools.count()


def expect_another_split(group: dist.ProcessGroup) -> bool:
    """Rank 0 expects more than rank 1 sends it, and rank 1 may be done. Whether this call tells of it."""
    more = int(rank() == 0)
    received, sent = torch.zeros(2 * size() + more), torch.zeros(2 * size())
    return tells(lambda: dist.all_to_all_single(received, sent, [2, 2 + more], [2, 2], group=group))


def tells(call: Callable[[], object]) -> bool:
    """Whether a call tells of a mismatch."""
    try:
        call()
    except herringbone.MismatchError as error:
        assert "disagree" in str(error) and isinstance(error, dist.DistBackendError), repr(error)
        return True
    return False


def check_reported_once(is_reported: bool, end: Callable[[], object]) -> None:
    """The end of a group tells of what its last call has not told."""
    assert tells(end) != is_reported


def is_known(group: dist.ProcessGroup) -> bool:
    return group in dist.distributed_c10d._world.pg_map


@case
def the_end_of_a_group_tells_of_the_mismatch_in_its_last_call() -> None:
    for call in (send_as_the_root, expect_another_split):
        for backend in (None, "cpu:herringbone,cuda:gloo"):
            group = dist.new_group(backend=backend)
            dist.all_reduce(torch.ones(3), group=group)
            check_reported_once(call(group), lambda: dist.destroy_process_group(group))
            assert not is_known(group)
            error_of(ValueError, lambda: dist.destroy_process_group(group), "Invalid process group")
    check_all_ranks_add()


@case
def the_end_of_a_group_names_a_rank_that_leaves_without_its_last_call() -> None:
    """Rank 1 leaves before the call, and once it was made."""
    store = dist.distributed_c10d._get_default_store()
    for backend in (None, "cpu:herringbone,cuda:gloo"):
        for has_left in (True, False):
            group, number = dist.new_group(backend=backend), next(NUMBERS)
            dist.all_reduce(torch.ones(3), group=group)
            if rank() == 0:
                if has_left:
                    store.wait([f"left {number}"])
                dist.broadcast(torch.ones(3), 0, group=group)
                store.set(f"called {number}", "")
                error = error_of(herringbone.PeerLostError, lambda: dist.destroy_process_group(group), "left without broadcast")
                assert error.ranks == (1,) and isinstance(error, dist.DistBackendError), repr(error)
            elif has_left:
                dist.destroy_process_group(group)
                store.set(f"left {number}", "")
            else:
                store.wait([f"called {number}"])
                # It is told if it hears of rank 0's end before its own.
                with contextlib.suppress(herringbone.PeerLostError):
                    dist.destroy_process_group(group)
            assert not is_known(group)
    check_all_ranks_add()


@case
def each_rank_ends_groups_in_its_own_order() -> None:
    """Where calls match there is no error, and where they do not there is one."""
    groups = [group_in_use() for _ in range(4)]
    reported = {group: send_as_the_root(group) for group in groups[:2]}
    for group in groups[2:]:
        dist.broadcast(torch.ones(3), 0, group=group)
    for group in sorted(groups, key=groups.index, reverse=rank() == 1):
        check_reported_once(reported.get(group, True), lambda: dist.destroy_process_group(group))
    check_all_ranks_add()


@case
def an_exception_under_way_keeps_its_place() -> None:
    class Oops(Exception):
        pass

    def fail(end: Callable[[], None]) -> None:
        try:
            raise Oops
        finally:
            end()

    for ends_by in (dist.destroy_process_group, lambda group: group.shutdown()):
        group = group_in_use()
        is_reported = send_as_the_root(group)
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            error_of(Oops, lambda: fail(lambda: ends_by(group)))
        assert ("disagree" in printed.getvalue()) != is_reported, printed.getvalue()
        if is_known(group):
            dist.destroy_process_group(group)
    check_all_ranks_add()


@case
def nobody_is_asked_after_an_abort() -> None:
    group = group_in_use()
    send_as_the_root(group)
    dist.barrier()
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        dist.distributed_c10d._abort_process_group(group)
        assert not is_known(group)
        group.shutdown()
    assert not printed.getvalue(), printed.getvalue()
    check_all_ranks_add()


@case
def the_end_of_a_group_does_not_wait_for_a_rank_that_is_late() -> None:
    group, store = dist.new_group(), dist.distributed_c10d._get_default_store()
    if rank() == 0:
        dist.broadcast(torch.ones(3), 0, group=group)
        dist.destroy_process_group(group)
        store.set("rank 0 has left", "")
    else:
        store.wait(["rank 0 has left"])
        tensor = torch.zeros(3)
        dist.broadcast(tensor, 0, group=group)
        same(tensor, torch.ones(3))
        dist.destroy_process_group(group)
    check_all_ranks_add()


@case
def all_groups_end_before_one_of_them_tells() -> None:
    """torch can begin anew then; groups of other backends end, too."""
    store = dist.PrefixStore("ended", dist.distributed_c10d._get_default_store())
    place = {"rank": rank(), "world_size": size()}
    groups = [group_in_use(), group_in_use(herringbone.Options()), dist.new_group(backend="gloo")]
    send_as_the_root(groups[0])
    # This one shares no connections with the others, so its end is its own.
    send_as_the_root(groups[1])
    if rank() == 0:
        error = error_of(herringbone.MismatchError, dist.destroy_process_group, "disagree")
        assert isinstance(error.__context__, herringbone.MismatchError), error.__context__
    else:
        tells(dist.destroy_process_group)
    assert not dist.is_initialized() and not any(map(is_known, groups))
    for group in groups[:2]:
        error_of(herringbone.ClosedError, lambda: group.allreduce(torch.ones(3)))
    dist.init_process_group("herringbone", store=store, timeout=timedelta(seconds=30), **place)
    check_all_ranks_add()


@case
def the_group_of_all_ranks_works_as_before() -> None:
    check_all_ranks_add()


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=30))
    cases.run(CASES, dist.get_rank())
    # The program ends, and has not destroyed its groups.
    send_as_the_root()
