"""The streams on which callbacks compute: the current streams when the program passed them.

A callback runs on a thread of Herringbone's, whose current stream is the device's default one. What it queues there would have no order
with a program that computes on another stream. On the program's own stream it follows earlier work of the program, and later work
follows it, because the future is complete when the callback returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

__all__ = ["cuda_devices", "on_streams", "streams_here"]


def cuda_devices(tensors: Iterable[torch.Tensor]) -> tuple[torch.device, ...]:
    """The devices of CUDA that have some of the tensors."""
    return tuple(dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda))


def streams_here(devices: Iterable[torch.device]) -> tuple[torch.cuda.Stream, ...]:
    """This thread's current stream of each device."""
    return tuple(torch.cuda.current_stream(device) for device in devices)


@contextlib.contextmanager
def on_streams(streams: tuple[torch.cuda.Stream, ...]) -> Iterator[None]:
    """Let these streams be current in the body, and the device of the last one."""
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.enter_context(torch.cuda.stream(stream))
        yield
