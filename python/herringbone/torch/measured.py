"""The time that a call takes, for the profiler and for ``Work._get_duration``.

TorchScript reads annotations as they are written, so they are not postponed here.
"""

# mypy: disable-error-code="no-untyped-call,no-any-return"

import functools
import itertools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch._C._profiler import _RecordFunctionFast

__all__ = ["Measured"]

_running: dict[int, Any] = {}
"""The profiler's records of calls that have not ended, by number."""

_numbers = itertools.count()


def _finish(number: int) -> int:
    _running.pop(number).__exit__(None, None, None)
    return number


def _finish_after(trigger: torch.jit.Future[torch.Tensor], number: int) -> int:
    torch.jit.wait(trigger)
    return _finish(number)


def _fork(trigger: torch.jit.Future[torch.Tensor], number: int) -> torch.jit.Future[int]:
    return torch.jit.fork(_finish_after, trigger, number)


@functools.cache
def _finisher() -> Callable[..., Any] | None:
    """Ends a record once a future is complete, in the profiler's state of the thread that called this.

    A profiler accepts the end of an event only from a thread that has its state, and marks the event as asynchronous if this is
    not the thread that began it. torch's C++ backends pass the state on. From Python only TorchScript's forks do: a fork
    that waits for a future continues on another thread, with the state of the thread that forked. ``None`` if TorchScript is
    not available, for instance without this file's source.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.ignore(_finish)
        try:
            return torch.jit.script(_fork)
        except (OSError, RuntimeError):
            return None


class Measured:
    """The measurement of a call, which ends with its work."""

    def __init__(self, name: str, inputs: list[torch.Tensor]) -> None:
        """``name`` and ``inputs`` are for the profiler, if it is on."""
        self.milliseconds: float | None = None
        """None until it has ended."""
        self._lock = threading.Lock()
        self._trigger: torch.futures.Future[None] = torch.futures.Future()
        self._ended: torch.futures.Future[Any] = self._trigger
        finisher = _finisher() if _profiler_enabled() else None
        self._began = time.perf_counter()
        if finisher is not None:
            number = next(_numbers)
            record = _running[number] = _RecordFunctionFast(name, inputs)
            record.__enter__()
            self._ended = finisher(self._trigger, number)

    def end(self) -> None:
        """The call has finished; later calls change nothing."""
        with self._lock:
            if self.milliseconds is None:
                self.milliseconds = (time.perf_counter() - self._began) * 1000
                self._trigger.set_result(None)
        self._ended.wait()
