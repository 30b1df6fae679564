"""Lets the workers of a store meet through its servers, without connections to each other."""

from __future__ import annotations

import datetime
import time
import zlib
from typing import Any

from ..errors import ArgumentError, MismatchError, TableError
from ..tables import ParameterServer
from .layout import WORD_BYTES, bytes_of, row_of

__all__ = ["Meeting", "TableStore"]

MESSAGE = 1024
"""Elements of a row with a message."""
MOST_BYTES = (MESSAGE - 1) * WORD_BYTES
"""The longest message."""
ROWS = 1 << 62
WORDS = 4
"""The sums in a barrier: marks of calls, workers, workers whose part has failed, and the ranks of these."""
PAUSE = 0.02
"""Seconds between two checks for a key."""


class Meeting:
    """Barriers of a store's workers, and rank 0's messages to the others.

    A barrier is a step of a sync table: a pull returns once all workers have ended it, except the lost ones.
    """

    def __init__(self, servers: ParameterServer, store: str) -> None:
        """All workers make it for a store with the same name."""
        self._rank = servers.rank
        self._table = servers.table(
            f"{store} meeting", rows=1, width=WORDS, dtype="float64", optimizer="assign", consistency="sync"
        )
        self.tables = [f"{store} meeting", f"{store} message"]
        self._messages = servers.table(f"{store} message", rows=1, width=MESSAGE, dtype="float64", optimizer="assign")
        self.present = servers.workers
        """How many workers were in the last barrier."""
        self.comes_back = self._table.step > 0
        """Whether this worker replaces a lost one."""

    def meet(self, call: str) -> None:
        """Return once all workers have reached the same call.

        Raises:
            MismatchError: on all workers, if they have reached different calls; or a worker's part has :meth:`failed`, as the
                text says.
        """
        total, present, failed, ranks = self._sum(_mark(call), 1, 0, 0)
        if failed:
            raise MismatchError(failure_text(call, int(failed), int(ranks)))
        if total != _mark(call) * present:
            raise MismatchError(
                f"{call}: other workers have made a different call; make the same calls in the same order on all workers"
            )

    def failed(self, call: str) -> str:
        """Reach a call in which this worker's part has failed, so that the others' :meth:`meet` raises. Return once all have
        come.

        Returns:
            The text of the others' error; empty if the call has failed on all.
        """
        _, present, failed, ranks = self._sum(_mark(call), 1, 1, self._rank)
        return "" if failed == present else failure_text(call, int(failed), int(ranks))

    def _sum(self, *words: float) -> list[float]:
        """The sums of all workers' numbers; each of them ends a step for this."""
        import numpy as np

        self._table.push_range(0, np.array([words], np.float64))
        sums: list[float] = self._table.pull_range(0, 1)[0].tolist()
        self.present = int(sums[1])
        return sums

    def wait(self) -> None:
        """Return once the last barrier of this worker is over, even if an earlier process of it has reached that."""
        self.present = int(self._table.pull_range(0, 1)[0][1])

    def outlast(self) -> None:
        """Return once all others have left. Their barriers do not wait for this worker."""
        while self._sum(0, 0, 0, 0)[1]:
            pass

    def close(self) -> None:
        """Leave: the others' barriers do not wait for this worker."""
        self._table.close()
        self._messages.close()

    def tell(self, message: Any) -> None:
        """Let the others read an array of bytes; if it is too long, only its length."""
        import numpy as np

        fits = message.size <= MOST_BYTES
        row = row_of(message if fits else np.zeros(0, np.uint8), MESSAGE)
        row[0] = message.size
        self._messages.push_range(0, row.reshape(1, MESSAGE))

    def message(self) -> Any:
        """The last message; empty if there was none.

        Raises:
            ArgumentError: it was too long.
        """
        row = self._messages.pull_range(0, 1)[0]
        if row[0] > MOST_BYTES:
            raise ArgumentError(
                f"set_optimizer: rank 0's optimizer with its lr_scheduler has {int(row[0])} bytes, but servers pass on at most "
                f"{MOST_BYTES}: the lr_scheduler is too long; pass one with fewer steps, or a function on all workers"
            )
        return bytes_of(row)


def failure_text(call: str, count: int, ranks: int) -> str:
    """The text for a call that has failed on ``count`` workers; ``ranks`` is the sum of their ranks."""
    who = f"rank {ranks}, whose" if count == 1 else f"{count} of the workers, whose"
    return f"{call}: it has failed on {who} error says why, and has changed nothing on any worker; fix that, and call it again on all"


def _mark(call: str) -> int:
    """The mark of a call in a barrier."""
    return zlib.crc32(call.encode("utf-8", "surrogatepass")) or 1


class TableStore:
    """Keys and values in a table, with the interface of torch's stores: ranks find each other through it."""

    def __init__(self, servers: ParameterServer) -> None:
        self._table = servers.table(
            "ranks", rows=ROWS, width=MESSAGE, dtype="float64", sparse=True, initializer=None, optimizer="assign"
        )

    def set(self, key: str, value: bytes) -> None:
        """Set a key."""
        import numpy as np

        self._table.push(self._row(key), row_of(np.frombuffer(value, np.uint8), MESSAGE).reshape(1, MESSAGE))

    def get(self, key: str) -> bytes:
        """The value of a key, which must be set."""
        return bytes(bytes_of(self._table.pull(self._row(key))[0]).tobytes())

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        """Wait until keys are set.

        Raises:
            TimeoutError: they were not set in time.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        for key in keys:
            while not self._has(key):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"timed out: {key} was not set")
                time.sleep(PAUSE)

    def _has(self, key: str) -> bool:
        try:
            self.get(key)
        except TableError:
            return False
        return True

    @staticmethod
    def _row(key: str) -> Any:
        import numpy as np

        text = key.encode()
        return np.array([(zlib.crc32(text) << 30 | zlib.adler32(text) >> 2) % ROWS], np.uint64)
