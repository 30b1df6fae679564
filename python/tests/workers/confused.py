"""All pairs of calls that ranks may confuse, on 2, 3 and 4 of 4 ranks: all get a typed error, and the group goes on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import combinations

import torch
import torch.distributed as dist
from cases import registry, run

import herringbone

CASES, case = registry()
Op = dist.ReduceOp

Call = Callable[[dist.ProcessGroup], dist.Work]

SMALL, LARGE = 3, 40_000
IN_FLIGHT = 17
"""Of how many pairs one is confused among calls in flight, too."""


def ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def all_reduce(count: int, dtype: torch.dtype = torch.float32, op: Op.RedOpType = Op.SUM) -> Call:
    return lambda group: dist.all_reduce(ones(count, dtype), op, group, async_op=True)


def reduce(root: int, count: int = SMALL) -> Call:
    return lambda group: dist.reduce(ones(count), group_dst=root, group=group, async_op=True)


def broadcast(root: int, count: int = SMALL, dtype: torch.dtype = torch.float32) -> Call:
    return lambda group: dist.broadcast(ones(count, dtype), group_src=root, group=group, async_op=True)


def all_gather(count: int = SMALL, dtype: torch.dtype = torch.float32) -> Call:
    def call(group: dist.ProcessGroup) -> dist.Work:
        outputs = [ones(count, dtype) for _ in range(group.size())]
        return dist.all_gather(outputs, ones(count, dtype), group, async_op=True)

    return call


def reduce_scatter(op: Op.RedOpType = Op.SUM) -> Call:
    return lambda group: dist.reduce_scatter_tensor(ones(SMALL), ones(SMALL * group.size()), op, group, async_op=True)


def gather(root: int) -> Call:
    def call(group: dist.ProcessGroup) -> dist.Work:
        outputs = [ones(SMALL) for _ in range(group.size())] if group.rank() == root else None
        return dist.gather(ones(SMALL), outputs, group_dst=root, group=group, async_op=True)

    return call


def scatter(root: int) -> Call:
    def call(group: dist.ProcessGroup) -> dist.Work:
        inputs = [ones(SMALL) for _ in range(group.size())] if group.rank() == root else None
        return dist.scatter(ones(SMALL), inputs, group_src=root, group=group, async_op=True)

    return call


def all_to_all(count: int = SMALL) -> Call:
    def call(group: dist.ProcessGroup) -> dist.Work:
        values = ones(count * group.size())
        return dist.all_to_all_single(torch.empty_like(values), values, group=group, async_op=True)

    return call


def barrier(group: dist.ProcessGroup) -> dist.Work:
    return dist.barrier(group, async_op=True)


CALLS: dict[str, Call] = {
    "all_reduce": all_reduce(SMALL),
    "all_reduce, one more": all_reduce(SMALL + 1),
    "all_reduce, large": all_reduce(LARGE),
    "all_reduce, large, one more": all_reduce(LARGE + 1),
    "all_reduce of int32": all_reduce(SMALL, torch.int32),
    "all_reduce of float16": all_reduce(SMALL, torch.float16),
    "all_reduce of bfloat16": all_reduce(SMALL, torch.bfloat16),
    "all_reduce, large, of int32": all_reduce(LARGE, torch.int32),
    "all_reduce by max": all_reduce(SMALL, op=Op.MAX),
    "all_reduce by average": all_reduce(SMALL, op=Op.AVG),
    "all_reduce, large, by max": all_reduce(LARGE, op=Op.MAX),
    "reduce to 0": reduce(0),
    "reduce to 1": reduce(1),
    "broadcast from 0": broadcast(0),
    "broadcast from 1": broadcast(1),
    "broadcast of int32": broadcast(0, dtype=torch.int32),
    "broadcast, large": broadcast(0, LARGE),
    "all_gather": all_gather(),
    "all_gather of int32": all_gather(dtype=torch.int32),
    "reduce_scatter": reduce_scatter(),
    "reduce_scatter by max": reduce_scatter(Op.MAX),
    "gather to 0": gather(0),
    "gather to 1": gather(1),
    "scatter from 0": scatter(0),
    "scatter from 1": scatter(1),
    "all_to_all": all_to_all(),
    "all_to_all, large": all_to_all(LARGE),
    "barrier": barrier,
}


def meet(group: dist.ProcessGroup, key: str) -> None:
    """Wait for the group's ranks without the group."""
    store = dist.distributed_c10d._get_default_store()
    if store.add(f"{key}/came", 1) == group.size():
        store.set(f"{key}/all", "1")
    store.wait([f"{key}/all"])


def results(calls: list[Call], group: dist.ProcessGroup) -> Iterator[BaseException]:
    """The errors of calls, all in flight before the first is waited for."""
    begun: list[dist.Work] = []
    for call in calls:
        try:
            begun.append(call(group))
        except herringbone.MismatchError as error:
            yield error
    for work in begun:
        try:
            work.wait()
        except RuntimeError as error:
            yield error


def settle(group: dist.ProcessGroup, reported: list[BaseException], what: str) -> None:
    """Barriers until one succeeds: some hear of the disagreement only there. There has to be an error, and no other kind."""
    for _ in range(8):
        ended = list(results([barrier], group))
        reported += ended
        assert all(isinstance(error, herringbone.MismatchError) for error in reported), f"{what}: {reported}"
        if reported and not ended:
            return
    raise AssertionError(f"{what}: rank {group.rank()} does not come to terms with the others: {reported}")


def confuse(group: dist.ProcessGroup) -> None:
    assert group is not dist.GroupMember.NON_GROUP_MEMBER
    for number, ((name, call), (other_name, other)) in enumerate(combinations(CALLS.items(), 2)):
        odd = number % group.size()
        what = f"{name!r} and on rank {odd} of {group.size()} {other_name!r}"
        own = other if group.rank() == odd else call
        right = all_reduce(LARGE)
        for way, calls in enumerate([[own], [right, own, right]][: 2 if number % IN_FLIGHT == 0 else 1]):
            meet(group, f"{group.size()}/{number}/{way}")
            settle(group, list(results(calls, group)), what)
            values = torch.arange(100.0) + group.rank()
            dist.all_reduce(values, group=group)
            size = group.size()
            assert torch.equal(values, size * torch.arange(100.0) + size * (size - 1) / 2), what


def confuse_ranks(count: int) -> None:
    group = dist.new_group(list(range(count)))
    if dist.get_rank() < count:
        confuse(group)
    dist.barrier()


@case
def two_ranks_confuse_each_call_with_each_other_one() -> None:
    confuse_ranks(2)


@case
def three_ranks_confuse_each_call_with_each_other_one() -> None:
    confuse_ranks(3)


@case
def four_ranks_confuse_each_call_with_each_other_one() -> None:
    confuse_ranks(4)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("herringbone")
    run(CASES, int(os.environ["RANK"]))
    dist.destroy_process_group()
