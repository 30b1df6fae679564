"""Which ranks add up on their hosts first, and how tensors are cut for it: decisions, without processes."""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from herringbone.torch.lanes import CudaLane
from herringbone.torch.local_flights import Stage
from herringbone.torch.rails import ALIGNED_BYTES, LocalPlace, LocalReport, cut_for, disputed, ops_of, places_among, wanted


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_parts_have_each_element_once(ranks: int, element_bytes: int) -> None:
    for count in [*range(101), 4099]:
        cut = cut_for(count, ranks, element_bytes)
        elements = list(range(count))
        tail = elements[cut.head :] + [None] * (cut.rest * ranks - cut.tail)
        parts = [
            elements[rank * cut.part : (rank + 1) * cut.part] + tail[rank * cut.rest : (rank + 1) * cut.rest]
            for rank in range(ranks)
        ]
        assert {len(part) for part in parts} == {cut.length}
        together = [each for part in parts for each in part[: cut.part]] + [each for part in parts for each in part[cut.part :]]
        assert together[:count] == elements and set(together[count:]) <= {None}
        assert cut.head + cut.tail == count and cut.head == cut.part * ranks
        assert cut.part * element_bytes % ALIGNED_BYTES == 0
        assert cut.tail * element_bytes < ALIGNED_BYTES * ranks or not cut.tail
        assert cut.rest * ranks - cut.tail < ranks


def reports(hosts: str, devices: str = "", backend: str = "nccl") -> list[LocalReport]:
    """A report of each rank, whose host and device are characters."""
    return [LocalReport(host, device, backend) for host, device in zip(hosts, devices or map(str, range(len(hosts))))]


def test_each_rank_is_on_one_host_and_one_rail() -> None:
    draw = random.Random(1)
    for _ in range(200):
        hosts, each = draw.randint(1, 5), draw.randint(2, 8)
        names = draw.sample([name for name in "abcdefgh"[:hosts] for _ in range(each)], hosts * each)
        places = [places_among(reports("".join(names)), rank) for rank in range(len(names))]
        for rank, place in enumerate(places):
            assert isinstance(place, LocalPlace)
            assert (place.hosts, place.size, place.of(rank)) == (hosts, each, (place.host, place.local))
            assert rank in place.host_ranks and {names[other] for other in place.host_ranks} == {names[rank]}
            assert rank in place.rail_ranks and {names[other] for other in place.rail_ranks} == set(names)
            assert place.rail_ranks == sorted(place.rail_ranks) and place.host_ranks == sorted(place.host_ranks)
            assert place.rail_ranks[place.on_rail(place.host)] == rank
            assert all(places[other].local == place.local for other in place.rail_ranks)
        [order] = {tuple(place.by_rails) for place in places if isinstance(place, LocalPlace)}
        assert sorted(order) == [*range(len(names))]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (reports("abc"), "no host has several ranks"),
        (reports("aab"), "hosts differ in the number of their ranks: that of rank 0 has 2, that of rank 2 has 1"),
        (reports("abb"), "hosts differ in the number of their ranks: that of rank 0 has 1, that of rank 1 has 2"),
        (reports("aabb", "0111"), "ranks 2 and 3 share a device"),
        (reports("aa", "00"), "ranks 0 and 1 share a device"),
        (reports("aa") + reports("bb", backend="gloo"), "rank 0 has nccl for it and rank 2 has gloo"),
        (reports("aa") + reports("bb", backend=""), "rank 0 has nccl for it and rank 2 has none"),
        ([LocalReport(host, number, "", "it is switched off") for number, host in enumerate("aabb")], "it is switched off"),
    ],
)
def test_why_ranks_do_not_add_up_first(given: list[LocalReport], why: str) -> None:
    assert {places_among(given, rank) for rank in range(len(given))} == {why}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["auto", "auto"], None),
        (["gloo"], None),
        (
            ["nccl", "nccl", "ncl"],
            "rank 2 has 'ncl', which cannot be used; set it to auto, off, nccl or gloo, the same on all ranks",
        ),
        (["on"], "rank 0 has 'on', which cannot be used; set it to auto, off, nccl or gloo, the same on all ranks"),
        (["auto", "auto", "off"], "rank 0 has 'auto' and rank 2 has 'off'; set it to the same value on all ranks"),
    ],
)
def test_what_is_wrong_with_settings(settings: list[str], problem: str | None) -> None:
    assert disputed(settings) == problem


@pytest.mark.parametrize(
    ("setting", "device_backend", "expected"),
    [
        ("auto", "nccl", ("nccl", "")),
        ("auto", None, ("", "this torch has no NCCL")),
        ("off", "nccl", ("", "it is switched off")),
        ("gloo", "nccl", ("gloo", "")),
        ("nccl", None, ("nccl", "")),
    ],
)
def test_what_a_rank_asks_for(setting: str, device_backend: str | None, expected: tuple[str, str]) -> None:
    assert wanted(setting, device_backend) == expected


def test_averages_are_those_of_all_ranks() -> None:
    for backend, divisor in (("nccl", 1), ("gloo", 3)):
        place = places_among(reports("aaabbb", backend=backend), 0)
        assert isinstance(place, LocalPlace)
        local, rail, last = ops_of("average", place)
        assert (rail, last) == ("average", divisor) and local == ("sum" if divisor > 1 else "average")
        assert ops_of("sum", place) == ("sum", "sum", 1)


class Streams:
    """CUDA's streams and events without a device: what each of them comes behind is written down."""

    def __init__(self) -> None:
        self.current, self.said = "program", []
        self.made = iter(["first", "second"])
        self.events = iter(f"event {number}" for number in range(9))

    def stream(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, wait_event=lambda event: self.said.append(f"{name} waits for {event.name}"))

    def event(self) -> SimpleNamespace:
        name = next(self.events)
        record = lambda stream: self.said.append(f"{name} is behind {stream.name}")
        return SimpleNamespace(name=name, record=record, query=lambda: True)

    @contextlib.contextmanager
    def on(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before


def test_steps_on_streams_wait_for_what_they_need_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: streams.stream(next(streams.made)))
    monkeypatch.setattr(torch.cuda, "Event", streams.event)
    monkeypatch.setattr(torch.cuda, "stream", streams.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.stream(streams.current))
    lane, tensor = CudaLane(torch.device("cpu")), torch.empty(0)
    begin, earlier = lane.point(tensor), lane.end()
    with lane.summing([begin, earlier]):
        assert streams.current == "first"
        summed = lane.summed()
    with lane.giving(summed):
        assert streams.current == "second"
    end = lane.end()
    lane.follow(end, tensor)
    assert streams.current == "program" and end.done()
    assert streams.said == [
        "event 0 is behind program",
        "event 1 is behind second",
        "first waits for event 0",
        "first waits for event 1",
        "event 2 is behind first",
        "second waits for event 2",
        "event 3 is behind second",
        "program waits for event 3",
    ]


def test_a_stage_keeps_no_call_that_it_has_handed_on() -> None:
    stage = Stage(lambda flight: None, None)
    call: Any = torch.empty(0)
    known = weakref.ref(call)
    stage.put(call)
    del call
    deadline = time.monotonic() + 60
    while known() is not None:
        assert time.monotonic() < deadline, "the stage keeps the call's memory"
        time.sleep(0.001)
    stage.put(None)
    stage.join()
