"""The figures of a GPU: an all-reduce beside that of mapped memory and copies, and what a call takes of the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from gpu_checks import Place, check
from rows import Row, bound_of, judged, ratio

import herringbone.torch

MIB = 1 << 20
SIZES = (25, 100)
"""MiB of f32."""
MOST_RATIO, MOST_HOST_US = 1.15, 60.0
ROUNDS, CALLS = 12, 200


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes on this rank, once both are here."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def slowest(times: list[float]) -> list[float]:
    """Of each round the slowest rank's time."""
    every = torch.tensor(times, dtype=torch.float64)
    gathered = [torch.empty_like(every) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, every)
    return [float(value) for value in torch.stack(gathered).amax(0)]


def of_both(place: Place, times: list[float]) -> list[float]:
    """The same, past the stand-in, which reads no tensor at once."""
    if not place.is_real:
        return times
    return slowest(times)


def copies(place: Place, there: torch.Tensor) -> tuple[float, float]:
    """Seconds of a copy from the device to registered memory, and of one back."""
    host = torch.empty(there.shape, dtype=there.dtype, pin_memory=place.is_real)
    found: list[float] = []
    for to, of in ((host, there), (there, host)):

        def copied(to: torch.Tensor = to, of: torch.Tensor = of) -> None:
            to.copy_(of, non_blocking=True)
            place.synchronize()

        copied()
        found.append(statistics.median(seconds(copied) for _ in range(5)))
    return found[0], found[1]


@check
def times(place: Place) -> list[Row]:
    """All-reduces of the device's memory beside those of mapped memory of the host."""
    rows = []
    for size in SIZES:
        length = size * MIB // 4 // place.scale
        there, mapped = place.put(torch.ones(length)), herringbone.torch.empty(length)
        out, back = copies(place, there)

        def staged(there: torch.Tensor = there) -> None:
            dist.all_reduce(there)
            place.synchronize()

        def on_host(mapped: torch.Tensor = mapped) -> None:
            work = dist.all_reduce(mapped, async_op=True)
            work.wait()
            place.synchronize()

        found: dict[Callable[[], None], list[float]] = {staged: [], on_host: []}
        for _ in range(ROUNDS if place.is_real else 3):
            for call, each in found.items():
                there.zero_()
                place.synchronize()
                each.append(seconds(call))
        ours, host = (of_both(place, each[2:] or each) for each in found.values())
        bounds = [bound_of(each, out, back) for each in host]
        rate = size * MIB / place.scale / 1e9
        what = (
            f"all_reduce of {size} MiB: {statistics.median(ours) * 1e3:.2f} ms; mapped memory {statistics.median(host) * 1e3:.2f} ms, "
            f"copies at {rate / out:.1f} and {rate / back:.1f} GB/s"
        )
        rows.append(judged("times", what, ratio(ours, bounds), "x", MOST_RATIO, place.is_real))
    return rows


@check
def host_time(place: Place) -> list[Row]:
    """What a call takes of the program's thread. Its wait lasts until the last copy back is queued, so that has no goal."""
    rows = []
    for what, length in (("64 KiB", 16_384), ("1 MiB", 262_144), ("25 MiB", 25 * MIB // 4 // place.scale)):
        tensor = place.put(torch.zeros(length))
        calls, waits = [], []
        for number in range(CALLS if place.is_real else 20):
            began = time.perf_counter()
            work = dist.all_reduce(tensor, async_op=True)
            called = time.perf_counter()
            work.wait()
            calls.append(called - began)
            waits.append(time.perf_counter() - called)
            if number % 8 == 7:
                place.synchronize()
        place.synchronize()
        call, wait = (statistics.median(each[20:] or each) * 1e6 for each in (calls, waits))
        said = f"all_reduce of {what}, median; its wait {wait:.0f} us"
        rows.append(judged("host_time", said, call, "us", MOST_HOST_US, place.is_real))
    return rows
