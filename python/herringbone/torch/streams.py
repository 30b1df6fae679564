"""The streams on which callbacks compute: the current streams when the program passed them.

A callback runs on a thread of Herringbone's, whose current stream is the device's default one. What it queues there would have no order
with a program that computes on another stream. On the program's own stream it follows earlier work of the program, and later work
follows it, because the future is complete when the callback returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

__all__ = ["Points", "cuda_devices", "follow", "on_streams", "points_here", "streams_here"]

Points = tuple[tuple[torch.device, torch.cuda.Event], ...]
"""Ends of what streams have been given, by their devices."""


def cuda_devices(tensors: Iterable[torch.Tensor]) -> tuple[torch.device, ...]:
    """The devices of CUDA that have some of the tensors."""
    return tuple(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


def streams_here(devices: Iterable[torch.device]) -> tuple[torch.cuda.Stream, ...]:
    """This thread's current stream of each device."""
    return tuple(torch.cuda.current_stream(device) for device in devices)


def points_here(devices: Iterable[torch.device]) -> Points:
    """The end of what each device's current stream has been given."""
    points = []
    for device in devices:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        points.append((device, event))
    return tuple(points)


def follow(points: Points) -> None:
    """Have the current streams wait for the points."""
    for device, event in points:
        event.wait(torch.cuda.current_stream(device))


@contextlib.contextmanager
def on_streams(streams: tuple[torch.cuda.Stream, ...]) -> Iterator[None]:
    """Let these streams be current in the body, and the device of the last one."""
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        yield
