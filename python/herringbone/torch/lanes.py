"""Streams of a group's own on an accelerator, for steps that a backend of torch's makes there, and points in them.

A *point* is the end of what a stream has been given so far. The steps of a call run on two streams: one before the
network and one after it. So a call's first steps do not wait for the last steps of an earlier call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

__all__ = ["CudaLane", "Lane", "Point"]


class Point(Protocol):
    """The end of what a stream has been given."""

    def done(self) -> bool:
        """Whether the stream has done all of it."""


class Lane(Protocol):
    """A group's streams on one device. A thread for each stream queues steps; the program's threads use the first and the last method."""

    on_host: bool
    """Whether the host makes the steps: then it waits for streams, and the steps are done once they are queued."""

    def point(self, tensor: torch.Tensor) -> Point:
        """The end of what the program has queued on its current stream on the tensor's device."""

    def summing(self, after: Sequence[Point]) -> AbstractContextManager[None]:
        """Let what the body queues run on the first stream, behind the points."""

    def summed(self) -> Point:
        """The end of what is queued on the first stream."""

    def giving(self, after: Point) -> AbstractContextManager[None]:
        """Let what the body queues run on the second stream, behind the point."""

    def end(self) -> Point:
        """The end of what is queued on the second stream."""

    def follow(self, point: Point, tensor: torch.Tensor) -> None:
        """Have the program's current stream on the tensor's device wait for the point."""


class CudaPoint:
    """An event of CUDA."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def done(self) -> bool:
        """Whether the event has come."""
        return bool(self.event.query())


class CudaLane:
    """Streams of CUDA, by torch."""

    on_host = False

    def __init__(self, device: torch.device) -> None:
        self._first, self._second = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def point(self, tensor: torch.Tensor) -> CudaPoint:
        """An event on the current stream."""
        return CudaPoint(torch.cuda.current_stream(tensor.device))

    @contextlib.contextmanager
    def summing(self, after: Sequence[Point]) -> Iterator[None]:
        """Work on the first stream."""
        for point in after:
            assert isinstance(point, CudaPoint)
            self._first.wait_event(point.event)
        with torch.cuda.stream(self._first):
            yield

    def summed(self) -> CudaPoint:
        """An event on the first stream."""
        return CudaPoint(self._first)

    @contextlib.contextmanager
    def giving(self, after: Point) -> Iterator[None]:
        """Work on the second stream."""
        assert isinstance(after, CudaPoint)
        self._second.wait_event(after.event)
        with torch.cuda.stream(self._second):
            yield

    def end(self) -> CudaPoint:
        """An event on the second stream."""
        return CudaPoint(self._second)

    def follow(self, point: Point, tensor: torch.Tensor) -> None:
        """The current stream waits for the event."""
        assert isinstance(point, CudaPoint)
        torch.cuda.current_stream(tensor.device).wait_event(point.event)
