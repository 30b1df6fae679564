"""Tensors in an accelerator's memory: which ones a group takes, and how its calls fit into the program's streams.

A call waits for what the program has queued on its current stream before, and ``work.wait()`` has the current stream wait for the
result, as NCCL's does. The host waits until the last copy is queued, unless the device waits for values in the host's memory. Values
pass through registered memory of the host, on streams of the group's own. The native module has the copies and their order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Protocol

import torch
import torch.distributed as dist

from .. import errors
from .._herringbone import Completions, Device, Pending, StagedPending
from .lanes import CudaLane, Lane

__all__ = [
    "Accelerator",
    "DeviceHandle",
    "StagedHandle",
    "accelerator_of",
    "let_stand_in",
    "located",
    "one_accelerator",
    "tell_earlier",
]


class Accelerator(Protocol):
    """What is asked of the library whose tensors lie in an accelerator's memory."""

    device_type: str
    """As torch calls it."""

    def device(self, tensor: torch.Tensor) -> Device:
        """The native device that has the tensor's memory, the same object for the same device."""

    def stream(self, tensor: torch.Tensor) -> int:
        """The handle of the program's current stream on the tensor's device."""

    def lend(self, tensors: Iterable[torch.Tensor], streams: Iterable[int]) -> None:
        """Tell the owner of the tensors' memory that these streams use it from now on."""

    def reach(self, pending: StagedPending) -> None:
        """Return when torch's next operations come behind the result for which the current stream waits."""

    def is_capturing(self, tensor: torch.Tensor) -> bool:
        """Whether the program's current stream on the tensor's device is captured for a graph."""

    def local_backend(self) -> str | None:
        """The backend of torch's that is made for its tensors, if this torch has it."""

    def identity(self, tensor: torch.Tensor) -> str:
        """What no other device of the host is called."""

    def lane(self, tensor: torch.Tensor) -> Lane | None:
        """New streams for steps of torch's backends on the tensor's device, if there can be any."""


class Cuda:
    """NVIDIA's, through torch."""

    device_type = "cuda"

    def device(self, tensor: torch.Tensor) -> Device:
        """The device of the tensor's index.

        Raises:
            UnsupportedError: its driver cannot be used.
        """
        return _cuda_device(located(tensor).get_device())

    def stream(self, tensor: torch.Tensor) -> int:
        """The driver's handle of torch's current stream."""
        handle: int = torch.cuda.current_stream(located(tensor).device).cuda_stream
        return handle

    def lend(self, tensors: Iterable[torch.Tensor], streams: Iterable[int]) -> None:
        """Have torch's allocator wait for the streams before it gives the memory to others."""
        for tensor in (located(tensor) for tensor in tensors):
            for handle in streams:
                tensor.record_stream(_stream_of_torch(handle, tensor.get_device()))

    def reach(self, pending: StagedPending) -> None:
        """Torch queues on the current stream, which waits for the result."""

    def is_capturing(self, tensor: torch.Tensor) -> bool:
        """As torch knows."""
        with torch.cuda.device(tensor.device):
            return torch.cuda.is_current_stream_capturing()

    def local_backend(self) -> str | None:
        """NCCL."""
        return "nccl" if dist.is_nccl_available() else None

    def identity(self, tensor: torch.Tensor) -> str:
        """The device's UUID."""
        return str(torch.cuda.get_device_properties(tensor.device).uuid)

    def lane(self, tensor: torch.Tensor) -> CudaLane:
        """Streams of torch's."""
        return CudaLane(tensor.device)


@functools.cache
def _stream_of_torch(handle: int, index: int) -> torch.cuda.Stream:
    return torch.cuda.ExternalStream(handle, torch.device("cuda", index))  # type: ignore[no-untyped-call]


@functools.cache
def _cuda_device(index: int) -> Device:
    try:
        return Device.cuda(index)
    except RuntimeError as error:
        raise errors.UnsupportedError(
            f"herringbone moves tensors of cuda:{index} by NVIDIA's driver: {error}; pass tensor.cpu(), or use the backend nccl"
        ) from None


_cuda = Cuda()
_stand_in: Accelerator | None = None


def let_stand_in(accelerator: Accelerator | None) -> None:
    """For tests: let ``accelerator`` take the CPU's tensors as if they lay in its memory, or no more."""
    global _stand_in
    _stand_in = accelerator


def accelerator_of(tensor: torch.Tensor) -> Accelerator | None:
    """What has the tensor's memory, if that is an accelerator whose tensors groups take."""
    if tensor.is_cpu:
        return _stand_in
    if tensor.is_cuda:
        return _cuda
    place = located(tensor)
    return None if place is tensor else accelerator_of(place)


def located(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the device of ``tensor``, even if this replaces one without memory (``tensors.Lacking``)."""
    place: torch.Tensor = getattr(tensor, "beside", tensor) if tensor.is_meta else tensor
    return place


def one_accelerator(name: str, read: torch.Tensor | None, write: torch.Tensor | None) -> Accelerator | None:
    """What has the memory of both tensors of a call; ``None`` for the host.

    Raises:
        ArgumentError: they lie on different devices.
    """
    if read is not None and write is not None and read.device != write.device and not (read.is_meta or write.is_meta):
        raise errors.ArgumentError(
            f"{name}: the input is on {read.device} and the output on {write.device}; pass tensors of one device"
        )
    tensor = write if read is None else read
    return None if tensor is None else accelerator_of(tensor)


class DeviceHandle(Protocol):
    """A running operation on an accelerator's memory, in the form of an operation on the host's."""

    def earlier(self) -> BaseException | None:
        """Why an earlier call has failed, if the program had not asked for that when this one was made."""

    def order(self, timeout: float | None) -> bool:
        """Have the current stream wait for the result. With a timeout the host waits for it first: false if it is not there by then.

        Raises:
            HerringboneError: the operation has failed.
        """

    def reach(self) -> None:
        """Return once what torch does next comes behind the result."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is in the accelerator's memory; false if it is not after ``timeout`` seconds."""

    def done(self) -> bool:
        """Whether it is over, well or not."""

    def error(self) -> BaseException | None:
        """Why it has failed; ``None`` while it runs and where it succeeded."""

    def source(self) -> int | None:
        """The rank whose message a receive has got, once it has."""

    def notify(self, completions: Completions, token: int) -> None:
        """Put ``token`` into ``completions`` once this is over."""


class StagedHandle:
    """A running operation on an accelerator's memory, in the form of an operation on the host's."""

    __slots__ = ("_accelerator", "_earlier", "_pending", "_tensor")

    def __init__(
        self, pending: StagedPending, accelerator: Accelerator, tensor: torch.Tensor, earlier: BaseException | None = None
    ) -> None:
        """``tensor`` is one of the operation's; ``earlier`` is the failure of an earlier call that was no such operation."""
        self._pending, self._accelerator, self._tensor, self._earlier = pending, accelerator, tensor, earlier

    def earlier(self) -> BaseException | None:
        """Why an earlier call has failed, if the program had not asked for that when this one was made."""
        return self._earlier or self._pending.earlier()

    def order(self, timeout: float | None) -> bool:
        """Have the current stream wait for the result. With a timeout the host waits for it first: false if it is not there by then.

        Raises:
            HerringboneError: the operation has failed.
        """
        if timeout is not None and not self._pending.wait(timeout):
            return False
        return self._pending.wait_on_stream(self._accelerator.stream(self._tensor))

    def reach(self) -> None:
        """Return once what torch does next comes behind the result."""
        self._accelerator.reach(self._pending)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is in the accelerator's memory; false if it is not after ``timeout`` seconds."""
        return self._pending.wait(timeout)

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._pending.done()

    def error(self) -> BaseException | None:
        """Why it has failed; ``None`` while it runs and where it succeeded."""
        return self._pending.error()

    def source(self) -> int | None:
        """The rank whose message a receive has got, once it has."""
        return self._pending.source()

    def notify(self, completions: Completions, token: int) -> None:
        """Put ``token`` into ``completions`` once this is over."""
        self._pending.notify(completions, token)


def tell_earlier(handles: Iterable[Pending | DeviceHandle]) -> None:
    """Raise what earlier calls have failed with, if the program has not asked for it.

    The operations of ``handles`` were started all the same, so that this rank makes the calls that the others make.
    """
    for handle in handles:
        error = None if isinstance(handle, Pending) else handle.earlier()
        if error is not None:
            raise error
