"""Devices for tests of :mod:`herringbone.kvstore`: tensors of the CPU stand for their memory, and their streams move when a seed says it.

Each stream has a clock of what it knows of all others (vector clocks: Fidge and Mattern, 1988), and events carry it. An access to memory
that does not know of an earlier one which it meets is a hazard, however the run went. So a missing wait is found in every run.
"""

from __future__ import annotations

import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from herringbone.kvstore.tree_plan import SideStream

Clock = dict[str, int]

HOST = "host"


@dataclass(eq=False)
class Event:
    clock: Clock
    is_over: bool = False


@dataclass(eq=False)
class Stream:
    name: str
    clock: Clock = field(default_factory=dict)
    queue: deque[Event | Callable[[], None]] = field(default_factory=deque)
    """Events to wait for, and what to do."""


@dataclass
class Access:
    begin: int
    end: int
    writes: bool
    actor: str
    tick: int
    what: str


class Block:
    """Memory that the allocator has lent out, or has again."""

    def __init__(self, device: Any, raw: torch.Tensor) -> None:
        self.device, self.raw = device, raw
        self.used_on: set[Stream] = set()
        self.used_until: list[Event] = []
        self.is_free = False


class Devices:
    """What :class:`herringbone.kvstore.streams.Streams` asks for, over devices ``0..count``."""

    def __init__(self, count: int, seed: int, links: list[list[int]] | None = None, begins_with: int = 0) -> None:
        self.count, self._links, self._first = count, links, begins_with
        self._draw = random.Random(seed)
        self._lock = threading.RLock()
        self._streams: dict[str, Stream] = {}
        self._host: Clock = {}
        self._device_of: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []
        self._blocks: dict[int, Block] = {}
        self._accesses: list[Access] = []
        self.hazards: list[str] = []
        self.calls: list[str] = []
        """The kinds of the calls that a fault can leave out."""
        self.left_out: int | None = None
        """Which of them is left out."""
        self.refused: str | None = None
        self.copies: list[tuple[Any, Any]] = []
        """Between which devices; ``None`` is the host."""

    # What a program does.

    def tensor(self, device: int, values: torch.Tensor) -> torch.Tensor:
        """A tensor of a device that has these values at once."""
        with self._lock:
            made = values.clone(memory_format=torch.contiguous_format)
            self._device_of[made.untyped_storage().data_ptr()] = device
            self._kept.append(made.detach())
            self._note(self.program(device), made, True, "the program's allocation")
            return made

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Queue that the program's stream writes values."""
        with self._lock:
            stream, target = self.program(self.device_of(tensor)), tensor.detach()
            self._note(stream, target, True, "the program's write")
            self._queue(stream, lambda: target.copy_(values))

    def read(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Queue that the program's stream reads a tensor, into the list that is returned."""
        with self._lock:
            stream, source, found = self.program(self.device_of(tensor)), tensor.detach(), list[torch.Tensor]()
            self._note(stream, source, False, "the program's read")
            self._queue(stream, lambda: found.append(source.clone()))
            return found

    def synchronize(self) -> None:
        """Have all streams do everything."""
        with self._lock:
            while self._step():
                pass
            assert not any(stream.queue for stream in self._streams.values()), "a stream waits for ever"

    # What the store asks for.

    def device_of(self, tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage().data_ptr()
        return self._device_of.get(storage) if storage else None

    def links(self, devices: int) -> list[list[int]]:
        if self._links is not None:
            return self._links
        return [[int(one != other) for other in range(devices)] for one in range(devices)]

    def position(self, device: Any) -> int:
        return device - self._first

    def program(self, device: Any) -> Stream:
        return self._stream(f"program {device}")

    def side(self, device: Any, side: SideStream) -> Stream:
        return self._stream(f"{device}: {side.device}, {side.part}, {side.to}")

    def record(self, stream: Stream) -> Event:
        with self._lock:
            self._know_the_host(stream)
            event = Event(dict(stream.clock))
            self._queue(stream, lambda: setattr(event, "is_over", True))
            return event

    def wait(self, stream: Stream, event: Event) -> None:
        with self._lock:
            teaches = any(stream.clock.get(actor, 0) < tick for actor, tick in event.clock.items())
            if self._is_left_out("wait" if teaches else "known already"):
                return
            self._join(stream.clock, event.clock)
            stream.queue.append(event)

    def wait_on_host(self, event: Event) -> None:
        with self._lock:
            if self._is_left_out("host"):
                return
            while not event.is_over:
                assert self._step(), "the host waits for ever"
            self._join(self._host, event.clock)

    def refusal(self, device: Any) -> str | None:
        return self.refused

    def empty(self, device: Any, shape: Any, dtype: Any) -> torch.Tensor:
        with self._lock:
            size = torch.empty(shape, dtype=dtype, device="meta").nbytes
            block = next((each for each in self._blocks.values() if self._may_have(each, device, size)), None)
            if block is None:
                block = Block(device, torch.full((size + 1,), 0x7F, dtype=torch.uint8))
                self._blocks[block.raw.data_ptr()] = block
                self._device_of[block.raw.data_ptr()] = device
            for event in block.used_until:
                self._join(self._host, event.clock)
            block.is_free, block.used_on, block.used_until = False, set(), []
            made = block.raw[:size].view(dtype).view(shape)
            self._note(self.program(device), made, True, "the allocator")
            weakref.finalize(made, self._free, block)
            return made

    def host_memory(self, shape: Any, dtype: Any) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        made.view(-1).view(torch.uint8).fill_(0x7F) if made.numel() else None
        self._kept.append(made.detach())
        return made

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        with self._lock:
            block = self._blocks[tensor.untyped_storage().data_ptr()]
            if stream in block.used_on or self._is_left_out("lend"):
                return
            block.used_on.add(stream)

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        with self._lock:
            assert self.device_of(source) is None or stream.name.startswith((f"{self.device_of(source)}:", "program"))
            self.copies.append((self.device_of(source), self.device_of(target)))
            self._run(stream, "a copy", target, source, lambda to, what: to.copy_(what))

    def add(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        with self._lock:
            assert self.device_of(target) == self.device_of(source) and stream.name.startswith(f"{self.device_of(source)}:")
            self._run(stream, "a sum", target, source, lambda to, what: to.add_(what))

    # How it works.

    def _run(self, stream: Stream, what: str, target: torch.Tensor, source: torch.Tensor, act: Callable[[Any, Any], Any]) -> None:
        self._note(stream, source, False, what)
        self._note(stream, target, True, what)
        # Other tensors over the memory: what is queued keeps no tensor alive.
        to, of = target.detach(), source.detach()
        self._queue(stream, lambda: act(to, of))

    def _stream(self, name: str) -> Stream:
        with self._lock:
            return self._streams.setdefault(name, Stream(name))

    def _queue(self, stream: Stream, act: Callable[[], object]) -> None:
        stream.queue.append(act)  # type: ignore[arg-type]
        for _ in range(self._draw.randrange(3)):
            self._step()

    def _step(self) -> bool:
        """Have one stream do one thing; false if none can."""
        ready = [stream for stream in self._streams.values() if stream.queue and not self._is_held(stream)]
        if not ready:
            return False
        act = self._draw.choice(ready).queue.popleft()
        if not isinstance(act, Event):
            act()
        return True

    def _is_held(self, stream: Stream) -> bool:
        first = stream.queue[0]
        return isinstance(first, Event) and not first.is_over

    def _is_left_out(self, kind: str) -> bool:
        self.calls.append(kind)
        return self.left_out == len(self.calls) - 1

    def _free(self, block: Block) -> None:
        with self._lock:
            block.used_until = [self.record(stream) for stream in block.used_on]
            block.is_free = True

    def _may_have(self, block: Block, device: Any, size: int) -> bool:
        fits = block.is_free and block.device == device and block.raw.numel() == size + 1
        return fits and all(event.is_over for event in block.used_until)

    def _know_the_host(self, stream: Stream) -> None:
        self._join(stream.clock, self._host)

    def _join(self, clock: Clock, other: Clock) -> None:
        for actor, tick in other.items():
            clock[actor] = max(clock.get(actor, 0), tick)

    def _note(self, stream: Stream, tensor: torch.Tensor, writes: bool, what: str) -> None:
        assert tensor.is_contiguous(), "accesses are noted as a range of bytes"
        self._know_the_host(stream)
        begin = tensor.data_ptr()
        end = begin + tensor.nbytes
        if begin == end:
            return
        met = [one for one in self._accesses if one.begin < end and begin < one.end and (writes or one.writes)]
        self.hazards += [
            f"{what} on {stream.name} does not wait for {one.what} on {one.actor}"
            for one in met
            if stream.clock.get(one.actor, 0) < one.tick
        ]
        self._accesses = [one for one in self._accesses if not (writes and begin <= one.begin and one.end <= end)]
        stream.clock[stream.name] = tick = stream.clock.get(stream.name, 0) + 1
        self._accesses.append(Access(begin, end, writes, stream.name, tick, what))


def values_of(count: int, shape: Sequence[int], seed: int) -> list[torch.Tensor]:
    """Numbers of which sums depend on the order."""
    draw = torch.Generator().manual_seed(seed)
    scales = (10.0 ** torch.randint(-6, 7, (count, *shape), generator=draw)).float()
    return list(torch.randn((count, *shape), generator=draw) * scales)
