"""A store whose values are in tables on servers: MXNet's ``dist_async``."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from typing import Any

from ..arguments import level
from ..closing import print_errors
from ..dependency import Engine, Variable
from ..errors import ArgumentError, UnsupportedError
from ..tables import ParameterServer, Table
from .layout import Layout, Rule
from .meeting import Meeting
from .optimizer import Optimizer, chosen_optimizer, described, of_described
from .sparse import RowSparse
from .store import KVStore
from .stored import Updater
from .values import Keyed, Trees, summed, targets_of, view

__all__ = ["RemoteKVStore"]

CHUNK = 1 << 14
"""So many rows move at once."""


class RemoteKVStore(KVStore):
    """A store whose values are in tables on servers; :func:`~herringbone.kvstore.create` makes one::

        kv = kvstore.create("dist_async")
        kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.1))
        kv.push(3, gradient)

    A push is one worker's: the servers apply the optimizer to it at once. A pull has the pushes that have come, among them all of
    this worker.
    """

    def __init__(
        self,
        kind: str,
        servers: ParameterServer,
        count: int,
        name: str,
        engine: Engine | None,
        trees: Trees | None,
        nan: str,
    ) -> None:
        """For :func:`~herringbone.kvstore.create`.

        Args:
            count: how many servers there are.
            name: what the store's tables are called by, the same on all workers.
            nan: what becomes of a push with a NaN, as tables say it.
        """
        super().__init__(kind, None, engine, trees)
        self._stored: dict[Any, Any] = {}
        self._servers, self._count, self._name, self._nan = servers, count, name, nan
        self._meeting = Meeting(servers, name)
        self._local = int(os.environ.get("LOCAL_RANK") or 0), int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self._comes_back = self._meeting.comes_back
        message = self._meeting.message() if self._comes_back else ()
        if len(message):
            self._optimizer = of_described(message)
        _open.add(self)

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._servers.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._servers.workers

    def _init(self, call: str, pairs: Keyed) -> None:
        if not pairs:
            return
        self._check_init(call, pairs)
        begun = {one: self._begin_table(one, view(call, values[0])) for one, values in pairs.items()}
        self._meet(f"{call} {[(one, stored.said) for one, stored in begun.items()]}")
        self._stored.update(begun)
        self._keys = str if isinstance(next(iter(pairs)), str) else int

    def _begin_table(self, key: Any, given: Any) -> Any:
        is_sparse = isinstance(given, RowSparse)
        layout = Layout.sparse(given.shape) if is_sparse else Layout.dense(given.shape, self._count)
        stored = _Tabled(key, layout, given.dtype, is_sparse, self._engine.var(f"key {key}"), self._nan)
        stored.open(self._servers, self._name, Rule.of(self._optimizer))
        if self.rank == 0 and stored.table.step == 0:
            stored.tune(Rule.of(self._optimizer))
            stored.assign([given])
        return stored

    def _check_push(self, call: str, pairs: Keyed) -> None:
        if self._optimizer is None:
            raise ArgumentError(
                f"{call}: the servers have no optimizer; call set_optimizer first: 'test' adds what is pushed, as in MXNet's tests"
            )
        super()._check_push(call, pairs)

    def _push(self, call: str, key: Any, values: list[Any], priority: int) -> None:
        self._comes_back = False
        stored = self._stored[key]
        push = stored.push_of([view(call, value) for value in values], self._trees)
        self._engine.push(push, (), (stored.variable,), priority, name=f"{call} {key}")

    def _pull(self, call: str, pairs: Keyed, priority: int, ignore_sparse: bool, later: bool) -> None:
        things: list[Any] = []
        for stored, outs, targets in list(self._copies(call, pairs, ignore_sparse)):
            self._pull_later(call, stored, outs, targets, priority)
            things += [stored.variable, *outs]
        if not later:
            self.wait(*things)

    def _pull_later(self, call: str, stored: Any, outs: list[Any], targets: list[Any], priority: int) -> None:
        self._engine.push(functools.partial(stored.pull, targets), (stored.variable,), outs, priority, name=call)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0, *, async_op: bool = False) -> None:
        """Push, then pull into ``out``, or into the values themselves.

        With ``async_op`` it returns when the values have been read; :meth:`wait` and :meth:`wait_all` wait for ``out``.
        """
        priority = level("pushpull", "priority", priority)
        pairs = self._pairs("pushpull", key, value)
        outs = pairs if out is None else self._pairs("pushpull", key, out)
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            if any(isinstance(array, RowSparse) for array in [*values, *arrays]):
                raise ArgumentError(f"pushpull: key {one!r} has row-sparse arrays; use push and row_sparse_pull")
        self._check_push("pushpull", pairs)
        targets = {one: targets_of("pushpull", one, arrays, self._stored[one].value) for one, arrays in outs.items()}
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            self._push("pushpull", one, values, priority)
            self._pull_later("pushpull", self._stored[one], arrays, targets[one], priority)
        if not async_op:
            self.wait(*(thing for one, arrays in outs.items() for thing in (self._stored[one].variable, *arrays)))

    def _rows_of(self, stored: Any, rows: Any) -> Any:
        return stored.pull_rows(rows)

    def barrier(self) -> None:
        """Return once all workers have called it, and their pushes have been taken. It does not wait for a worker that is lost."""
        self._settle()
        self._meeting.meet("barrier")

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """How many workers were not in the last call that all make. MXNet's arguments change nothing."""
        return self.num_workers - self._meeting.present

    def set_updater(self, updater: Updater | None) -> None:
        """Raise :class:`UnsupportedError`: servers run no Python."""
        raise UnsupportedError(
            "set_updater: servers run no Python; use set_optimizer, or a store of type 'dist_sync', where it runs on each worker"
        )

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Have the servers apply an optimizer to each push. All workers call it, and rank 0's is taken.

        An optimizer with the same name keeps its state, and only its numbers change. Any other begins anew.

        Args:
            optimizer: one that :func:`create_optimizer` has made, or its name.
        """
        chosen = chosen_optimizer("set_optimizer", optimizer)
        if self._comes_back and self._optimizer is not None:
            return
        self._settle()
        if self.rank == 0:
            self._meeting.tell(described(chosen))
        self._meeting.meet("set_optimizer")
        chosen = of_described(self._meeting.message())
        rule = Rule.of(chosen)
        former = [stored.replace(self._servers, self._name, rule, self.rank == 0) for stored in self._stored.values()]
        self._optimizer = chosen
        self._meeting.meet("set_optimizer, done")
        if self.rank == 0:
            for table in former:
                if table is not None:
                    self._servers.drop_table(table)

    def set_gradient_compression(self, params: dict[str, Any]) -> None:
        """Raise :class:`UnsupportedError`: what goes to servers is not compressed."""
        raise UnsupportedError(f"set_gradient_compression: a store of type {self._kind!r} compresses nothing; use 'dist_sync'")

    def _of_one_process(self, call: str) -> Optimizer:
        raise UnsupportedError(f"{call}: the states are on the servers, and stay there; save the values, which pull gives you")

    def _meet(self, call: str) -> None:
        """A worker that comes back finds the others further on: they have left this call behind."""
        if not self._comes_back:
            self._meeting.meet(call)

    def close(self) -> None:
        """Wait for what was pushed, and take part no more. Rank 0 waits for all others, then has the servers forget the values.

        The end of the program does it. A worker that an exception ends, or that is lost, is not waited for.
        """
        if self in _open:
            _open.discard(self)
            try:
                self.wait_all()
                if self.rank == 0:
                    self._meeting.outlast()
                    self._forget()
            finally:
                self._servers.close()

    def leave(self) -> None:
        """Have the others do without this worker. Its values stay."""
        _open.discard(self)
        self._servers.close()

    def _forget(self) -> None:
        for table in [*self._meeting.tables, *(stored.table.name for stored in self._stored.values())]:
            self._servers.drop_table(table)


class _Tabled:
    """The value of a key, in a table. Its calls run on a thread of the engine, alone with the value or with other pulls."""

    table: Table

    def __init__(self, key: Any, layout: Layout, dtype: Any, is_sparse: bool, variable: Variable, nan: str) -> None:
        import numpy as np

        self._key, self._nan = key, nan
        self._layout = layout
        self.value = np.broadcast_to(np.zeros((), dtype), layout.shape)
        """An array like the value, which takes up no memory."""
        self.rows = np.zeros(0, dtype) if is_sparse else None
        self.variable = variable

    @property
    def said(self) -> str:
        """What workers compare."""
        return f"{self.value.dtype} {self.value.shape} {'dense' if self.rows is None else 'row-sparse'}"

    def open(self, servers: ParameterServer, store: str, rule: Rule) -> None:
        """Take part in the table for a rule."""
        self.table = servers.table(
            f"{store} {self._key!r} {rule.suffix}",
            rows=self._layout.rows,
            width=self._layout.width,
            dtype=self.value.dtype.name,
            sparse=self.rows is not None,
            optimizer=rule.name,
            numbers=dict(rule.made_with),
            nan=self._nan,
        )
        self._suffix = rule.suffix

    def replace(self, servers: ParameterServer, store: str, rule: Rule, is_first: bool) -> str | None:
        """Have another rule; the first worker takes the value to its table. Returns the name of a table that nobody needs then."""
        former = None
        if self._suffix != rule.suffix:
            former = self.table
            self.open(servers, store, rule)
            if is_first and self.table.step == 0:
                self._take_over(former)
        if is_first:
            self.tune(rule)
        if former is None:
            return None
        former.close()
        return former.name

    def _take_over(self, former: Table) -> None:
        self.table.tune(assigns=1)
        for first in range(0, self._layout.rows if self._layout.elements else 0, CHUNK):
            rows = former.pull_range(first, min(CHUNK, self._layout.rows - first))
            kept = rows.any(axis=1).nonzero()[0]  # the others are zero there, too
            self._push_rows(kept + first, rows[kept])
        self.table.tune(assigns=0)

    def tune(self, rule: Rule) -> None:
        """Set a rule's numbers."""
        self.table.tune(**dict(rule.numbers))

    def assign(self, values: list[Any]) -> None:
        """Set the value."""
        self.table.tune(assigns=1)
        self.push_of(values, None)()
        self.table.tune(assigns=0)

    def push_of(self, values: list[Any], trees: Trees | None) -> functools.partial[None]:
        """What pushes the sum of arrays, which have been read when this returns."""
        import numpy as np

        layout = self._layout
        if all(isinstance(value, RowSparse) for value in values):
            rows = np.concatenate([value.indices for value in values])
            data = np.concatenate([value.data.reshape(-1, layout.width) for value in values])
            return functools.partial(self._push_rows, rows, data)
        total = summed(values, trees).reshape(-1)
        padding = layout.rows * layout.width - total.size
        if padding and layout.elements:
            total = np.concatenate([total, np.zeros(padding, total.dtype)])
        return functools.partial(self._push_all, total)

    def _push_rows(self, rows: Any, data: Any) -> None:
        if rows.size:
            self.table.push(rows, data)

    def _push_all(self, total: Any) -> None:
        if total.size:
            self.table.push_range(0, total.reshape(-1, self._layout.width))

    def pull(self, targets: list[Any]) -> None:
        """Copy the value into arrays."""
        if not targets or not self._layout.elements:
            return
        pulled = self.table.pull_range(0, self._layout.rows).reshape(-1)[: self._layout.elements]
        for target in targets:
            target[...] = pulled.reshape(self._layout.shape)

    def pull_rows(self, rows: Any) -> Any:
        """Some rows of a row-sparse value."""
        import numpy as np

        shape = (rows.size, *self._layout.shape[1:])
        return self.table.pull(rows).reshape(shape) if rows.size else np.zeros(shape, self.value.dtype)


_open: set[RemoteKVStore] = set()


def _end() -> None:
    """Before the program ends, end its stores; a program that an exception ends leaves them."""
    fails = getattr(sys, "last_type", None) is not None
    for store in list(_open):
        try:
            store.leave() if fails else store.close()
        except Exception as error:
            print_errors([error])


atexit.register(_end)
os.register_at_fork(after_in_child=_open.clear)
