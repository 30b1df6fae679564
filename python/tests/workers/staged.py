"""Every collective on tensors of an accelerator, which is simulated: its streams move in an order that a seed draws.

Usage: staged.py [blocking|cuda]: on streams that wait for no values in the host's memory, or over CUDA's interface, with more cases.
"""

from __future__ import annotations

import functools
import sys
from datetime import timedelta

import cases
import staged_lacking
import torch
import torch.distributed as dist
from cases import error_of
from simulated import CudaStandIn, StandIn

CASES, case = cases.registry()

LENGTHS = (0, 1, 1000, 2_500_000)
"""Numbers of elements; the last ones are in several slices."""


def there() -> StandIn | CudaStandIn:
    """The accelerator of this process."""
    return STAND_IN


def mine(length: int, rank: int | None = None) -> torch.Tensor:
    """The values of a rank: sums of a few are exact."""
    rank = dist.get_rank() if rank is None else rank
    return (torch.arange(length) % 1000 + 1000 * rank).to(torch.float32)


def every(length: int) -> list[torch.Tensor]:
    return [mine(length, rank) for rank in range(dist.get_world_size())]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    there().synchronize()
    assert torch.equal(actual, expected), f"{actual} is not {expected}"


@case
def all_reduce_sees_what_the_stream_has_written() -> None:
    for length in LENGTHS:
        tensor = torch.zeros(length)
        if length:
            there().write(tensor, mine(length))
        dist.all_reduce(tensor)
        same(tensor, sum(every(length), torch.zeros(length)))


@case
def waiting_does_not_block_the_program() -> None:
    tensor = mine(1000)
    if not there().native.waits_for_values():
        # Here the host waits until the last copy is queued, so streams have to move.
        work = dist.all_reduce(tensor, async_op=True)
        assert work.wait()
        same(tensor, sum(every(1000), torch.zeros(1000)))
        return
    there().rest()
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and not work.is_completed()
    assert torch.equal(tensor, mine(1000))
    error_of(dist.DistBackendError, lambda: work.wait(timedelta(seconds=0.05)), "all_reduce timed out", "waited for again")
    there().go_on()
    same(tensor, sum(every(1000), torch.zeros(1000)))
    assert work.wait(timedelta(seconds=60)) and work.is_success()


@case
def calls_on_one_tensor_follow_each_other() -> None:
    tensor = mine(2_000_000)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    works[-1].wait()
    size = dist.get_world_size()
    same(tensor, sum(every(2_000_000), torch.zeros(2_000_000)) * size * size)
    assert all(work.is_success() for work in works)


@case
def broadcast_and_reduce_with_every_root() -> None:
    for root in range(dist.get_world_size()):
        for length in LENGTHS:
            tensor = mine(length)
            dist.broadcast(tensor, root)
            same(tensor, mine(length, root))
            tensor = mine(length)
            dist.reduce(tensor, root)
            is_root = dist.get_rank() == root
            same(tensor, sum(every(length), torch.zeros(length)) if is_root else mine(length))


@case
def parts_are_gathered_and_scattered() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    for length in (0, 3, 50_000):
        inputs = every(length)
        outputs = [torch.zeros(length) for _ in range(size)]
        dist.all_gather(outputs, mine(length))
        whole = torch.zeros(size * length)
        dist.all_gather_into_tensor(whole, mine(length))
        same(whole, torch.cat(inputs))
        same(torch.cat(outputs), torch.cat(inputs))
        part = torch.zeros(length)
        dist.reduce_scatter_tensor(part, torch.cat(inputs))
        same(part, inputs[rank] * size)
        dist.reduce_scatter(part, [value + 1 for value in inputs])
        same(part, (inputs[rank] + 1) * size)
        dist.gather(mine(length), outputs if rank == 0 else None, 0)
        same(torch.cat(outputs), torch.cat(inputs))
        dist.scatter(part, inputs if rank == 1 else None, 1)
        same(part, inputs[rank])


@case
def parts_of_other_lengths() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    outputs = [torch.zeros(10 + other) for other in range(size)]
    dist.all_gather(outputs, mine(10 + rank))
    same(torch.cat(outputs), torch.cat([mine(10 + other, other) for other in range(size)]))
    given = [torch.full((1 + rank + other,), float(rank)) for other in range(size)]
    got = [torch.zeros(1 + rank + other) for other in range(size)]
    dist.all_to_all(got, given)
    same(torch.cat(got), torch.cat([torch.full((1 + rank + other,), float(other)) for other in range(size)]))
    whole = torch.zeros(size)
    dist.all_to_all_single(whole, torch.full((size,), float(rank)))
    same(whole, torch.arange(size, dtype=torch.float32))


@case
def tensors_that_are_not_in_order() -> None:
    base = mine(1200).view(30, 40)
    dist.all_reduce(base.t()[::2])
    expected = mine(1200).view(30, 40)
    expected.t()[::2] = sum(every(1200), torch.zeros(1200)).view(30, 40).t()[::2]
    same(base, expected)


@case
def several_calls_as_one() -> None:
    tensors = [mine(100), mine(1_500_000)]
    with dist._coalescing_manager(async_ops=True) as works:
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    for tensor in tensors:
        same(tensor, sum(every(tensor.numel()), torch.zeros(tensor.numel())))


@case
def messages_pass_collectives_that_their_sender_has_called_before() -> None:
    big, small = mine(3_000_000), mine(10)
    if dist.get_rank() == 0:
        work = dist.all_reduce(big, async_op=True)
        for other in range(1, dist.get_world_size()):
            dist.send(mine(10), other, tag=other)
    else:
        assert dist.recv(small, tag=dist.get_rank()) == 0
        work = dist.all_reduce(big, async_op=True)
        same(small, mine(10, 0))
    work.wait()
    same(big, sum(every(3_000_000), torch.zeros(3_000_000)))


@case
def all_pairs_exchange_messages() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    got = [torch.zeros(5) for _ in range(size)]
    others = [other for other in range(size) if other != rank]
    calls = [dist.P2POp(dist.irecv, got[other], other) for other in others]
    calls += [dist.P2POp(dist.isend, mine(5), other) for other in others]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    for other in others:
        same(got[other], mine(5, other))


@case
def futures_complete_with_the_result_in_place() -> None:
    tensor = mine(1_200_000)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert torch.equal(future.wait(), 2 * sum(every(1_200_000), torch.zeros(1_200_000)))


@case
def a_stream_that_is_captured_is_refused() -> None:
    there().capture(True)
    error_of(herringbone_error("UnsupportedError"), lambda: dist.all_reduce(mine(3)), "graph", "outside of the capture")
    there().capture(False)
    all_reduce_sees_what_the_stream_has_written()


@case
def no_access_has_missed_a_wait() -> None:
    there().synchronize()
    assert there().hazards() == []


def herringbone_error(name: str) -> type[BaseException]:
    import herringbone

    kind: type[BaseException] = getattr(herringbone, name)
    return kind


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    simulated = functools.partial(StandIn, dist.get_rank() + 7, waits_for_values="blocking" not in sys.argv)
    STAND_IN = CudaStandIn() if "cuda" in sys.argv else simulated()
    cases.run(CASES | staged_lacking.CASES if "cuda" in sys.argv else CASES, dist.get_rank())
    STAND_IN.end()
    dist.destroy_process_group()
