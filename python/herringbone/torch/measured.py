"""The time that a call takes, for the profiler and for ``Work._get_duration``.

TorchScript reads annotations as they are, so they are not postponed here, and has none of its own.
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

    A profiler takes the end of an event from a thread that has its state, and calls the event asynchronous if that is
    another thread than the one which began it. torch's C++ backends hand the state on. From Python only TorchScript's
    forks do: a fork that waits for a future goes on elsewhere, with the state of the thread that forked. ``None`` where
    TorchScript cannot be had, as without this file's source.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.ignore(_finish)
        try:
            return torch.jit.script(_fork)
        except (OSError, RuntimeError):
            return None


class Measured:
    """What a call's work tells when it ends."""

    def __init__(self, name: str, inputs: list[torch.Tensor]) -> None:
        """``name`` and ``inputs`` are the profiler's, if it is on."""
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
