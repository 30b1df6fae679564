"""How plans of :mod:`.tree_plan` run on the streams of accelerators: CUDA's through torch, or what a test lets stand in.

Nothing here imports torch before a program has a tensor of it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .tree_plan import SideStream, Piece, Plan

__all__ = ["Streams", "let_stand_in", "run", "streams_of"]


class Streams(Protocol):
    """What is asked of the library that has the devices. Nothing but :meth:`wait_on_host` blocks the host.

    ``stream``, ``event`` and ``device`` are the library's own; devices are hashable, and streams and events are what these methods give.
    """

    def device_of(self, tensor: Any) -> Any:
        """The device that has a tensor's memory; ``None`` if it is none of this library's."""

    def links(self, devices: int) -> list[list[int]]:
        """For each pair of the first ``count`` devices: 2 if they reach each other's memory directly, else 1; 0 for a device itself."""

    def position(self, device: Any) -> int:
        """Which node of a topology a device is."""

    def program(self, device: Any) -> Any:
        """The stream on which the program queues work for a device now."""

    def side(self, device: Any, side: SideStream) -> Any:
        """A stream of a device that is none of the program's, the same for the same ``side``."""

    def record(self, stream: Any) -> Any:
        """An event that is over once all that is queued on a stream is."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let what is queued on a stream from now on begin after an event."""

    def wait_on_host(self, event: Any) -> None:
        """Return once an event is over."""

    def refusal(self, device: Any) -> str | None:
        """Why the program's stream of a device takes part in no call now; ``None`` if it does."""

    def empty(self, device: Any, shape: Any, dtype: Any) -> Any:
        """A tensor of a device, which the program's stream may use at once.

        Raises:
            MemoryError: there is none.
        """

    def host_memory(self, shape: Any, dtype: Any) -> Any:
        """A tensor of the host, to which devices copy without the host's help."""

    def lend(self, tensor: Any, stream: Any) -> None:
        """Tell the owner of a tensor's memory that a stream uses it: it gives the memory to others only after what is queued there."""

    def copy(self, stream: Any, target: Any, source: Any) -> None:
        """Queue a copy on a stream, which is one of the source's device if that is no host."""

    def add(self, stream: Any, target: Any, source: Any) -> None:
        """Queue ``target += source``, which are both on the stream's device."""


class Cuda:
    """CUDA's, through torch."""

    def __init__(self) -> None:
        """Without any streams yet."""
        self._lock = threading.Lock()
        self._streams: dict[Any, Any] = {}

    def device_of(self, tensor: Any) -> Any:
        """Torch's device of a CUDA tensor."""
        return tensor.device if tensor.is_cuda else None

    def links(self, devices: int) -> list[list[int]]:
        """By ``cudaDeviceCanAccessPeer``. These are the ranks that MXNet takes where the driver has no better ones."""
        reach = _torch().cuda.can_device_access_peer
        return [[0 if one == other else 1 + reach(one, other) for other in range(devices)] for one in range(devices)]

    def position(self, device: Any) -> int:
        """Its index, as this process counts devices."""
        return int(device.index)

    def program(self, device: Any) -> Any:
        """Torch's current stream."""
        return _torch().cuda.current_stream(device)

    def side(self, device: Any, side: SideStream) -> Any:
        """One of torch's pool."""
        return self._stream(device, side)

    def _stream(self, device: Any, use: Any) -> Any:
        with self._lock:  # several threads fill tensors
            if (device, use) not in self._streams:
                self._streams[device, use] = _torch().cuda.Stream(device)
            return self._streams[device, use]

    def record(self, stream: Any) -> Any:
        """A CUDA event."""
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        """``cudaStreamWaitEvent``."""
        stream.wait_event(event)

    def wait_on_host(self, event: Any) -> None:
        """``cudaEventSynchronize``."""
        event.synchronize()

    def refusal(self, device: Any) -> str | None:
        """A graph would replay the copies without the host's part."""
        torch = _torch()
        with torch.cuda.device(device):
            is_captured = torch.cuda.is_current_stream_capturing()
        return (
            f"a tensor on {device}, whose stream is captured for a CUDA graph; call it outside of the capture"
            if is_captured
            else None
        )

    def empty(self, device: Any, shape: Any, dtype: Any) -> Any:
        """From torch's allocator, for the current stream."""
        torch = _torch()
        try:
            with torch.cuda.device(device):
                return torch.empty(shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def host_memory(self, shape: Any, dtype: Any) -> Any:
        """Pinned memory."""
        return _torch().empty(shape, dtype=dtype, pin_memory=True)

    def lend(self, tensor: Any, stream: Any) -> None:
        """``Tensor.record_stream``."""
        tensor.record_stream(stream)

    def copy(self, stream: Any, target: Any, source: Any) -> None:
        """``Tensor.copy_``. Between devices torch has the current streams of both wait for each other, and the program's need not."""
        torch, landing = _torch(), None
        with contextlib.ExitStack() as current:
            if source.is_cuda and target.is_cuda and source.device != target.device:
                # What lands on a device has a stream there, on which nothing else is queued.
                landing = self._stream(target.device, stream)
                current.enter_context(torch.cuda.stream(landing))
            current.enter_context(torch.cuda.stream(stream))
            target.copy_(source, non_blocking=True)
        if landing is not None:
            # Without access to each other's memory, rows that are not contiguous get their values there at last.
            stream.wait_event(landing.record_event())

    def add(self, stream: Any, target: Any, source: Any) -> None:
        """``Tensor.add_``."""
        with _torch().cuda.stream(stream):
            target.add_(source)


_cuda = Cuda()
_stand_in: Streams | None = None


def let_stand_in(streams: Streams | None) -> None:
    """For tests: let tensors be on the devices that ``streams`` names, or no more."""
    global _stand_in
    _stand_in = streams


def streams_of(tensor: Any) -> Streams | None:
    """Whose streams use a tensor's memory; ``None`` for the host's, and for devices that stores do not take."""
    for streams in (_stand_in, _cuda):
        if streams is not None and streams.device_of(tensor) is not None:
            return streams
    return None


def run(
    plan: Plan, streams: Streams, devices: list[Any], memory: Callable[[Piece], Any], outside: Mapping[tuple[str, int], Any]
) -> list[Any]:
    """Queue the steps of a plan, each on its side stream. Returns the events of its steps; ``None`` where nothing waits for one.

    Args:
        devices: the libraries', in the plan's order.
        memory: the tensor of a piece.
        outside: the event of each ``begin``, by its device, and of each ``ready``, by its part; none if nothing has to be waited for.
    """
    events = list[Any]()
    for number, step in enumerate(plan.steps):
        if step.side is None or step.source is None:
            events.append(outside.get((step.act, step.target.part if step.act == "ready" else step.target.device)))
            continue
        stream, target, source = streams.side(devices[step.side.device], step.side), memory(step.target), memory(step.source)
        for earlier in step.waits:
            if events[earlier] is not None:
                streams.wait(stream, events[earlier])
        for piece, tensor in ((step.target, target), (step.source, source)):
            if piece.role == "arrived" and streams.device_of(tensor) is not None:
                streams.lend(tensor, stream)
        (streams.add if step.act == "add" else streams.copy)(stream, target, source)
        events.append(streams.record(stream) if number in plan.awaited else None)
    return events


def _torch() -> Any:
    return sys.modules["torch"]
