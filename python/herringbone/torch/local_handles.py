"""Handles of calls whose steps a thread makes, for works."""

from __future__ import annotations

import threading

import torch

from .._herringbone import Completions
from .lanes import Lane, Point

__all__ = ["LocalHandle"]


class LocalHandle:
    """A running call whose ranks add up on their hosts first, as works know operations on an accelerator's memory."""

    def __init__(self, lane: Lane, tensor: torch.Tensor, earlier: BaseException | None = None) -> None:
        """``tensor`` is one on the call's device; ``earlier`` is what :meth:`earlier` returns."""
        self._lane, self._tensor, self._earlier = lane, tensor, earlier
        self._queued, self._over = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._end: Point | None = None
        self._error: BaseException | None = None
        self._is_known = False
        self._told: list[tuple[Completions, int]] = []

    @property
    def end(self) -> Point | None:
        """Behind which the result is there, once all steps are queued."""
        return self._end

    def is_queued(self) -> bool:
        """Whether all steps are queued, or none will be any more."""
        return self._queued.is_set()

    def queue(self, end: Point) -> None:
        """All steps are queued, up to the point."""
        self._end = end
        self._queued.set()

    def finish(self, error: BaseException | None = None) -> None:
        """End the call, with an error or without; later calls of this do nothing."""
        with self._lock:
            if self._over.is_set():
                return
            self._error = error
            self._over.set()
            self._queued.set()
            told, self._told = self._told, []
        for completions, token in told:
            completions.put(token)

    def order(self, timeout: float | None) -> bool:
        """Have the current stream wait for the result. The host waits until all steps are queued, and with a timeout for the
        result: false if it is not there by then.

        Raises:
            HerringboneError: the call has failed.
        """
        if timeout is not None and not self.wait(timeout):
            return False
        self._queued.wait()
        self._check()
        self.follow()
        return True

    def follow(self) -> None:
        """Have the current stream wait for the result, if there is one. A failure is still to be told."""
        self._queued.wait()
        if self._end is not None:
            self._lane.follow(self._end, self._tensor)

    def earlier(self) -> BaseException | None:
        """Why an earlier call has failed, if the program had not asked for that when this one was made."""
        return self._earlier

    def unasked(self) -> BaseException | None:
        """Why it has failed, for a later call to tell, if the program has not asked."""
        if self._error is None or self._is_known:
            return None
        text, *values = self._error.args
        return type(self._error)(f"an earlier call has failed, {text}", *values)

    def reach(self) -> None:
        """Steps of the host are done once they are queued; else torch queues on the current stream, which waits."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is in the accelerator's memory; false if it is not after ``timeout`` seconds."""
        if not self._over.wait(timeout):
            return False
        self._check()
        return True

    def _check(self) -> None:
        error = self.error()
        if error is not None:
            raise error

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set()

    def error(self) -> BaseException | None:
        """Why it has failed; ``None`` while it runs and where it succeeded."""
        self._is_known |= self._error is not None
        return self._error

    def source(self) -> int | None:
        """It is no message."""
        return None

    def notify(self, completions: Completions, token: int) -> None:
        """Put ``token`` into ``completions`` once this is over."""
        with self._lock:
            if not self._over.is_set():
                self._told.append((completions, token))
                return
        completions.put(token)
