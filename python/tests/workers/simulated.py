"""Accelerators for workers: torch's tensors of the CPU stand for their memory, and their streams can rest.

One is the simulated accelerator of the native module, the other CUDA over a driver of the tests (``cuda_driver.c``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

import torch

from herringbone._herringbone import Device, StagedPending
from herringbone.torch.devices import StagedHandle, let_stand_in

__all__ = ["CudaStandIn", "LanedStandIn", "StandIn", "synchronized_waits"]

PATIENCE_SECONDS = 60.0


@contextlib.contextmanager
def synchronized_waits() -> Iterator[None]:
    """Let a wait for a work last in the body until the result is in the tensor, as in a program that then synchronises.

    So cases that were written for tensors of the CPU can read them.
    """
    order = StagedHandle.order

    def order_and_synchronize(self: StagedHandle, timeout: float | None) -> bool:
        return order(self, timeout) and self.wait()

    StagedHandle.order = order_and_synchronize  # type: ignore[method-assign]
    try:
        yield
    finally:
        StagedHandle.order = order  # type: ignore[method-assign]


class StandIn:
    """The accelerator of this process, in the place of the CPU."""

    device_type = "cuda"

    def __init__(self, seed: int, waits_for_values: bool = True) -> None:
        self.native = Device.fake(waits_for_values)
        self.current = self.native.fake_stream()
        self._apart = threading.local()
        self._moves, self._over, self._seed, self._captures = threading.Event(), False, seed, False
        self._moves.set()
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()
        let_stand_in(self)

    def device(self, tensor: torch.Tensor) -> Device:
        return self.native

    def stream(self, tensor: torch.Tensor) -> int:
        return getattr(self._apart, "stream", self.current)

    @contextlib.contextmanager
    def own_stream(self) -> Iterator[None]:
        """Let this thread's current stream be one of its own in the body, as by ``torch.cuda.stream``."""
        self._apart.stream = self.native.fake_stream()
        try:
            yield
        finally:
            del self._apart.stream

    def lend(self, tensors: Iterable[torch.Tensor], streams: Iterable[int]) -> None:
        assert list(streams), "a call has streams of its own"

    def reach(self, pending: StagedPending) -> None:
        # What torch does to a tensor of the CPU is done at once.
        pending.wait()

    def is_capturing(self, tensor: torch.Tensor) -> bool:
        return self._captures

    def local_backend(self) -> str | None:
        return None

    def identity(self, tensor: torch.Tensor) -> str:
        return str(os.getpid())

    def lane(self, tensor: torch.Tensor) -> StandInLane | None:
        return None

    def rest(self) -> None:
        """Let no stream move."""
        self._moves.clear()

    def go_on(self) -> None:
        """Let streams move again."""
        self._moves.set()

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Queue that the program's stream writes values: its kernel."""
        raw = bytes(values.contiguous().view(torch.uint8).flatten().tolist())
        self.native.fake_write(self.current, (tensor.data_ptr(), tensor.nbytes), tensor, raw)

    def synchronize(self) -> None:
        """Return once all streams have done everything."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.native.fake_is_busy():
            assert time.monotonic() < deadline, "a stream waits for ever"
            time.sleep(0.0005)

    def _move(self) -> None:
        draw = random.Random(self._seed)
        while not self._over:
            self._moves.wait()
            if not self.native.fake_step(draw.getrandbits(32)):
                time.sleep(0.0002)

    def capture(self, captures: bool) -> None:
        """Let the program's stream be captured for a graph, or no more."""
        self._captures = captures
        self.native.fake_capture(self.current, captures)

    def hazards(self) -> list[str]:
        """The accesses that have missed a wait."""
        return self.native.fake_hazards()

    def end(self) -> None:
        """Let the CPU's tensors be the CPU's again."""
        self._over = True
        self._moves.set()
        let_stand_in(None)


class LanedStandIn(StandIn):
    """One on which ranks of a host can add up first: by Gloo, which takes the CPU's tensors, so the host makes the steps."""

    def __init__(self, seed: int) -> None:
        """Its streams wait for no values, as those of programs: steps and callbacks share one stream here, which would wait for both."""
        super().__init__(seed, waits_for_values=False)

    def local_backend(self) -> str | None:
        return "gloo"

    def lane(self, tensor: torch.Tensor) -> StandInLane | None:
        return StandInLane(self)


BYTES = torch.zeros(1 << 15, dtype=torch.uint8)
"""Each point has its own byte: memory that a tensor had before would seem to be written before that is over."""

UNUSED = iter(BYTES.split(1))


class StandInPoint:
    """A byte that a stream writes once it comes to it."""

    def __init__(self, native: Device, stream: int) -> None:
        self._byte = next(UNUSED)
        native.fake_write(stream, (self._byte.data_ptr(), 1), self._byte, b"\x01")

    def done(self) -> bool:
        return bool(self._byte.item())


class StandInLane:
    """The program's stream: the stand-in has no waits of one stream for another but those of calls. What Gloo does is done by the host."""

    on_host = True

    def __init__(self, owner: LanedStandIn) -> None:
        self._owner = owner

    def point(self, tensor: torch.Tensor) -> StandInPoint:
        return StandInPoint(self._owner.native, self._owner.current)

    def summing(self, after: Sequence[StandInPoint]) -> contextlib.AbstractContextManager[None]:
        assert all(point.done() for point in after), "the host has not waited for what comes before"
        return contextlib.nullcontext()

    def summed(self) -> StandInPoint:
        return self.end()

    def giving(self, after: StandInPoint) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def end(self) -> StandInPoint:
        return StandInPoint(self._owner.native, self._owner.current)

    def follow(self, point: StandInPoint, tensor: torch.Tensor) -> None:
        pass


class CudaStandIn:
    """CUDA's first device, in the place of the CPU: its driver, ``libcuda.so.1``, is the one of the tests."""

    device_type = "cuda"

    def __init__(self) -> None:
        # Programs do without values. Here they are tried where the driver has them.
        assert not Device.cuda(0).waits_for_values()
        self.native = Device.cuda(0, waits_for_values=True)
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._written: list[torch.Tensor] = []
        let_stand_in(self)

    def device(self, tensor: torch.Tensor) -> Device:
        return self.native

    def stream(self, tensor: torch.Tensor) -> int:
        return 0

    def lend(self, tensors: Iterable[torch.Tensor], streams: Iterable[int]) -> None:
        assert all(streams), "a call has streams of its own"

    def reach(self, pending: StagedPending) -> None:
        pending.wait()

    def is_capturing(self, tensor: torch.Tensor) -> bool:
        return False

    def local_backend(self) -> str | None:
        return None

    def identity(self, tensor: torch.Tensor) -> str:
        return str(os.getpid())

    def lane(self, tensor: torch.Tensor) -> None:
        return None

    def rest(self) -> None:
        """Let no stream move."""
        self._driver.test_rest(1)

    def go_on(self) -> None:
        """Let streams move again."""
        self._driver.test_rest(0)

    def write(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Queue that the program's stream writes values: its kernel."""
        self._written.append(values)
        self._driver.test_write(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(values.data_ptr()), ctypes.c_size_t(values.nbytes)
        )

    def synchronize(self) -> None:
        """Return once the program's stream has done everything."""
        assert self._driver.cuStreamSynchronize(None) == 0

    def capture(self, captures: bool) -> None:
        """Let the program's stream be captured for a graph, or no more."""
        self._driver.test_capture(int(captures))

    def hazards(self) -> list[str]:
        """This one cannot find any."""
        return []

    def end(self) -> None:
        """Let the CPU's tensors be the CPU's again."""
        let_stand_in(None)
