"""The checks on a GPU that are right or wrong; every rank runs them in the same order, and rank 0 has their rows."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from places import CYCLES, Gpu, StandInPlace
from rows import Row, checked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import herringbone

Place = Gpu | StandInPlace
Op = dist.ReduceOp
SLICE_BYTES = 4 << 20
LATE_SECONDS = 0.3
"""By how much a rank comes late, so that the other one's stream waits."""

CHECKS: dict[str, Callable[[Place], list[Row]]] = {}


def check(function: Callable[[Place], list[Row]]) -> Callable[[Place], list[Row]]:
    """Decorator: list a check under its name."""
    CHECKS[function.__name__] = function
    return function


def noise(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values of this rank, on the CPU."""
    generator = torch.Generator().manual_seed(length + 1000 * dist.get_rank())
    return (torch.randn(length, generator=generator) * 100).to(dtype)


def same_bits(place: Place, staged: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless both have the same bits."""
    place.synchronize()
    found = staged.detach().cpu().contiguous()
    assert torch.equal(found.view(torch.uint8), expected.contiguous().view(torch.uint8)), f"{found} is not {expected}"


def host_group() -> dist.ProcessGroup:
    """Torch's own Gloo, for what the host has to know."""
    return dist.new_group(backend="gloo")


@check
def values(place: Place) -> list[Row]:
    """Every type and op, lengths about slices, and views."""
    gloo, types = (
        host_group(),
        (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8),
    )
    for dtype, op in itertools.product(types, (Op.SUM, Op.AVG, Op.PRODUCT, Op.MIN, Op.MAX)):
        mine = noise(1003, dtype)
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine, group=gloo)
        tensor = place.put(mine)
        dist.all_reduce(tensor, op)
        place.synchronize()
        torch.testing.assert_close(tensor.cpu(), folded(parts, op), rtol=2e-2, atol=1e-2)
    for length in (0, 1, SLICE_BYTES // 4 - 1, SLICE_BYTES // 4 + 1, SLICE_BYTES // 2 + 3):
        tensor, other = place.put(noise(length)), noise(length)
        dist.all_reduce(other, group=gloo)
        dist.all_reduce(tensor)
        same_bits(place, tensor, other)
    base = place.put(noise(3000))
    expected = base.cpu()
    place.synchronize()
    whole = noise(3000)
    dist.all_reduce(whole, group=gloo)
    dist.all_reduce(base[5:2005].view(40, 50).t()[::2])
    expected[5:2005].view(40, 50).t()[::2] = whole[5:2005].view(40, 50).t()[::2]
    same_bits(place, base, expected)
    return [checked("values", f"{len(types)} types with 5 ops, lengths about slices, a view")]


def folded(parts: list[torch.Tensor], op: Any) -> torch.Tensor:
    """The fold of the ranks' parts, in float64 where that holds them."""
    dtype = parts[0].dtype
    if op in (Op.MIN, Op.MAX):
        return functools.reduce(torch.minimum if op == Op.MIN else torch.maximum, parts)
    if op == Op.PRODUCT:
        return functools.reduce(torch.mul, parts)
    total = functools.reduce(torch.add, [part.to(torch.float64 if dtype.is_floating_point else torch.int64) for part in parts])
    if op == Op.AVG:
        total = total / len(parts) if dtype.is_floating_point else (total / len(parts)).trunc()
    return total.to(dtype)


@check
def collectives(place: Place) -> list[Row]:
    """The other collectives, and messages."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mine = noise(1200 * size)
    gathered = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine, group=host_group())
    own = place.put(mine)
    for root in range(size):
        tensor = place.put(mine)
        dist.broadcast(tensor, root)
        same_bits(place, tensor, gathered[root])
    total = sum(gathered[1:], gathered[0])
    tensor = place.put(mine)
    dist.reduce(tensor, size - 1)
    same_bits(place, tensor, total if rank == size - 1 else mine)
    whole = place.put(torch.zeros(size * mine.numel()))
    dist.all_gather_into_tensor(whole, own)
    same_bits(place, whole, torch.cat(gathered))
    parts = [place.put(torch.zeros_like(mine)) for _ in range(size)]
    dist.all_gather(parts, own)
    for part, each in zip(parts, gathered):
        same_bits(place, part, each)
    part = place.put(torch.zeros(1200))
    dist.reduce_scatter_tensor(part, own)
    same_bits(place, part, total[1200 * rank : 1200 * (rank + 1)])
    exchanged = place.put(torch.zeros_like(mine))
    dist.all_to_all_single(exchanged, own)
    same_bits(place, exchanged, torch.cat([each[1200 * rank : 1200 * (rank + 1)] for each in gathered]))
    dist.gather(own, parts if rank == 0 else None, 0)
    if rank == 0:
        for part, each in zip(parts, gathered):
            same_bits(place, part, each)
    scattered = place.put(torch.zeros(1200))
    dist.scatter(scattered, [place.put(row) for row in mine.view(size, -1)] if rank == 0 else None, 0)
    same_bits(place, scattered, gathered[0][1200 * rank : 1200 * (rank + 1)])
    received = place.put(torch.zeros_like(mine))
    works = [dist.isend(own, (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]
    for work in works:
        work.wait()
    same_bits(place, received, gathered[(rank - 1) % size])
    return [checked("collectives", "broadcast, reduce, gathers, scatters, all_to_all, send and recv")]


@check
def streams(place: Place) -> list[Row]:
    """A call waits for the kernels before it, and kernels after its wait see its result, also on other streams."""
    size, length = dist.get_world_size(), 5_000_000 // place.scale
    for number in range(3):
        tensor = place.put(torch.zeros(length))
        place.write_late(tensor, torch.full((length,), 1.0 + number))
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        if place.is_real:
            tensor += 1  # queued behind the wait
        same_bits(place, tensor, torch.full((length,), (1.0 + number) * size**3 + place.is_real))
    with place.own_stream():
        tensor = place.put(torch.ones(length))
        dist.all_reduce(tensor)
        place.synchronize()
        same_bits(place, tensor, torch.full((length,), float(size)))
    assert place.hazards() == []
    return [checked("streams", "late kernels, calls on one tensor, a stream of the program's own")]


@check
def callbacks(place: Place) -> list[Row]:
    """Callbacks of works compute on results, and call again, while the program computes on a stream of its own."""
    size, length = dist.get_world_size(), 3_000_000 // place.scale

    def late_mean(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        """The mean, by a kernel behind one that takes a while."""
        if place.is_real:
            torch.cuda._sleep(CYCLES // 10)
        return future.value()[0] / size

    def again(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        """The sum of the ranks' means."""
        return dist.all_reduce(future.value(), async_op=True).get_future().wait()[0]

    for number in range(4):
        with place.own_stream():
            tensor = place.put(torch.full((length,), 1.0 + number))
            means = dist.all_reduce(tensor, async_op=True).get_future().then(late_mean)
            doubled = means.wait() * 2
            same_bits(place, doubled, torch.full((length,), 2.0 + 2 * number))
            summed = means.then(again).wait() + 1
            same_bits(place, summed, torch.full((length,), (1.0 + number) * size + 1))
    return [checked("callbacks", "kernels of callbacks come before what the program does with their results")]


@check
def meanwhile(place: Place) -> list[Row]:
    """The driver allocates, frees and synchronises while a call is in flight whose other rank comes late, before the wait and behind it."""
    length, began = 25_000_000 // place.scale, time.monotonic()
    for number in range(4):
        tensor = place.put(torch.ones(length))
        place.synchronize()
        dist.barrier()
        if dist.get_rank() == 0:
            work = dist.all_reduce(tensor, async_op=True)
            if number % 2:
                place.allocate(number)
                place.synchronize()
            work.wait()
            place.allocate(number)
        else:
            time.sleep(LATE_SECONDS)
            work = dist.all_reduce(tensor, async_op=True)
            work.wait()
        same_bits(place, tensor, torch.full((length,), float(dist.get_world_size())))
    seconds = time.monotonic() - began
    what = f"memory allocated, freed and pinned beside 4 calls whose peer is {LATE_SECONDS} s late: {seconds:.1f} s"
    return [checked("meanwhile", what)]


@check
def capture(place: Place) -> list[Row]:
    """A call inside of a graph's capture is refused, and the next one outside works."""
    tensor = place.put(torch.ones(8))
    place.synchronize()
    try:
        with place.captured():
            dist.all_reduce(tensor)
    except herringbone.UnsupportedError as error:
        assert "outside of the capture" in str(error), error
    else:
        raise AssertionError("a call was captured")
    dist.all_reduce(tensor)
    same_bits(place, tensor, torch.full((8,), float(dist.get_world_size())))
    return [checked("capture", "a call inside of it is refused")]


class Cnn(nn.Module):
    """A small network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.features, self.head = nn.Sequential(*layers), nn.Linear(64 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        return self.head(self.features(images).flatten(1))


@check
def training(place: Place) -> list[Row]:
    """DDP of a network of convolutions in bf16: the losses are those over Gloo."""
    steps = 20 if place.is_real else 4
    losses = []
    for group in (dist.group.WORLD, host_group()):
        torch.manual_seed(5)
        if place.is_real:
            torch.backends.cudnn.deterministic = True
        model = DistributedDataParallel(Cnn().to(place.device, torch.bfloat16), process_group=group, bucket_cap_mb=0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        generator, of_group = torch.Generator().manual_seed(dist.get_rank()), []
        for _ in range(steps):
            images = torch.randn(16, 3, 32, 32, generator=generator).to(place.device, torch.bfloat16)
            wanted = torch.randint(0, 10, (16,), generator=generator).to(place.device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images).float(), wanted)
            loss.backward()
            optimizer.step()
            of_group.append(loss.item())
        losses.append(of_group)
    far = max(abs(one - other) / other for one, other in zip(*losses))
    assert far <= 0.01, losses
    what = f"DDP in bf16, {steps} steps beside Gloo: last losses {losses[0][-1]:.4f} and {losses[1][-1]:.4f}"
    return [Row("training", what, f"apart by {far:.1e}", "<= 1.0e-02", True)]


@check
def late(place: Place) -> list[Row]:
    """A rank that never comes is named after the timeout, and no stream waits for it."""
    group = dist.new_group(timeout=timedelta(seconds=3))
    # The group's first call on a device waits for all ranks, because they decide whether hosts sum first.
    dist.all_reduce(place.put(torch.ones(10)), group=group)
    if dist.get_rank() == 0:
        work = dist.all_reduce(place.put(torch.ones(10)), group=group, async_op=True)
        try:
            work.wait()
        except herringbone.OperationTimeoutError:
            pass
        place.synchronize()
        while work.exception() is None:
            time.sleep(0.001)
        assert "rank 1" in str(work.exception()), work.exception()
    dist.barrier()
    return [checked("late", "a rank that never comes is named, and the stream goes on")]
