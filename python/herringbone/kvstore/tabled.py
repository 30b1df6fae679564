"""The value of a key in a table on servers."""

from __future__ import annotations

import functools
from typing import Any

from ..dependency import Variable
from ..errors import ArgumentError
from ..tables import ParameterServer, Table
from .layout import Layout, Rule
from .on_devices import Filling
from .sparse import RowSparse
from .tree_plan import Trees
from .values import summed

__all__ = ["Tabled"]

CHUNK = 1 << 14
"""How many rows move at once."""


class Tabled:
    """The value of a key, in a table. Its calls run on a thread of the engine, with exclusive access or next to other pulls."""

    table: Table

    def __init__(self, key: Any, layout: Layout, dtype: Any, is_sparse: bool, variable: Variable, nan: str) -> None:
        import numpy as np

        self.key, self._nan = key, nan
        self._layout = layout
        self.value = np.broadcast_to(np.zeros((), dtype), layout.shape)
        """An array like the value, which takes up no memory."""
        self.rows = np.zeros(0, dtype) if is_sparse else None
        self.variable = variable

    @property
    def said(self) -> str:
        """The description that workers compare."""
        return f"{self.value.dtype} {self.value.shape} {'dense' if self.rows is None else 'row-sparse'}"

    def open(self, servers: ParameterServer, store: str, rule: Rule, layout: Layout) -> None:
        """Open the table for a rule. The servers are assumed to have the rule's numbers.

        If it fails, the value stays where it was.
        """
        table = servers.table(
            f"{store} {self.key!r} {rule.suffix}",
            rows=layout.rows,
            width=layout.width,
            dtype=self.value.dtype.name,
            sparse=self.rows is not None,
            optimizer=rule.name,
            numbers=dict(rule.made_with),
            nan=self._nan,
        )
        self.table, self._layout, self._suffix, self._told = table, layout, rule.suffix, dict(rule.numbers)

    def layout_for(self, call: str, servers: int, rule: Rule) -> Layout:
        """The layout of its table for a rule.

        Raises:
            ArgumentError: such a table is impossible.
        """
        like = self.value if self.rows is None else RowSparse.zeros(self._layout.shape, self.value.dtype)
        return Layout.of(call, self.key, like, servers, rule)

    def check_rule(self, call: str, rule: Rule) -> None:
        """Check that a rule does not need another table.

        Raises:
            ArgumentError: it does.
        """
        if rule.suffix != self._suffix:
            momentum = "0" if self._told.get("momentum") else "above 0"
            raise ArgumentError(
                f"{call}: key {self.key!r}: the optimizer's momentum has become {momentum}, which changes the servers' state; call "
                f"set_optimizer on all workers, which begins without a velocity"
            )

    def changes(self, rule: Rule, but: str | None) -> dict[str, float]:
        """The numbers of a rule that this worker has not sent to the servers yet. They are marked as sent.

        Args:
            but: a number that another worker sends.
        """
        changed = {name: number for name, number in rule.numbers if name != but and self._told.get(name) != number}
        self._told |= changed
        return changed

    def forget(self, name: str) -> None:
        """Let the next push send a number, even if the servers have it."""
        self._told.pop(name, None)

    def replace(self, servers: ParameterServer, store: str, rule: Rule, layout: Layout, is_first: bool) -> str | None:
        """Switch to another rule; the first worker moves the value to its table. Returns the name of a table that is not needed
        any more."""
        former = None
        if self._suffix != rule.suffix:
            former, before = self.table, self._layout
            self.open(servers, store, rule, layout)
            if is_first and self.table.step == 0:
                self._take_over(former, before)
        if is_first:
            self.tune(rule)
        self._told = dict(rule.numbers)
        if former is None:
            return None
        former.close()
        return former.name

    @property
    def pushes(self) -> int:
        """This worker's number of pushes, including an earlier process's, if it has set the value, which is one step."""
        return max(0, self.table.step - 1)

    def _take_over(self, former: Table, before: Layout) -> None:
        self.table.tune(assigns=1)
        if before != self._layout:  # one of them is a single row
            whole = former.pull_range(0, before.rows).reshape(-1)[: before.elements]
            self._push_all(self._padded(whole))
            self.table.tune(assigns=0)
            return
        for first in range(0, self._layout.rows if self._layout.elements else 0, CHUNK):
            rows = former.pull_range(first, min(CHUNK, self._layout.rows - first))
            kept = rows.any(axis=1).nonzero()[0]  # the others are zero there, too
            self.table.push(kept + first, rows[kept], more=True)
        self._end_step()
        self.table.tune(assigns=0)

    def tune(self, rule: Rule) -> None:
        """Set a rule's numbers."""
        self.table.tune(**dict(rule.numbers))

    def assign(self, values: list[Any]) -> None:
        """Set the value."""
        self.table.tune(assigns=1)
        self.push_of(values, None, {})()
        if self.table.step == 0:  # there was nothing to push
            self._end_step()
        self.table.tune(assigns=0)

    def _end_step(self) -> None:
        import numpy as np

        self.table.push(np.zeros(0, np.uint64), np.zeros((0, self._layout.width), self.value.dtype))

    def push_of(self, values: list[Any], trees: Trees | None, changes: dict[str, float]) -> functools.partial[None]:
        """A function that pushes changed numbers of the rule, and then the sum of arrays, which are read before this
        returns."""
        import numpy as np

        layout = self._layout
        if self.rows is not None and all(isinstance(value, RowSparse) for value in values):
            rows = np.concatenate([value.indices for value in values])
            data = np.concatenate([value.data.reshape(-1, layout.width) for value in values])
            return functools.partial(self._push_rows, rows, data, changes)
        return functools.partial(self._push_all, self._padded(summed(values, trees).reshape(-1)), changes)

    def _padded(self, total: Any) -> Any:
        """All elements, and the empty end of the last row."""
        import numpy as np

        padding = self._layout.rows * self._layout.width - total.size
        return np.concatenate([total, np.zeros(padding, total.dtype)]) if padding and self._layout.elements else total

    def _push_rows(self, rows: Any, data: Any, changes: dict[str, float] | None = None) -> None:
        self.table.tune(**(changes or {}))
        if rows.size:
            self.table.push(rows, data)

    def _push_all(self, total: Any, changes: dict[str, float] | None = None) -> None:
        self.table.tune(**(changes or {}))
        if total.size:
            self.table.push_range(0, total.reshape(-1, self._layout.width))

    def pull(self, filling: Filling) -> None:
        """Copy the value into what is to be filled."""
        if filling.is_empty or not self._layout.elements:
            return
        pulled = self.table.pull_range(0, self._layout.rows).reshape(-1)[: self._layout.elements]
        filling.fill(pulled.reshape(self._layout.shape), is_later=True)

    def pull_rows(self, rows: Any) -> Any:
        """Some rows of a row-sparse value."""
        import numpy as np

        shape = (rows.size, *self._layout.shape[1:])
        return self.table.pull(rows).reshape(shape) if rows.size else np.zeros(shape, self.value.dtype)
