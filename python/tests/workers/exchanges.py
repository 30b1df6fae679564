"""gather, scatter, all_to_all and messages between two ranks, and what torch builds on them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import cases
import torch
import torch.distributed as dist
from cases import MUCH, error_of, check_out_of_memory
from values import Op, all_gathered, fold, pieces, rank, same, size

import herringbone

CASES, case = cases.registry()

TYPES = (torch.float32, torch.int16, torch.bool, torch.complex64, torch.float8_e5m2)


def following() -> int:
    return (rank() + 1) % size()


def preceding() -> int:
    return (rank() - 1) % size()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@case
def gather_to_every_root() -> None:
    for root in range(size()):
        for dtype in TYPES:
            inputs = [value.to(dtype) for value in pieces((2, 3), torch.float32, root)]
            for outputs in (
                [torch.zeros(2, 3, dtype=dtype) for _ in range(size())],
                list(torch.zeros(size(), 2, 3, dtype=dtype).unbind()),
                [torch.zeros(3, 2, dtype=dtype).t() for _ in range(size())],
            ):
                work = dist.gather(inputs[rank()], outputs if rank() == root else None, root, async_op=True)
                work.wait()
                for output, value in zip(outputs, inputs):
                    expected = value if rank() == root else torch.zeros_like(value)
                    assert torch.equal(bytes_of(output), bytes_of(expected))
    options = dist.GatherOptions()
    options.rootRank = 1
    whole = torch.zeros(size(), 4)
    dist.group.WORLD.gather_into_tensor(whole, torch.full((4,), float(rank())), options).wait()
    assert whole[:, 0].tolist() == (list(range(size())) if rank() == 1 else [0] * size())


@case
def scatter_from_every_root() -> None:
    for root in range(size()):
        for dtype in TYPES:
            parts = [value.to(dtype) for value in pieces((2, 3), torch.float32, root)]
            for inputs in (parts, list(torch.stack(parts).unbind()), [part.t().contiguous().t() for part in parts]):
                for output in (torch.zeros(2, 3, dtype=dtype), torch.zeros(3, 2, dtype=dtype).t()):
                    dist.scatter(output, inputs if rank() == root else None, root)
                    assert torch.equal(bytes_of(output), bytes_of(parts[rank()]))


def lengths(seed: int) -> list[list[int]]:
    """How many rows each rank has for each other; some have none."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (size(), size()), generator=generator).tolist()


def message(sender: int, receiver: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, 10 * sender + receiver + 1).to(dtype)


@case
def all_to_all_of_lists() -> None:
    me = rank()
    for dtype in TYPES:
        table = lengths(int(dtype.itemsize))
        inputs = [message(me, i, (table[me][i], 2), dtype) for i in range(size())]
        outputs = [torch.zeros(table[i][me], 2, dtype=dtype) for i in range(size())]
        dist.all_to_all(outputs, inputs)
        for i, output in enumerate(outputs):
            assert torch.equal(bytes_of(output), bytes_of(message(i, me, (table[i][me], 2), dtype)))
    inputs = [message(me, i, (3, 2), torch.float32).t() for i in range(size())]
    outputs = [torch.zeros(3, 2).t() for _ in range(size())]
    dist.all_to_all(outputs, inputs, async_op=True).wait()
    for i, output in enumerate(outputs):
        same(output, message(i, me, (2, 3), torch.float32))


@case
def all_to_all_of_equal_and_uneven_parts() -> None:
    me = rank()
    whole = torch.cat([message(me, i, (2, 3), torch.float32) for i in range(size())])
    expected = torch.cat([message(i, me, (2, 3), torch.float32) for i in range(size())])
    output = torch.zeros_like(whole)
    dist.all_to_all_single(output, whole)
    same(output, expected)
    in_place = whole.clone()
    dist.all_to_all_single(in_place, in_place)
    same(in_place, expected)
    for seed in range(3):
        table = lengths(seed)
        column = [table[i][me] for i in range(size())]
        whole = torch.cat([message(me, i, (table[me][i], 3), torch.int64) for i in range(size())])
        output = torch.zeros(sum(column), 3, dtype=torch.int64)
        dist.all_to_all_single(output, whole, column, table[me], async_op=True).wait()
        same(output, torch.cat([message(i, me, (column[i], 3), torch.int64) for i in range(size())]))
    large = torch.full((size(), 1_300_000), float(me))
    output = torch.zeros_like(large)
    dist.all_to_all_single(output, large)
    assert all((output[i] == i).all() for i in range(size()))


def moved(call: Callable[[], object]) -> tuple[int, int]:
    """Bytes that this rank sends to other workers and receives from them in a call."""

    def counted() -> list[int]:
        stats = dist.group.WORLD.stats()
        ways = [stats["workers_shm"], stats["workers_tcp"]]
        return [sum(way[which] for way in ways) for which in ("sent", "received")]

    before = counted()
    call()
    sent, received = counted()
    return sent - before[0], received - before[1]


@case
def each_part_is_moved_once() -> None:
    k, others = 40_000, size() - 1
    mine = torch.full((k // 4,), float(rank()))
    whole = [torch.zeros_like(mine) for _ in range(size())]
    for root in range(size()):
        is_root = rank() == root
        gathered = moved(lambda: dist.gather(mine, whole if is_root else None, root))
        assert gathered == ((0, others * k) if is_root else (k, 0))
        scattered = moved(lambda: dist.scatter(mine, whole if is_root else None, root))
        assert scattered == ((others * k, 0) if is_root else (0, k))
    flat = torch.zeros(size() * mine.numel())
    both = (others * k, others * k)
    assert moved(lambda: dist.all_to_all_single(torch.zeros_like(flat), flat)) == both
    assert moved(lambda: dist.all_to_all(whole, list(flat.view(size(), -1)))) == both
    assert moved(lambda: dist.all_gather(whole, mine)) == both
    assert moved(lambda: dist.reduce_scatter_tensor(mine, flat)) == both
    rows = [k * to for to in range(size())]
    bytes_in = torch.zeros(k * rank() * size(), dtype=torch.uint8)
    uneven = moved(
        lambda: dist.all_to_all_single(bytes_in, torch.zeros(sum(rows), dtype=torch.uint8), [k * rank()] * size(), rows)
    )
    assert uneven == (sum(rows) - k * rank(), others * k * rank())


@case
def all_gather_of_tensors_that_differ_in_length() -> None:
    for dtype in TYPES:
        inputs = [torch.full((2 * i, 3), i + 1).to(dtype) for i in range(size())]
        apart = [torch.zeros_like(value) for value in inputs]
        for outputs in (apart, [torch.zeros(3, 2 * i).to(dtype).t() for i in range(size())]):
            dist.all_gather(outputs, inputs[rank()])
            for output, value in zip(outputs, inputs):
                assert torch.equal(bytes_of(output), bytes_of(value))


@case
def a_split_that_the_other_rank_does_not_expect() -> None:
    sends = [3 if (rank(), to) == (1, 0) else 2 for to in range(size())]
    output, whole = torch.zeros(2 * size()), torch.ones(sum(sends))

    def exchange() -> None:
        dist.all_to_all_single(output, whole, [2] * size(), sends)

    # A rank that has all that it needs is told by its next call; all ranks make as many calls.
    reported = []
    for call in (exchange, dist.barrier):
        try:
            call()
        except herringbone.MismatchError as error:
            reported.append(str(error))
    said = ("called all_to_all", "with 3 elements for rank 0", "with 2 elements from rank 1")
    assert reported and all(text in reported[0] for text in said), reported
    dist.barrier()


@case
def reduce_scatter_of_uneven_parts() -> None:
    counts = [i + 1 for i in range(size())]
    for op in (Op.SUM, Op.AVG, Op.MAX):
        inputs = pieces(sum(counts), torch.float32)
        expected = fold(inputs, op).split(counts)[rank()]
        output = torch.zeros(counts[rank()])
        dist.reduce_scatter(output, list(inputs[rank()].clone().split(counts)), op)
        same(output, expected)


@case
def messages_in_a_ring() -> None:
    for count in (0, 1, 1000, 1_000_003):
        mine, received = torch.full((count,), float(rank())), torch.zeros(count)
        expected = torch.full((count,), float(preceding()))
        work = dist.isend(mine, following())
        dist.recv(received, preceding())
        work.wait()
        same(received, expected)
        for operations in ((dist.isend, dist.irecv), (dist.irecv, dist.isend)):
            received.zero_()
            tensors = {dist.isend: (mine, following()), dist.irecv: (received, preceding())}
            for work in dist.batch_isend_irecv([dist.P2POp(each, *tensors[each]) for each in operations]):
                work.wait()
            same(received, expected)


@case
def messages_from_any_source() -> None:
    """Each rank in turn receives what all others send, of every length, in whatever order it comes."""
    for receiver in range(size()):
        for round, count in enumerate((1, 0, 1000, 1_000_003)):
            if rank() != receiver:
                if round % 2:
                    time.sleep(0.01 * ((rank() + round) % size()))
                dist.send(torch.full((count,), float(rank()) + round), receiver, tag=round)
                continue
            sources = set()
            for _ in range(size() - 1):
                received = torch.zeros(count)
                source = dist.recv(received, tag=round)
                same(received, torch.full((count,), float(source) + round))
                sources.add(source)
            assert sources == set(range(size())) - {receiver}, sources


@case
def messages_from_any_source_in_order() -> None:
    """Of one sender, messages come in its order; several receives wait at once, and progress while nobody waits."""
    if rank() == 0:
        received = [torch.zeros(2000) for _ in range(5 * (size() - 1))]
        works = [dist.irecv(tensor, tag=9) for tensor in received]
        # What others send first needs no wait of these.
        for other in range(1, size()):
            dist.send(torch.ones(1_000_000), other)
        deadline = time.monotonic() + 60
        while not all(work.is_completed() for work in works):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        last = dict.fromkeys(range(1, size()), -1)
        for work, tensor in zip(works, received):
            work.wait()
            source, number = divmod(int(tensor[0].item()), 100)
            assert work._source_rank() == source and number == last[source] + 1, (source, number, last)
            last[source] = number
    else:
        for number in range(5):
            dist.send(torch.full((2000,), float(100 * rank() + number)), 0, tag=9)
        place = torch.zeros(1_000_000)
        dist.recv(place, 0)
        assert place.sum().item() == 1_000_000
    dist.barrier()


@case
def a_long_message_is_not_taken_for_a_short_one() -> None:
    if rank() == 0:
        error_of(herringbone.MismatchError, lambda: dist.send(torch.arange(1000), 1, tag=11), "recv of 1 i64 with tag 11")
    if rank() == 1:
        place = torch.zeros(1, dtype=torch.int64)
        error_of(herringbone.MismatchError, lambda: dist.recv(place, 0, tag=11), "send of 1000 i64 with tag 11")
    dist.barrier()


@case
def messages_both_ways_between_two_ranks() -> None:
    if rank() > 1:
        return
    mine, received = torch.full((3, 2), float(rank())), torch.zeros(2, 3)
    for large in (1, 100_000):
        values, into = mine.repeat(large, 1), received.repeat(1, large)
        works = [dist.isend(values, 1 - rank()), dist.irecv(into.t(), 1 - rank())]
        for work in works:
            work.wait()
        assert (into == 1 - rank()).all()
    for dtype in TYPES:
        tensor = torch.full((5,), rank() + 1).to(dtype)
        if rank() == 0:
            dist.send(tensor, 1)
        else:
            assert dist.recv(tensor, 0) == 0
        assert torch.equal(bytes_of(tensor), bytes_of(torch.ones(5).to(dtype)))
    expanded = torch.ones(1).expand(4)
    if rank() == 0:
        dist.send(expanded, 1)
    else:
        error_of(ValueError, lambda: dist.recv(expanded, 0), "contiguous")
        dist.recv(torch.zeros(4), 0)
    error_of(ValueError, lambda: dist.isend(torch.ones(1), 1 - rank(), tag=1 << 63), "pass one of 64 bits")


@case
def messages_to_oneself() -> None:
    for source in (rank(), None):
        work, received = dist.isend(torch.arange(5), rank(), tag=2), torch.zeros(5, dtype=torch.int64)
        place = dist.irecv(received, source, tag=2)
        assert place is not None and work is not None
        place.wait()
        work.wait()
        same(received, torch.arange(5))


@case
def tags_leave_nothing_behind() -> None:
    """Ten thousand tags take no more descriptors and hardly more memory than one."""
    if rank() > 1:
        return
    other, before = 1 - rank(), None
    for tag in range(10_500):
        mine, received = torch.tensor([tag]), torch.zeros(1, dtype=torch.int64)
        work = dist.isend(mine, other, tag=tag)
        dist.recv(received, other, tag=tag)
        work.wait()
        assert received.item() == tag
        if tag == 500:
            before = used()
    kilobytes, descriptors = used()
    assert descriptors == before[1] and kilobytes < before[0] + 2048, (before, used())


def used() -> tuple[int, int]:
    """Resident memory in KiB, and open descriptors."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return resident, len(os.listdir("/proc/self/fd"))


@case
def messages_keep_their_order_within_a_tag() -> None:
    if rank() == 0:
        for number in range(6):
            dist.isend(torch.tensor([number]), 1, tag=number % 2)
    if rank() == 1:
        for tag, numbers in ((1, (1, 3, 5)), (0, (0, 2, 4))):
            for number in numbers:
                received = torch.zeros(1, dtype=torch.int64)
                dist.recv(received, 0, tag=tag)
                assert received.item() == number


@case
def messages_of_several_groups_with_the_same_ranks() -> None:
    groups = [dist.group.WORLD, dist.new_group([0, 1]), dist.new_group([0, 1])]
    if rank() < 2:
        for number, group in enumerate(groups):
            if rank() == 0:
                dist.isend(torch.tensor([number]), 1, group=group)
        for number, group in reversed(list(enumerate(groups))):
            received = torch.zeros(1, dtype=torch.int64)
            if rank() == 1:
                dist.recv(received, 0, group=group)
                assert received.item() == number
        for group in groups[1:]:
            dist.destroy_process_group(group)
    dist.barrier()


@case
def messages_that_do_not_meet() -> None:
    error_of(ValueError, lambda: dist.gather(torch.ones(1), None, size() + 1), f"its ranks are 0 to {size() - 1}")
    calls = "send of 3 f32 with tag 5 to rank 1", "recv of 2 f32 with tag 5 from rank 0"
    if rank() == 0:
        error_of(herringbone.MismatchError, lambda: dist.send(torch.ones(3), 1, tag=5), *calls)
    if rank() == 1:
        error_of(herringbone.MismatchError, lambda: dist.recv(torch.ones(2), 0, tag=5), *calls)
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank() == 0:
        started, late = time.monotonic(), herringbone.OperationTimeoutError
        error_of(late, lambda: dist.recv(torch.ones(1), 1, group=group), "recv", " timeout ")
        error_of(late, lambda: dist.recv(torch.ones(1), group=group), "from any rank", " timed out", "rank 1")
        assert time.monotonic() - started < 20, "the timeouts are half a second each, and the rest is margin"
    dist.barrier()


@case
def objects() -> None:
    gathered: list[object] = [None] * size()
    dist.gather_object({"rank": rank()}, gathered if rank() == 1 else None, 1)
    assert gathered == ([{"rank": i} for i in range(size())] if rank() == 1 else [None] * size())
    scattered: list[object] = [None]
    dist.scatter_object_list(scattered, [f"for {i}" for i in range(size())] if rank() == 0 else None, 0)
    assert scattered == [f"for {rank()}"]
    if rank() == 0:
        dist.send_object_list(["a", 2], 1)
    if rank() == 1:
        received: list[object] = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["a", 2]


@case
def checkpoints() -> None:
    import torch.distributed.checkpoint as checkpoint

    folder: list[object] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, 0)
    path = Path(str(folder[0])) / "checkpoint"
    checkpoint.save({"weight": torch.arange(5.0)}, checkpoint_id=path)
    loaded = {"weight": torch.zeros(5)}
    checkpoint.load(loaded, checkpoint_id=path)
    same(loaded["weight"], torch.arange(5.0))


@case
def distributed_tensors() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size(),))
    whole = torch.arange(float(size() * size() * 2)).view(2 * size(), size())
    sharded = distribute_tensor(whole if rank() == 0 else torch.zeros_like(whole), mesh, [Shard(0)])
    same(sharded.to_local(), whole.chunk(size())[rank()])
    same(sharded.redistribute(mesh, [Shard(1)]).to_local(), whole.chunk(size(), 1)[rank()].contiguous())
    same(sharded.full_tensor(), whole)


@case
def gradients_through_collectives() -> None:
    import torch.distributed.nn.functional as functional

    tensor = torch.full((2,), float(rank()), requires_grad=True)
    torch.cat(functional.all_gather(tensor)).sum().backward()
    same(tensor.grad, torch.full((2,), float(size())))
    tensor = torch.full((size(),), float(rank()), requires_grad=True)
    output = functional.all_to_all_single(torch.zeros(size()), tensor)
    same(output.detach(), torch.arange(float(size())))
    (output * (rank() + 1)).sum().backward()
    same(tensor.grad, torch.arange(1.0, size() + 1))


@case
def memory_that_lacks_fails_the_call_on_all_ranks() -> None:
    columns = torch.zeros(2, MUCH // 2, dtype=torch.uint8).t()
    share, parts = torch.zeros(MUCH, dtype=torch.uint8), [torch.empty(MUCH, dtype=torch.uint8) for _ in range(size())]
    sparse = torch.sparse_coo_tensor(torch.arange(MUCH // 4).unsqueeze(0), torch.ones(MUCH // 4), (MUCH,), check_invariants=True)
    calls: list[Callable[[], object]] = [
        lambda: dist.all_reduce(columns),
        lambda: dist.all_reduce_coalesced([torch.ones(3, dtype=torch.uint8), columns]),
        lambda: dist.broadcast(columns, 0, async_op=True).wait(),
        lambda: dist.all_reduce(share, dist._make_nccl_premul_sum(2)),
        lambda: dist.all_gather(parts, share),
        lambda: dist.gather(share, parts if rank() == 1 else None, 1),
        lambda: dist.scatter(share, parts if rank() == 1 else None, 1),
        lambda: dist.reduce_scatter(share, parts),
        lambda: dist.all_to_all(parts, parts),
        lambda: dist.all_reduce(sparse),
    ]
    if rank() < 2:
        calls += [
            lambda: dist.send(columns, 0) if rank() == 1 else dist.recv(columns, 1),
            lambda: dist.recv(columns, 0) if rank() == 1 else dist.send(columns, 1),
        ]
    for call in calls:
        check_out_of_memory(rank(), call, herringbone.OutOfMemoryError)
    assert dist.all_reduce(one := torch.ones(1)) is None and one.item() == size()


@case
def a_functional_all_to_all() -> None:
    import torch.distributed._functional_collectives as functional

    counts = [1] * size()
    result = functional.all_to_all_single(torch.full((size(),), float(rank())), counts, counts, dist.group.WORLD)
    assert (result + 0).tolist() == list(range(size()))
    assert [value.item() for value in all_gathered(torch.tensor(rank()))] == list(range(size()))


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
