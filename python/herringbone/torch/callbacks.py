"""The threads that complete futures.

A future's callbacks are the user's code: they can take long, and they can start another collective and block on
its future. So they never run on the engine's threads, and never all on one thread. A thread that takes a finished operation
from the queue first makes sure that another thread waits there.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from .._herringbone import Completions, Pending
from .devices import DeviceHandle

__all__ = ["CallbackThreads", "callback_threads", "close_callback_threads"]

IDLE_AT_MOST = 4
"""The most waiting threads: further ones end. A new thread is started whenever all are busy."""

EXIT_SECONDS = 1.0
"""How long the end of the process waits for each callback that is still running."""


class CallbackThreads:
    """A pool that grows while its threads are busy or blocked."""

    def __init__(self) -> None:
        self._queue = Completions()
        self._tokens = itertools.count()
        self._watched: dict[int, tuple[Iterator[Pending | DeviceHandle], Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        with self._lock:
            self._start_one()

    def watch(self, handles: Sequence[Pending | DeviceHandle], complete: Callable[[], None]) -> None:
        """Call ``complete`` once all ``handles`` have finished: here if they have, else on a thread of this pool."""
        token = next(self._tokens)
        self._watched[token] = (iter(handles), complete)
        self._advance(token)

    def run(self, function: Callable[[], None]) -> None:
        """Call ``function`` on a thread of this pool."""
        token = next(self._tokens)
        self._watched[token] = (iter(()), function)
        self._queue.put(token)

    def close(self) -> None:
        """End the threads; a running callback gets a moment to return."""
        self._queue.close()
        for thread in tuple(self._threads):
            if thread is not threading.current_thread():
                thread.join(EXIT_SECONDS)

    def _start_one(self) -> None:
        """Add a waiting thread; the caller holds the lock."""
        thread = threading.Thread(target=self._serve, name="herringbone-callbacks", daemon=True)
        self._threads.add(thread)
        self._idle += 1
        thread.start()

    def _serve(self) -> None:
        while (token := self._queue.next()) is not None:
            with self._lock:
                self._idle -= 1
                if self._idle == 0:
                    self._start_one()
            self._advance(token)
            with self._lock:
                if self._idle >= IDLE_AT_MOST:
                    break
                self._idle += 1
        self._threads.discard(threading.current_thread())

    def _advance(self, token: int) -> None:
        handles, complete = self._watched[token]
        for handle in handles:
            if not handle.done():
                handle.notify(self._queue, token)
                return
        del self._watched[token]
        complete()


_pool: CallbackThreads | None = None


def callback_threads() -> CallbackThreads:
    """This process's pool."""
    global _pool
    if _pool is None:
        _pool = CallbackThreads()
    return _pool


def close_callback_threads() -> None:
    """End this process's pool."""
    if _pool is not None:
        _pool.close()


def _forget_pool() -> None:
    """In a forked child, where none of the threads exists."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)
