"""Calls on tensors of an accelerator that is simulated, beside the same calls on tensors of the CPU: the same bits, errors and ends."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import cases
import torch
import torch.distributed as dist
from cases import error_of
from simulated import StandIn
from values import Op, rank, size

import herringbone
import herringbone.torch as ours
from herringbone.torch.devices import let_stand_in

CASES, case = cases.registry()

SLICE_BYTES = 4 << 20
"""In which ``all_reduce``, ``reduce`` and ``broadcast`` are cut; ``shape.rs`` has it."""

Call = Callable[[torch.Tensor], Any]


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    """Let tensors be the CPU's in the body."""
    STAND_IN.synchronize()
    let_stand_in(None)
    try:
        yield
    finally:
        let_stand_in(STAND_IN)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def check_same_bits(call: Call, given: torch.Tensor) -> torch.Tensor:
    """Call it on a copy of ``given`` on the host and on one on the device; both have the same bits in the end."""
    expected, staged = given.clone(), given.clone()
    with on_the_host():
        call(expected)
    call(staged)
    STAND_IN.synchronize()
    assert torch.equal(bits(staged), bits(expected)), f"{staged} is not {expected}"
    return staged


def noise(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values whose sums depend on the order in which they are added; other ones on each rank."""
    generator = torch.Generator().manual_seed(length + 1000 * rank())
    return (torch.randn(length, generator=generator) * 100).to(dtype)


@case
def every_type_and_op_gives_the_bits_of_the_host() -> None:
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    whole = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    for dtype, op in itertools.product(floats + whole, (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX)):
        check_same_bits(functools.partial(dist.all_reduce, op=op), noise(1003, dtype))
    for dtype, op in itertools.product(whole, (Op.BAND, Op.BOR, Op.BXOR)):
        check_same_bits(functools.partial(dist.all_reduce, op=op), noise(1003, dtype))
    for op in (Op.MAX, Op.MIN, Op.BXOR):
        check_same_bits(functools.partial(dist.all_reduce, op=op), noise(1003) > 0)
    check_same_bits(dist.all_reduce, torch.complex(noise(501), noise(501)))
    check_same_bits(functools.partial(dist.all_reduce, op=dist._make_nccl_premul_sum(0.5)), noise(1003))


@case
def lengths_about_slices_give_the_bits_of_the_host() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
        in_slice = SLICE_BYTES // dtype.itemsize
        for length in (in_slice - 1, in_slice, in_slice + 1, 2 * in_slice + 3):
            check_same_bits(dist.all_reduce, noise(length, dtype))
    length = 2 * SLICE_BYTES + 13
    for root in range(size()):
        check_same_bits(functools.partial(dist.broadcast, src=root), noise(length, torch.uint8))
        check_same_bits(functools.partial(dist.reduce, dst=root), noise(length // 4))


@case
def an_algorithm_with_an_order_of_its_own_gives_all_ranks_the_same_bits() -> None:
    """Cut into slices its sums can have other bits than those of the whole tensor."""
    group = dist.new_group(pg_options=herringbone.Options(algorithm="ring"))
    tensor = noise(SLICE_BYTES // 2 + 7)
    expected = tensor.clone()
    with on_the_host():
        dist.all_reduce(expected, group=group)
    dist.all_reduce(tensor, group=group)
    STAND_IN.synchronize()
    torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-3)
    with on_the_host():
        first = tensor.clone()
        dist.broadcast(first, 0)
    assert torch.equal(tensor, first)


@case
def views_leave_what_is_beside_them() -> None:
    big = SLICE_BYTES // 4 + 5
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda base: base[3 : 3 + big],
        lambda base: base[7::2],
        lambda base: base[1:1001].view(20, 50).t(),
        lambda base: base[5 : 5 + 600].view(10, 20, 3)[2:7, ::3],
        lambda base: base.view(-1)[9],
    ]
    for view, call in itertools.product(views, (dist.all_reduce, functools.partial(dist.broadcast, src=size() - 1))):
        check_same_bits(lambda base, view=view, call=call: call(view(base)), noise(2 * big + 40))


@case
def empty_tensors_in_every_collective() -> None:
    nothing, parts = torch.zeros(0), [torch.zeros(0) for _ in range(size())]
    for call in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.reduce(t, size() - 1)):
        call(nothing)
        call(torch.zeros(3, 0, 2))
    dist.all_gather(parts, nothing)
    dist.all_gather_into_tensor(nothing, nothing)
    dist.reduce_scatter_tensor(nothing, nothing)
    dist.reduce_scatter(nothing, parts)
    dist.gather(nothing, parts if rank() == 0 else None, 0)
    dist.scatter(nothing, parts if rank() == 0 else None, 0)
    dist.all_to_all(parts, [torch.zeros(0) for _ in range(size())])
    dist.all_to_all_single(nothing, torch.zeros(0))
    if rank() < 2:
        works = [dist.isend(nothing, 1 - rank()), dist.irecv(torch.zeros(0), 1 - rank())]
        for work in works:
            work.wait()
    STAND_IN.synchronize()
    check_same_bits(dist.all_reduce, noise(5))


@case
def codecs_give_the_bits_of_the_host_with_feedback_and_without() -> None:
    given = [noise(20_000 + step) for step in range(4)]
    for codec in ("bf16", "int8", "topk:0.05", "onebit"):
        results = []
        for name, where in (("host", on_the_host), ("device", contextlib.nullcontext)):
            with where():
                tensors = [each[:20_000].clone() for each in given]
                for tensor in tensors:
                    with ours.compression(codec, f"{codec}, {name}"):
                        dist.all_reduce(tensor)
                if name == "device":
                    STAND_IN.synchronize()
                tensors.append(given[0].clone())
                with ours.compression(codec):
                    dist.all_reduce(tensors[-1])
                STAND_IN.synchronize()
                results.append(torch.cat(tensors))
        assert torch.equal(bits(results[0]), bits(results[1])), codec
        assert not torch.equal(results[0][:20_000], results[0][20_000:40_000]), "there is something to compare"


@case
def sparse_tensors_are_merged() -> None:
    own = torch.tensor([[rank(), rank() + 1, 9], [0, rank(), 4]])
    values = torch.arange(6.0).view(3, 2) + rank()
    for op in (Op.SUM, Op.AVG):
        results = []
        for where in (on_the_host, contextlib.nullcontext):
            with where():
                tensor = torch.sparse_coo_tensor(own, values, (10, 5, 2), check_invariants=True).coalesce()
                dist.all_reduce(tensor, op)
                results.append(tensor.to_dense())
        assert torch.equal(*results)
    uneven = torch.sparse_coo_tensor(torch.arange(rank()).unsqueeze(0), torch.ones(rank()), (9,), check_invariants=True)
    dist.all_reduce(uneven)
    expected = [float(max(0, size() - 1 - place)) for place in range(9)]
    assert uneven.to_dense().tolist() == expected


@case
def calls_of_several_kinds_as_one() -> None:
    mine = noise(3000 * size())
    sums, gathered, part = mine.clone(), torch.zeros(size(), 3000 * size()), torch.zeros(3000)
    with dist._coalescing_manager(async_ops=True) as works:
        dist.all_reduce(sums)
    works.wait()
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        for row in range(2):
            dist.all_gather_into_tensor(gathered.view(2, -1)[row], mine.view(2, -1)[row])
    works.wait()
    with dist._coalescing_manager(async_ops=True) as works:
        dist.reduce_scatter_tensor(part, mine)
    works.wait()
    both = [mine[:5].clone(), mine[5:2000].clone()]
    dist.all_reduce_coalesced(both)
    STAND_IN.synchronize()
    with on_the_host():
        expected = mine.clone()
        dist.all_reduce(expected)
        halves = [torch.zeros(size() * mine.numel() // 2) for _ in range(2)]
        for half, row in zip(halves, mine.view(2, -1)):
            dist.all_gather_into_tensor(half, row)
    assert torch.equal(sums, expected) and torch.equal(part, expected.view(size(), -1)[rank()])
    assert torch.equal(torch.cat(both), expected[:2000])
    assert torch.equal(gathered.view(-1), torch.cat(halves))


@case
def two_groups_and_groups_of_some_ranks_take_turns() -> None:
    pair, whole = dist.new_group([0, size() - 1]), dist.new_group()
    tensor, other = torch.full((1_500_000,), 1.0 + rank()), torch.full((2_000_001,), 2.0 + rank())
    works = []
    for _ in range(3):
        works.append(dist.all_reduce(tensor, group=whole, async_op=True))
        if rank() in (0, size() - 1):
            works.append(dist.all_reduce(other, group=pair, async_op=True))
    for work in works:
        work.wait()
    STAND_IN.synchronize()
    total = sum(range(1, size() + 1))
    assert (tensor == total * size() ** 2).all()
    assert rank() not in (0, size() - 1) or (other == (size() + 3) * 4).all()
    dist.destroy_process_group(whole)
    if rank() in (0, size() - 1):
        dist.destroy_process_group(pair)


@case
def futures_follow_each_other() -> None:
    tensor = noise(1_100_000)
    with on_the_host():
        expected = tensor.clone()
        dist.all_reduce(expected)
    first = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = first.then(lambda future: future.value()[0] * 2)
    again = doubled.then(lambda future: dist.all_reduce(future.value(), async_op=True).get_future().wait()[0])
    assert torch.equal(again.wait(), 2 * size() * expected)
    both = torch.futures.collect_all([first, dist.broadcast(tensor.clone(), 0, async_op=True).get_future()])
    assert torch.equal(both.wait()[1].value()[0], expected)


@case
def barriers_with_devices_and_monitored_ones() -> None:
    tensor = noise(1000)
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier(device_ids=[0])
    dist.monitored_barrier()
    work.wait()
    STAND_IN.synchronize()


@case
def a_late_rank_is_named_and_no_stream_waits_for_it() -> None:
    group, other = (dist.new_group(timeout=timedelta(seconds=3)) for _ in range(2))
    for each in (group, other):
        # A group's first call on a device waits for all ranks, because they decide whether hosts sum first.
        dist.all_reduce(noise(10), group=each)
    timed_out = herringbone.OperationTimeoutError
    if rank() > 0:
        work = dist.all_reduce(noise(10), group=group, async_op=True)
        with contextlib.suppress(timed_out):
            work.wait()
        STAND_IN.synchronize()
        while work.exception() is None:
            time.sleep(0.001)
        assert isinstance(work.exception(), timed_out) and "rank 0" in str(work.exception()), work.exception()
        silent = dist.all_reduce(noise(10), group=other, async_op=True)
        error_of(timed_out, lambda: silent.wait(timedelta(seconds=60)), "rank 0")
    with on_the_host():
        dist.barrier()
    STAND_IN.synchronize()


@case
def a_rank_that_calls_another_length_is_named() -> None:
    for mine, others in ((5, 4), (2_500_000, 2_400_000), (2_500_000, 1_500_000), (4, 2_500_000)):
        tensor = torch.ones(mine if rank() == 0 else others)
        work = dist.all_reduce(tensor, async_op=True)
        named = ("all_reduce", "rank 0", f"of {mine} f32", f"of {others} f32")
        error_of(herringbone.MismatchError, lambda: work.wait(timedelta(seconds=60)), *named)
        with on_the_host():
            dist.barrier()
        # The next calls meet, though one rank has given more slices than another.
        check_same_bits(dist.all_reduce, noise(5))
        check_same_bits(dist.all_reduce, noise(1_500_000))


@case
def a_forked_child_does_not_wait() -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank() > 0:
        store.wait(["the child of the staged calls has ended"])
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    if rank() == 0:
        child = os.fork()
        if child == 0:
            try:
                error_of(herringbone.ForkedError, work.wait)
                error_of(herringbone.ForkedError, lambda: work.wait(timedelta(seconds=60)))
                os._exit(8 if work.is_completed() else 7)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        store.set("the child of the staged calls has ended", "")
        assert os.waitstatus_to_exitcode(status) == 7
    work.wait()
    STAND_IN.synchronize()
    assert tensor.tolist() == [size()] * 3


@case
def a_group_is_destroyed_while_works_are_open() -> None:
    group, tensors = dist.new_group(), [torch.ones(1_200_000) for _ in range(3)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    dist.destroy_process_group(group)
    STAND_IN.synchronize()
    for work, tensor in zip(works, tensors):
        assert work.is_success(), work.exception()
        assert (tensor == size()).all()
    error_of(herringbone.ClosedError, lambda: group.allreduce([tensors[0]]), "all_reduce", "left the group")


@case
def every_call_is_refused_while_the_stream_is_captured() -> None:
    tensor, parts = torch.ones(size()), [torch.ones(1) for _ in range(size())]
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(tensor),
        lambda: dist.broadcast(tensor, 0),
        lambda: dist.reduce(tensor, 0),
        lambda: dist.all_gather(parts, parts[0]),
        lambda: dist.reduce_scatter_tensor(parts[0], tensor),
        lambda: dist.all_to_all_single(tensor, tensor.clone()),
        lambda: dist.gather(parts[0], parts if rank() == 0 else None, 0),
        lambda: dist.scatter(parts[0], parts if rank() == 0 else None, 0),
        lambda: dist.send(tensor, (rank() + 1) % size()),
        lambda: dist.recv(tensor, (rank() + 1) % size()),
        lambda: dist.all_reduce_coalesced([tensor, tensor]),
    ]
    STAND_IN.capture(True)
    for call in calls:
        error_of(herringbone.UnsupportedError, call, "a graph is captured on this stream", "outside of the capture")
    STAND_IN.capture(False)
    check_same_bits(dist.all_reduce, noise(5))


@case
def tensors_that_are_refused_on_the_host_are_refused() -> None:
    ones, missing = torch.ones(4), herringbone.UnsupportedError
    error_of(ValueError, lambda: dist.all_reduce(torch.ones(1).expand(4)), "contiguous")
    error_of(missing, lambda: dist.all_reduce(ones.to(torch.float8_e5m2)), "float8_e5m2", "torch.float32")
    error_of(missing, lambda: dist.all_reduce(ones, Op.BAND), "bit_and", "integers")
    error_of(missing, lambda: dist.all_reduce(torch.ones(2, device="meta")), "a meta tensor has no values")
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    error_of(missing, lambda: dist.all_reduce(freed), "without memory")
    error_of(ValueError, lambda: dist.broadcast(ones, size()), "not a rank of this group")


@case
def no_access_has_missed_a_wait() -> None:
    STAND_IN.synchronize()
    assert STAND_IN.hazards() == []


@case
def threads_with_groups_and_streams_of_their_own() -> None:
    """On one stream they would wait for each other in another order on each rank, as over NCCL.

    The last case: new streams are not told that nobody uses memory which earlier groups have given back.
    """
    groups, wrong = [dist.new_group() for _ in range(4)], []

    def calls(number: int) -> None:
        try:
            with STAND_IN.own_stream():
                tensor = torch.ones(300_000 + number)
                for _ in range(6):
                    dist.all_reduce(tensor, op=Op.AVG, group=groups[number])
                dist.all_reduce(tensor, group=groups[number], async_op=True).get_future().wait()
                assert (tensor == size()).all(), tensor
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(len(groups))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    for group in groups:
        dist.destroy_process_group(group)


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    STAND_IN = StandIn(dist.get_rank() + 23)
    cases.run(CASES, dist.get_rank())
    STAND_IN.end()
    dist.destroy_process_group()
