"""Messages from any source: the senders announce theirs, and the receiver picks one.

A message goes through the group of its sender and receiver, in which the sender numbers it. So the receiver looks
whether anything has come in each of these groups, and receives where it has. Nobody else decides, and a sender does
not know whether it was picked or named.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import torch

from .. import errors
from .._herringbone import Communicator
from .measured import Measured
from .work import NO_TIMEOUT, Numbered, Work, torch_error

__all__ = ["AnySource", "AnySourceWork"]

SHORTEST_SECONDS, LONGEST_SECONDS = 20e-6, 1e-3
"""Between two looks: more and more while nothing comes."""


class AnySource:
    """The receives from any source of one group in this process, in the order in which they were called."""

    def __init__(self) -> None:
        self._pending: deque[AnySourceWork] = deque()
        self._lock = threading.RLock()
        self._looks = False

    def add(self, work: AnySourceWork) -> None:
        """Let ``work`` pick a message after those that were added before. A thread looks while any is pending."""
        with self._lock:
            self._pending.append(work)
            self.look()
            if self._pending and not self._looks:
                self._looks = True
                threading.Thread(target=self._serve, name="herringbone-any-source", daemon=True).start()

    def look(self) -> None:
        """Let each pending work pick a message, if one has come that no earlier one may have."""
        with self._lock:
            tags: set[int] = set()
            for work in tuple(self._pending):
                if work.tag not in tags and work.pick():
                    self._pending.remove(work)
                else:
                    tags.add(work.tag)

    def _serve(self) -> None:
        pause = SHORTEST_SECONDS
        while True:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SECONDS)
            with self._lock:
                self.look()
                if not self._pending:
                    self._looks = False
                    return


class AnySourceWork(Numbered):
    """A message that one of several ranks sends."""

    def __init__(
        self,
        pending: AnySource,
        tag: int,
        pairs: dict[int, Communicator],
        receive: Callable[[int], Work],
        seconds: float,
    ) -> None:
        """``pairs`` are the groups with each rank that may send; ``receive`` receives from one of these."""
        super().__init__()
        self.tag = tag
        self._pending = pending
        self._pairs = pairs
        self._receive = receive
        self._deadline = time.monotonic() + seconds
        self._seconds = seconds
        self._picked: Work | None = None
        self._source: int | None = None
        self._error: BaseException | None = None
        self._future: torch.futures.Future[list[torch.Tensor]] | None = None
        self._measure: Measured | None = None

    def pick(self) -> bool:
        """Receive from the first rank of which something has come. Returns whether there is no more to pick."""
        lost: errors.HerringboneError | None = None
        for source, pair in tuple(self._pairs.items()):
            try:
                arrived = pair.has_arrived()
            except errors.HerringboneError as error:
                lost = error
                del self._pairs[source]
                continue
            if arrived:
                try:
                    self._picked, self._source = self._receive(source), source
                except errors.HerringboneError as error:
                    self._error = error
                return True
        if not self._pairs:
            self._error = lost or errors.ClosedError("recv from any source: this rank is alone in its group")
        elif time.monotonic() >= self._deadline:
            missing = [f"rank {source}" for source in self._pairs]
            self._error = errors.OperationTimeoutError(
                f"recv from any source timed out after {self._seconds:g} s: no message with tag {self.tag} has come "
                f"from {', '.join(missing)}; does any of them send to this rank with this tag?",
                missing,
            )
        return self._error is not None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until the message is here.

        Raises:
            HerringboneError: no rank can send any more, or none has in time, or the message failed.
        """
        limit = timeout.total_seconds()
        deadline = time.monotonic() + limit if limit > 0 else None
        pause = SHORTEST_SECONDS
        while self._picked is None and self._error is None:
            self._pending.look()
            if self._picked is not None or self._error is not None:
                break
            if deadline is not None and time.monotonic() >= deadline:
                text = f"recv from any source timed out after the wait's {limit:g} s; it can be waited for again"
                raise torch_error(errors.OperationTimeoutError(text, []))
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SECONDS)
        try:
            if self._error is not None:
                raise torch_error(self._error, "recv from any source") from None
            assert self._picked is not None
            return self._picked.wait(timeout)
        finally:
            if self._measure is not None:
                self._measure.end()

    def is_completed(self) -> bool:
        """Whether the message is here, or will never be."""
        self._pending.look()
        return self._error is not None or (self._picked is not None and self._picked.is_completed())

    def is_success(self) -> bool:
        """Whether the message is here."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; ``None`` while it runs and where it succeeded."""
        if self._error is not None:
            return torch_error(self._error, "recv from any source")
        return None if self._picked is None else self._picked.exception()

    def result(self) -> list[torch.Tensor]:
        """The tensor that holds the message."""
        self.wait()
        return [] if self._picked is None else self._picked.result()

    def synchronize(self) -> None:
        """The same as :meth:`wait`."""
        self.wait()

    def source_rank(self) -> int:
        """The group rank that sent the message, once it is here."""
        self.wait()
        assert self._source is not None
        return self._source

    _source_rank = source_rank

    def measure(self, measured: Measured) -> None:
        """Let ``measured`` end with this."""
        self._measure = self._measured = measured

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of the message; a failure completes it with the error."""
        if self._future is None:
            trigger: torch.futures.Future[None] = torch.futures.Future()
            self._future = trigger.then(lambda _: self.result())

            def complete() -> None:
                with contextlib.suppress(errors.HerringboneError):
                    self.wait()
                trigger.set_result(None)

            threading.Thread(target=complete, name="herringbone-any-source", daemon=True).start()
        return self._future
