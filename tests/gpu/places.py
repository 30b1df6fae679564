"""Where the checks have their tensors: on a GPU, or on the accelerator of the tests, which stands for one."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

ROOT = pathlib.Path(__file__).resolve().parents[2]
CYCLES = 200_000_000
"""That a kernel spins: about a tenth of a second."""


class Gpu:
    """The first GPU, which all ranks of the job share."""

    is_real = True
    scale = 1
    """By how much lengths are divided."""

    def __init__(self) -> None:
        torch.cuda.set_device(0)
        self.device = torch.device("cuda", 0)

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor with these values of the CPU."""
        return values.to(self.device)

    def write_late(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Queue a kernel that takes a while, and then writes the values."""
        there = values.to(self.device)
        torch.cuda._sleep(CYCLES)
        tensor.copy_(there, non_blocking=True)

    def synchronize(self) -> None:
        """Return once the device has done everything."""
        torch.cuda.synchronize()

    def allocate(self, number: int) -> None:
        """Have the driver allocate and free memory of the device, and register memory of the host."""
        length = (64 << 20) + 4096 * number
        taken = torch.empty(length, dtype=torch.uint8, device=self.device)
        del taken
        torch.cuda.empty_cache()
        torch.empty(length // 16, dtype=torch.uint8, pin_memory=True)

    @contextlib.contextmanager
    def own_stream(self) -> Iterator[None]:
        """Let the body's current stream be a new one."""
        with torch.cuda.stream(torch.cuda.Stream()):
            yield

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Capture the body's stream for a graph, which is thrown away."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield

    def hazards(self) -> list[str]:
        """A GPU tells of none."""
        return []

    def end(self) -> None:
        """Be used no more."""


class StandInPlace:
    """The accelerator that the native module simulates, whose tensors are the CPU's."""

    is_real = False
    scale = 50

    def __init__(self) -> None:
        sys.path.append(str(ROOT / "python" / "tests" / "workers"))
        from simulated import StandIn

        self.device = torch.device("cpu")
        self._simulated = StandIn(dist.get_rank() + 31)
        self.synchronize, self.own_stream = self._simulated.synchronize, self._simulated.own_stream
        self.hazards, self.end = self._simulated.hazards, self._simulated.end

    def put(self, values: torch.Tensor) -> torch.Tensor:
        """A copy of them."""
        return values.clone()

    def write_late(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Queue that the program's stream writes them, once streams move again."""
        self._simulated.rest()
        self._simulated.write(tensor, values)
        time.sleep(0.01)
        self._simulated.go_on()

    def allocate(self, number: int) -> None:
        """It has no memory of its own."""

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Say that the program's stream is captured."""
        self._simulated.capture(True)
        try:
            yield
        finally:
            self._simulated.capture(False)
