"""How the workers of a store meet through its servers: they need no connection to each other."""

from __future__ import annotations

import zlib
from typing import Any

from ..errors import MismatchError
from ..tables import ParameterServer
from .layout import bytes_of, row_of

__all__ = ["Meeting"]

MESSAGE = 1024
"""Elements of a row with a message."""


class Meeting:
    """Barriers of a store's workers, and what rank 0 tells the others.

    A barrier is a step of a sync table: a pull returns once all workers have ended it, those that are lost and given up aside.
    """

    def __init__(self, servers: ParameterServer, store: str) -> None:
        """All workers make it for a store of the same name."""
        self._table = servers.table(f"{store} meeting", rows=1, width=2, dtype="float64", optimizer="assign", consistency="sync")
        self.tables = [f"{store} meeting", f"{store} message"]
        self._messages = servers.table(f"{store} message", rows=1, width=MESSAGE, dtype="float64", optimizer="assign")
        self.present = servers.workers
        """How many workers were in the last barrier."""
        self.comes_back = self._table.step > 0
        """Whether this worker takes the place of one that was lost."""

    def meet(self, call: str) -> None:
        """Return once all workers have come to the same call.

        Raises:
            MismatchError: they have come to different ones; on all of them.
        """
        import numpy as np

        mark = zlib.crc32(call.encode("utf-8", "surrogatepass")) or 1
        self._table.push_range(0, np.array([[mark, 1]], np.float64))
        total, present = self._table.pull_range(0, 1)[0]
        self.present = int(present)
        if total != mark * present:
            raise MismatchError(f"{call}: other workers have called something else; all make the same calls in the same order")

    def outlast(self) -> None:
        """Return once all others take part no more. Their barriers do without this worker."""
        import numpy as np

        present = 1
        while present:
            self._table.push_range(0, np.zeros((1, 2)))
            present = self._table.pull_range(0, 1)[0][1]

    def tell(self, message: Any) -> None:
        """Have the others read an array of bytes."""
        self._messages.push_range(0, row_of(message, MESSAGE).reshape(1, MESSAGE))

    def message(self) -> Any:
        """What was told last; it is empty if nothing was."""
        return bytes_of(self._messages.pull_range(0, 1)[0])
