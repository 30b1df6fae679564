"""Collectives whose ranks add up on their hosts first: Gloo in NCCL's place, on a simulated accelerator, and the engine between hosts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from cases import error_of
from simulated import LanedStandIn

import herringbone

CASES, case = cases.registry()

LENGTHS = (0, 1, 2, 3, 5, 7, 16, 97, 1000, 12_345, 1_500_007)
"""Numbers of elements: none, fewer than ranks, primes, and more than a slice."""

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def mine(length: int, rank: int | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values of a rank: small numbers, whose sums and products are exact in all types."""
    rank = dist.get_rank() if rank is None else rank
    return ((torch.arange(length) + rank) % 3 + 1).to(dtype)


def every(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values of all ranks, a row for each."""
    return torch.stack([mine(length, rank, dtype) for rank in range(dist.get_world_size())])


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    STAND_IN.synchronize()
    assert torch.equal(actual, expected), f"{actual} is not {expected}"


FOLDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "SUM": lambda rows: rows.sum(0),
    "PRODUCT": lambda rows: rows.prod(0),
    "MIN": lambda rows: rows.amin(0),
    "MAX": lambda rows: rows.amax(0),
}


@case
def hosts_add_up_first() -> None:
    dist.all_reduce(mine(10))
    [said] = dist.group.WORLD.member.on_hosts()
    each = int(os.environ["LOCAL_WORLD_SIZE"])
    hosts = dist.get_world_size() // each
    assert said == f"the {each} ranks of each of {hosts} hosts add up first, by gloo", said
    assert said in dist.group.WORLD.explain(1000)


@case
def all_reduce_of_every_length() -> None:
    for length in LENGTHS:
        tensor = torch.zeros(length)
        if length:
            STAND_IN.write(tensor, mine(length))
        dist.all_reduce(tensor)
        same(tensor, every(length).sum(0))


@case
def all_reduce_of_every_type_and_op() -> None:
    for dtype in FLOATS + INTEGERS:
        for name, fold in FOLDS.items():
            tensor = mine(1001, dtype=dtype)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, name))
            same(tensor, fold(every(1001, torch.float64)).to(dtype))


@case
def averages() -> None:
    size = dist.get_world_size()
    for dtype in FLOATS:
        tensor = mine(103, dtype=dtype) * size
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        STAND_IN.synchronize()
        torch.testing.assert_close(tensor, every(103, torch.float64).sum(0).to(dtype))
    whole = torch.full((5,), dist.get_rank())
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    same(whole, torch.full((5,), (size - 1) // 2))


@case
def pairs_and_truths() -> None:
    tensor = torch.complex(mine(7), -mine(7))
    dist.all_reduce(tensor)
    same(tensor, torch.complex(every(7).sum(0), -every(7).sum(0)))
    truths = mine(9) == 1
    dist.all_reduce(truths)
    same(truths, (every(9) == 1).any(0))


@case
def broadcast_and_reduce_with_every_root() -> None:
    for root in range(dist.get_world_size()):
        for length in (0, 1, 7, 5000):
            tensor = mine(length)
            dist.broadcast(tensor, root)
            same(tensor, mine(length, root))
            tensor = mine(length)
            dist.reduce(tensor, root)
            same(tensor, every(length).sum(0) if dist.get_rank() == root else mine(length))


@case
def types_that_are_moved() -> None:
    for dtype in (torch.int16, torch.bool, torch.complex64, torch.float8_e5m2, torch.bfloat16):
        tensor = mine(77, dtype=dtype) if dtype != torch.float8_e5m2 else mine(77).to(dtype)
        dist.broadcast(tensor, 1)
        same(tensor.view(torch.uint8), mine(77, 1).to(dtype).view(torch.uint8))


@case
def parts_are_gathered_and_scattered() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for length in (0, 1, 3, 50_001):
        inputs = every(length)
        whole = torch.zeros(size * length)
        dist.all_gather_into_tensor(whole, mine(length))
        same(whole, inputs.flatten())
        outputs = [torch.zeros(length) for _ in range(size)]
        dist.all_gather(outputs, mine(length))
        same(torch.stack(outputs), inputs)
        for op, expected in ((dist.ReduceOp.SUM, inputs[rank] * size), (dist.ReduceOp.AVG, inputs[rank])):
            part = torch.zeros(length)
            dist.reduce_scatter_tensor(part, inputs.flatten(), op)
            STAND_IN.synchronize()
            torch.testing.assert_close(part, expected)
        dist.gather(mine(length), outputs if rank == 0 else None, 0)
        dist.scatter(part, list(inputs) if rank == 1 else None, 1)
        same(part, inputs[rank])


@case
def the_program_goes_on_while_it_runs() -> None:
    tensor = mine(1000)
    STAND_IN.rest()
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    error_of(dist.DistBackendError, lambda: work.wait(timedelta(seconds=0.05)), "all_reduce timed out", "waited for again")
    assert torch.equal(tensor, mine(1000))
    STAND_IN.go_on()
    assert work.wait()
    same(tensor, every(1000).sum(0))
    assert work.wait(timedelta(seconds=60)) and work.is_success()


@case
def calls_on_one_tensor_follow_each_other() -> None:
    size = dist.get_world_size()
    tensor = mine(200_003)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    outputs = [torch.zeros(200_003) for _ in range(size)] if dist.get_rank() == 0 else None
    works.append(dist.gather(tensor, outputs, 0, async_op=True))
    works.append(dist.all_reduce(tensor, async_op=True))
    for work in works:
        work.wait()
    expected = every(200_003).sum(0) * size * size
    same(tensor, expected * size)
    for output in outputs or ():
        same(output, expected)


@case
def futures_and_calls_of_their_callbacks() -> None:
    tensor, other = mine(12_001), mine(501)

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        dist.all_reduce(other)
        return done.value()[0] * 2

    future = dist.all_reduce(tensor, async_op=True).get_future().then(again)
    beside = mine(303)
    dist.all_reduce(beside)
    assert torch.equal(future.wait(), 2 * every(12_001).sum(0))
    same(other, every(501).sum(0))
    same(beside, every(303).sum(0))


@case
def several_calls_as_one() -> None:
    tensors = [mine(100), mine(150_001)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    for tensor in tensors:
        same(tensor, every(tensor.numel()).sum(0))


@case
def tensors_that_are_not_in_order() -> None:
    base = mine(1200).view(30, 40)
    dist.all_reduce(base.t()[::2])
    expected = mine(1200).view(30, 40)
    expected.t()[::2] = every(1200).sum(0).view(30, 40).t()[::2]
    same(base, expected)


@case
def compressed_sums_pass_through_the_host_as_a_whole() -> None:
    tensor = mine(3000)
    with herringbone.torch.compression("bf16"):
        dist.all_reduce(tensor)
    same(tensor, every(3000).sum(0))


@case
def a_group_of_some_ranks_decides_for_itself() -> None:
    size, each = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    uneven, even = dist.new_group(list(range(size - 1))), dist.new_group([0, 1, size - 2, size - 1])
    first = dist.new_group(list(range(each)))
    if dist.get_rank() < size - 1:
        tensor = torch.ones(11)
        dist.all_reduce(tensor, group=uneven)
        same(tensor, torch.full((11,), size - 1.0))
        [said] = uneven.member.on_hosts()
        assert "hosts differ in the number of their ranks" in said, said
    if dist.get_rank() in (0, 1, size - 2, size - 1):
        tensor = torch.ones(13)
        dist.all_reduce(tensor, group=even)
        same(tensor, torch.full((13,), 4.0))
        assert even.member.on_hosts() == ["the 2 ranks of each of 2 hosts add up first, by gloo"]
    if dist.get_rank() < each:
        tensor, whole, part = torch.ones(17), torch.zeros(each * 3), torch.zeros(3)
        dist.all_reduce(tensor, group=first)
        same(tensor, torch.full((17,), float(each)))
        dist.all_gather_into_tensor(whole, mine(3), group=first)
        same(whole, torch.cat([mine(3, rank) for rank in range(each)]))
        dist.reduce_scatter_tensor(part, whole, group=first)
        same(part, mine(3) * each)
        assert first.member.on_hosts() == [f"the {each} ranks of each of 1 host add up first, by gloo"]
    for group in (uneven, even, first):
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


@case
def a_stream_that_is_captured_is_refused() -> None:
    STAND_IN.capture(True)
    error_of(herringbone.UnsupportedError, lambda: dist.all_reduce(mine(3)), "graph", "outside of the capture")
    STAND_IN.capture(False)
    tensor = mine(3)
    dist.all_reduce(tensor)
    same(tensor, every(3).sum(0))


@case
def no_access_has_missed_a_wait() -> None:
    STAND_IN.synchronize()
    assert STAND_IN.hazards() == [], STAND_IN.hazards()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    STAND_IN = LanedStandIn(dist.get_rank() + 7)
    cases.run(CASES, dist.get_rank())
    STAND_IN.end()
    dist.destroy_process_group()
