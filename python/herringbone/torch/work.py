"""The handle that torch gives its users for a running collective."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from .. import errors
from .._herringbone import Communicator, Pending
from ..advice import advised
from .callbacks import CallbackThreads
from .calls import CALLS, hidden
from .devices import DeviceHandle
from .futures import take_turns
from .measured import Measured
from .streams import Points, cuda_devices, follow, on_streams, points_here, streams_here

__all__ = ["Finished", "Numbered", "Received", "StagedWork", "Work", "torch_error"]

NO_TIMEOUT = timedelta(0)

MESSAGES = frozenset(CALLS[name].number for name in ("send", "recv", "recv_anysource"))
"""The calls that end when another rank's program reaches theirs, in no fixed order with collectives."""


class Numbered(dist.Work):
    """The call that a work belongs to, which torch asks of every work."""

    op_type = 100
    """A value of torch's ``OpType``; this one is "unknown"."""

    sequence = 0
    """The call's number in its group, from 1."""

    group: Communicator | None = None
    """The group of the call."""

    has_messages = False
    """Whether it includes messages between two ranks."""

    _measured: Measured | None = None

    def _take_turns(self, future: torch.futures.Future[list[torch.Tensor]], devices: tuple[torch.device, ...] = ()) -> None:
        """Let the callbacks of ``future``, this work's, match between ranks."""
        if self.group is not None:
            take_turns(future, self.group, self.has_messages or self.op_type in MESSAGES, devices)

    def _get_op_type(self) -> int:
        return self.op_type

    def _get_sequence_number(self) -> int:
        return self.sequence

    def _get_duration(self) -> float:
        """Milliseconds from the call to its end, if the group's timing is on and the call has ended."""
        milliseconds = None if self._measured is None else self._measured.milliseconds
        if milliseconds is None:
            raise RuntimeError(
                "a work has a duration once it has ended, if group._enable_collectives_timing() was called before the call"
            )
        return milliseconds


@hidden
class Work(Numbered):
    """One collective of this process, made of one or more operations of the engine."""

    # The default for works without further steps; others have their own.
    _lock = threading.RLock()
    _future: torch.futures.Future[list[torch.Tensor]] | None = None
    _streams: tuple[torch.cuda.Stream, ...] = ()
    """Those that were current when it was made, for steps that nobody waits for."""
    _settled: Points = ()
    """The ends of its further steps on the streams where they were made."""

    def __init__(
        self,
        handles: Sequence[Pending | DeviceHandle],
        names: Sequence[str],
        tensors: list[torch.Tensor],
        finish: Sequence[Callable[[], object]],
        threads: CallbackThreads,
    ) -> None:
        """``handles`` are the operations that can still be running, ``names`` their names in errors, and ``finish`` the steps
        after their success, such as copying a staged result. Without handles everything has finished, including the steps.
        """
        super().__init__()
        self._handles = handles
        self._names = names
        self._tensors = tensors
        self._finish = finish
        self._threads = threads
        if finish:
            self._lock = threading.RLock()
            self._streams = streams_here(cuda_devices(tensors))

    @classmethod
    def of_all(cls, works: Sequence[Work], threads: CallbackThreads) -> Work:
        """The work that is finished once all ``works`` are."""
        handles = [handle for work in works for handle in work._handles]
        names = [name for work in works for name in work._names]
        tensors = [tensor for work in works for tensor in work._tensors]
        joined = cls(handles, names, tensors, [work._settle for work in works if work._finish], threads)
        joined.has_messages = any(work.has_messages or work.op_type in MESSAGES for work in works)
        return joined

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the collective has finished, without the GIL.

        For tensors in an accelerator's memory the current stream waits for the result, and the host until the last copy is queued. An
        error that comes later is raised by the group's next call on that device, and :meth:`exception` has it.

        A positive ``timeout`` limits this wait, not the collective: it continues, and you can wait for it again. The host waits then.

        Raises:
            HerringboneError: the collective failed, or the wait took longer than ``timeout``. The error is
                also a ``torch.distributed.DistBackendError``.
        """
        if not isinstance(timeout, timedelta):
            raise TypeError(f"wait: timeout is a {type(timeout).__name__}; pass a datetime.timedelta(seconds=...)")
        if not self._handles:
            return True  # it had finished when it was made
        try:
            self._wait(timeout)
        finally:
            if self._measured is not None and self.is_completed():
                self._measured.end()
        return True

    def _wait(self, timeout: timedelta) -> None:
        limit = timeout.total_seconds()
        deadline = time.monotonic() + limit if limit > 0 else None
        for handle, name in zip(self._handles, self._names):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                ended = handle.wait(left) if isinstance(handle, Pending) else handle.order(left)
                if not ended:
                    raise errors.OperationTimeoutError(
                        f"{name} timed out: it is still running after the wait's timeout of {limit:g} s; it can be "
                        "waited for again"
                    )
            except errors.HerringboneError as error:
                raise torch_error(error, name) from None
        self._settle()

    def measure(self, measured: Measured) -> None:
        """Let ``measured`` end with this work."""
        self._measured = measured
        self._threads.watch(self._handles, measured.end)

    def is_completed(self) -> bool:
        """Whether it has finished, successfully or not; if so, the results are in their tensors."""
        if not all(handle.done() for handle in self._handles):
            return False
        if self.exception() is None:
            self._settle()
        return True

    def is_success(self) -> bool:
        """Whether it has finished without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; ``None`` while it runs and after success."""
        for handle, name in zip(self._handles, self._names):
            error = handle.error()
            if error is not None:
                return torch_error(error, name)
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result once the collective has finished."""
        return list(self._tensors)

    def synchronize(self) -> None:
        """The same as :meth:`wait`: the current stream waits for results in an accelerator's memory."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the result tensors; a failed collective completes it with the error.

        Callbacks run on their own threads and can block. They can start collectives: ranks match these by the order in which
        the program has passed the callbacks, separately from the program's own collectives. For CUDA tensors the current stream of
        a callback is the one that was current when the program passed it.
        """
        with self._lock:
            if self._future is None:
                # Completing through `then` makes a failure an error for C++ waiters, too: they would see an exception stored by
                # `Future.set_exception` as a value.
                trigger: torch.futures.Future[None] = torch.futures.Future()
                devices = cuda_devices(self._tensors)
                self._future = trigger.then(functools.partial(self._conclude, streams_here(devices)))
                self._take_turns(self._future, devices)
                self._threads.watch(self._handles, lambda: trigger.set_result(None))
            return self._future

    def _conclude(self, streams: tuple[torch.cuda.Stream, ...], _: object) -> list[torch.Tensor]:
        with on_streams(streams):
            self.wait()
        return self.result()

    def _settle(self) -> None:
        with self._lock:
            if self._finish:
                take_steps_of(self._handles, self._finish)
                self._finish = ()
                self._settled = points_here(cuda_devices(self._tensors))
            else:
                follow(self._settled)  # the steps may have been made on another stream


@hidden
class StagedWork(Work):
    """A collective with further steps after its success, which are made even if its caller drops it without waiting."""

    def __del__(self) -> None:
        if self._finish:
            handles, steps, streams = self._handles, self._finish, self._streams
            # A forked child has the parent's works, but no operations.
            with contextlib.suppress(errors.HerringboneError):
                self._threads.watch(handles, lambda: take_steps(handles, steps, streams))


@hidden
class Received(StagedWork):
    """A message that this process receives."""

    def source_rank(self) -> int:
        """The group rank that sent the message, once it has arrived."""
        self.wait()
        handle = self._handles[0]
        if not isinstance(handle, Pending):
            handle.wait()
        source = handle.source()
        assert source is not None
        return source

    _source_rank = source_rank


def take_steps_of(handles: Sequence[Pending | DeviceHandle], steps: Sequence[Callable[[], object]]) -> None:
    """Bring results to their places, behind the operations that give them."""
    for handle in handles:
        if not isinstance(handle, Pending):
            handle.reach()
    for step in steps:
        step()


def take_steps(
    handles: Sequence[Pending | DeviceHandle], steps: Sequence[Callable[[], object]], streams: tuple[torch.cuda.Stream, ...]
) -> None:
    """Bring results to their places on these streams, if all has gone well; there is nobody to hear of an error."""
    if all(handle.error() is None for handle in handles):
        with contextlib.suppress(RuntimeError), on_streams(streams):
            take_steps_of(handles, steps)


@hidden
class Finished(Numbered):
    """A collective that had succeeded before its call returned.

    It has no ``__init__`` of its own, which would take longer than the rest: the code that makes it sets ``tensors``.
    """

    tensors: list[torch.Tensor]
    """The tensors with the result."""

    def measure(self, measured: Measured) -> None:
        """True, because it has finished."""
        self._measured = measured
        measured.end()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return at once, because it has finished."""
        return True

    def is_completed(self) -> bool:
        """True, because it has finished."""
        return True

    def is_success(self) -> bool:
        """True, because it has succeeded."""
        return True

    def exception(self) -> BaseException | None:
        """None, because it has succeeded."""
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result."""
        return list(self.tensors)

    def synchronize(self) -> None:
        """Return at once, because it has finished."""

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A completed future with the result tensors."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result(self.result())
        self._take_turns(future)
        return future


_torch_types: dict[type[BaseException], type[BaseException]] = {}


def torch_error(error: BaseException, name: str = "") -> BaseException:
    """``error`` as an instance of its own class and of ``torch.distributed.DistBackendError``.

    Its text names ``name``, torch's collective, even where the engine's has another name.
    """
    kind = type(error)
    if not issubclass(kind, errors.HerringboneError) or issubclass(kind, dist.DistBackendError):
        return error
    if kind not in _torch_types:
        body = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        _torch_types[kind] = type(kind.__name__, (kind, dist.DistBackendError), body)
    text, *values = error.args
    text = advised(text, "torch")
    own = text.split("the ranks disagree", 1)[0]
    return _torch_types[kind](text if name in own else f"{name}: {text}", *values)
