"""A thousand groups of eight ranks: made, used and destroyed one after the other, then held all at once; groups that some ranks
fail to make; and lives of the job.

The ranks are forked. Each fails if its descriptors or threads become more, or its memory grows beyond what was measured.

Usage: many_groups.py PATH, of the file at which the ranks meet.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import herringbone

SIZE = 8
GROUPS = 1000
WARM = 20
"""Groups before the first count, after which nothing is made for the first time."""
DESTROYED_KIB, HELD_KIB = 8 << 10, 40 << 10
"""Resident memory that a rank may take more. 0.4 and 10 MiB were measured: 10 KiB for a group that is held."""


def taken() -> tuple[int, int, int]:
    """Resident memory in KiB, open descriptors, threads."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    kib = pages * os.sysconf("SC_PAGE_SIZE") >> 10
    return kib, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def used_group(seed: int) -> dist.ProcessGroup:
    """A group that has added."""
    group = dist.new_group()
    use(group, seed)
    return group


def use(group: dist.ProcessGroup, seed: int) -> None:
    tensor = torch.full((64,), float(seed + dist.get_rank()))
    dist.all_reduce(tensor, group=group)
    assert (tensor == SIZE * seed + sum(range(SIZE))).all(), tensor


def check(before: tuple[int, int, int], most_kib: int, when: str) -> str:
    """Fail if more is taken than before; what it was, in words."""
    now = taken()
    dist.barrier()
    assert now[1:] == before[1:], f"{when}: descriptors and threads {now[1:]}, before {before[1:]}"
    assert now[0] - before[0] < most_kib, f"{when}: {now[0] - before[0]} KiB more"
    return f"{when} {now[0] - before[0]} KiB"


UNMADE = "to make the group, which is over: make it again on all of its ranks"


@contextmanager
def expect_error(missing: int) -> Iterator[None]:
    """Fail unless the block raises that this rank has not made the group."""
    try:
        yield
    except herringbone.OperationTimeoutError as error:
        assert f"while waiting for rank {missing} {UNMADE}" in str(error), error
    else:
        raise AssertionError(f"rank {missing} has made no group, and nobody was told")


def fail_and_meet(sets: dict[int, list[int]], times: int, **options: object) -> None:
    """In each set of ranks a call to make a group fails on one of them, the key, so often, and the others wait in theirs; then all
    make it, and it adds.
    """
    mine = {failing: members for failing, members in sets.items() if dist.get_rank() in members}
    for failing, members in mine.items():
        fail(members, failing, times, **options)
    dist.barrier()
    for members in mine.values():
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=dist.new_group(members, **options))
        assert (tensor == len(members)).all(), (members, tensor)


def fail(members: list[int], failing: int, times: int, **options: object) -> None:
    for _ in range(times):
        if dist.get_rank() == failing:
            try:
                dist.new_group(members, **options, pg_options="not any")
            except TypeError:
                continue
            raise AssertionError("no options are a string")
        with expect_error(failing):
            group = dist.new_group(members, timeout=timedelta(seconds=1), **options)
            dist.all_reduce(torch.ones(3), group=group)


def fail_to_make() -> None:
    """Groups that one of their ranks fails to make: the others' counts of groups are ahead of its own."""
    # torch's own barrier meets only while all ranks have called new_group as often.
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    fail_and_meet({7: list(range(SIZE))}, 1)
    del os.environ["TORCH_DIST_INIT_BARRIER"]
    fail_and_meet({1: [0, 1], 2: [2, 4, 5]}, 2, use_local_synchronization=True)


def live(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("herringbone", init_method=f"file://{path}", rank=rank, world_size=SIZE)
    for seed in range(WARM):
        dist.destroy_process_group(used_group(seed))
    before = taken()
    for seed in range(GROUPS):
        dist.destroy_process_group(used_group(seed))
    seen = [check(before, DESTROYED_KIB, "destroyed")]
    held = [used_group(seed) for seed in range(GROUPS)]
    for seed, group in enumerate(held):
        use(group, seed + 1)
    seen.append(check(before, HELD_KIB, "held"))
    for group in held:
        dist.destroy_process_group(group)
    seen.append(check(before, HELD_KIB, "released"))
    fail_to_make()
    dist.destroy_process_group()
    live_again(rank, dist.FileStore(f"{path}.again", SIZE))
    os.write(1, f"rank {rank} passed: {', '.join(seen)}\n".encode())


def live_again(rank: int, store: dist.Store) -> None:
    """More groups over one store, of all ranks and of fewer; who is in none of these comes to the next one early."""
    for size in (SIZE, SIZE - 3, SIZE - 3, SIZE, 1, SIZE):
        if rank < size:
            dist.init_process_group("herringbone", store=store, rank=rank, world_size=size)
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert (tensor == size).all(), (size, tensor)
            dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.start_processes(live, (sys.argv[1],), SIZE, start_method="fork")
