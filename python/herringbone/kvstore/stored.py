"""The value of a key, and the effect of a push on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dependency import Variable
from .on_devices import DeviceSum
from .sparse import RowSparse
from .values import as_given

__all__ = ["Stored", "Updater"]

Updater = Callable[[Any, Any, Any], object]


class Stored:
    """The value of a key."""

    def __init__(self, value: Any, variable: Variable, rows: Any, is_tensor: bool) -> None:
        self.value = value
        """In the host's memory; :meth:`settled` has the newest."""
        self.held: DeviceSum | None = None
        """The newest value, if it is on devices and the host has not asked for it."""
        self.variable = variable
        self.rows = rows
        """The stored rows of a sparse value; else None."""
        self.is_tensor = is_tensor

    def newest(self) -> Any:
        """The value, where it is: an array, or a :class:`DeviceSum`."""
        return self.value if self.held is None else self.held

    def settled(self) -> Any:
        """The value in the host's memory. The caller is allowed to write the value, or has waited for it."""
        if self.held is not None:
            self.value[...] = self.held.toarray()
            self.held = None
        return self.value

    def hold(self, total: DeviceSum) -> None:
        """Replace the value by a sum that stays on devices."""
        self.held = total

    def apply(self, key: Any, updater: Updater | None, total: Any, rows: Any) -> None:
        """Replace the value by a sum, or let the updater change it. It runs on a thread of the engine, with exclusive access to
        the value.

        If the updater raises, the value is unchanged.

        Args:
            rows: the pushed rows of a sparse value; else None.
        """
        import numpy as np

        if updater is None:
            self.held = None
            self.value[...] = total
            if rows is not None:
                self.rows[:] = rows > 0
            return
        received = as_given(total, self.is_tensor)
        if rows is not None:
            there = np.flatnonzero(rows)
            received = RowSparse(total[there], there, total.shape)
        before = self.settled().copy()
        try:
            updater(key, received, as_given(self.value, self.is_tensor))
        except BaseException:
            self.value[...] = before
            raise
        if rows is not None:
            self.rows[rows > 0] = 1
