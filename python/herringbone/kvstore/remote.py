"""A store whose values are in tables on servers: MXNet's ``dist_async``."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
from collections.abc import Iterable
from typing import Any

from ..arguments import level
from ..closing import ends_by_exception, print_errors
from ..dependency import Engine
from ..errors import ArgumentError, HerringboneError, MismatchError, UnsupportedError
from ..tables import ParameterServer
from .layout import Layout, Rule
from .meeting import Meeting
from .on_devices import DeviceTrees, Filling, OnDevice
from .optimizer import Optimizer, chosen_optimizer, described, of_described, settle
from .sparse import RowSparse
from .store import KVStore
from .stored import Updater
from .tabled import Tabled
from .tree_plan import Trees
from .values import Keyed, targets_of

__all__ = ["RemoteKVStore"]

ON_SERVERS = ("float32", "float64")
"""The types of tables that numpy has; tables also have bfloat16."""


class RemoteKVStore(KVStore):
    """A store whose values are in tables on servers; :func:`~herringbone.kvstore.create` makes one::

        kv = kvstore.create("dist_async")
        kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.1))
        kv.push(3, gradient)

    The servers apply the optimizer to each worker's push at once. A pull includes the pushes that have arrived, and all pushes
    of this worker.
    """

    def __init__(
        self,
        kind: str,
        servers: ParameterServer,
        count: int,
        name: str,
        engine: Engine | None,
        trees: Trees | None,
        device_trees: DeviceTrees | None,
        nan: str,
    ) -> None:
        """For :func:`~herringbone.kvstore.create`.

        Args:
            count: the number of servers.
            name: the prefix of the tables' names, the same on all workers.
            nan: the rule for a push with a NaN, as for tables.
        """
        import numpy as np

        super().__init__(kind, None, engine, trees, device_trees)
        self._stored: dict[Any, Any] = {}
        self._servers, self._count, self._name, self._nan = servers, count, name, nan
        self._meeting = Meeting(servers, name)
        self._local = int(os.environ.get("LOCAL_RANK") or 0), int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self._comes_back = self._meeting.comes_back
        self._said = self._meeting.message() if self._comes_back else np.zeros(0, np.uint8)
        """Rank 0's description of the optimizer in use; empty if there is none."""
        if self._said.size:
            self._optimizer = of_described(self._said)
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
        # Invalid values are refused before any key has a table.
        planned = {one: self._planned(call, one, self._view(call, values[0])) for one, values in pairs.items()}
        begun: dict[Any, Any] = {}
        made: list[str] = []
        said = f"{call} {[(one, stored.said) for one, (stored, _, _) in planned.items()]}"
        is_begun = False
        try:
            for one, (stored, rule, layout) in planned.items():
                stored.open(self._servers, self._name, rule, layout)
                begun[one] = stored
                if stored.table.step > 0:
                    continue
                made.append(stored.table.name)
                if self.rank == 0:
                    stored.tune(rule)
                    stored.assign([self._on_host(call, pairs[one][0])])
            is_begun = True
            self._meet(said)
        except Exception as error:
            for stored in begun.values():
                stored.table.close()
            is_known = not is_begun and self._tell_of_failure(said)
            self._drop(call, made, is_known or isinstance(error, MismatchError))
            raise
        self._stored.update(begun)
        if self._comes_back:
            self._count_on(begun.values())
        self._keys = str if isinstance(next(iter(pairs)), str) else int

    def _tell_of_failure(self, said: str) -> bool:
        """Tell the others, which wait for this worker in an init, that its part has failed; returns whether they know.

        A replaced worker meets no others there, and a worker without servers cannot tell them.
        """
        if not self._comes_back:
            with contextlib.suppress(HerringboneError):
                self._meeting.failed(said)
                return True
        return False

    def _count_on(self, values: Iterable[Any]) -> None:
        """Let the scheduler of a replaced rank 0 continue from its earlier pushes: all steps except the first value's."""
        optimizer = self._optimizer
        if self.rank != 0 or optimizer is None:
            return
        for stored in values:
            optimizer._begin_at(stored.key, stored.pushes * self._updates_of_push)
            if optimizer.lr_scheduler is not None:
                stored.forget("learning_rate")  # the servers have that of an earlier push

    def _planned(self, call: str, key: Any, given: Any) -> tuple[Tabled, Rule, Layout]:
        """The stored value of a key, without a table yet, and the description of its table.

        Raises:
            ArgumentError: servers cannot keep such a value, or the optimizer cannot change it.
        """
        if given.dtype.name not in ON_SERVERS:
            raise ArgumentError(
                f"{call}: key {key!r} has elements of {given.dtype}, but servers keep {' and '.join(ON_SERVERS)}; convert it to one of "
                "these, or use a store of type 'dist_sync'"
            )
        rule = Rule.of(self._optimizer, call, key)
        layout = Layout.of(call, key, given, self._count, rule)
        is_sparse = isinstance(given, RowSparse)
        return Tabled(key, layout, given.dtype, is_sparse, self._engine.var(f"key {key}"), self._nan), rule, layout

    def _drop(self, call: str, tables: list[str], are_all_here: bool) -> None:
        """Let the servers drop the tables of a failed init: those without a value, or with a value of this init.

        Args:
            are_all_here: all workers come here, and none continues before the tables are gone. Otherwise only rank 0 knows that
                no worker uses them.
        """
        # The init's failure is the one to report; another worker can have dropped these tables already.
        if are_all_here:
            with contextlib.suppress(HerringboneError):
                self._meeting.meet(f"{call}, refused")
        for table in tables if are_all_here or self.rank == 0 else ():
            with contextlib.suppress(HerringboneError):
                self._servers.drop_table(table)
        if are_all_here:
            with contextlib.suppress(HerringboneError):
                self._meeting.meet(f"{call}, forgotten")

    def _check_push(self, call: str, pairs: Keyed) -> None:
        if self._optimizer is None:
            raise ArgumentError(
                f"{call}: the servers have no optimizer; call set_optimizer first: 'test' adds pushed values, as in MXNet's tests"
            )
        super()._check_push(call, pairs)
        for one in pairs:
            self._stored[one].check_rule(call, Rule.of(self._optimizer, call, one))

    @property
    def _updates_of_push(self) -> int:
        """The number of workers: the others push as often, each at its own pace."""
        return self.num_workers

    def _push(self, call: str, key: Any, values: list[Any], priority: int) -> None:
        self._comes_back = False
        stored, optimizer = self._stored[key], self._optimizer
        assert optimizer is not None
        rule = Rule.with_numbers(optimizer, optimizer._next_numbers(call, key, self._updates_of_push))
        # Only rank 0's scheduler is used, because the others' can lag behind.
        is_scheduled = optimizer.lr_scheduler is not None and self.rank != 0
        changes = stored.changes(rule, but="learning_rate" if is_scheduled else None)
        arrays = [self._view(call, value) for value in values]
        if isinstance(arrays[0], OnDevice):
            arrays = [self._sum_of_devices(arrays).toarray()]
        push = stored.push_of(arrays, self._trees, changes)
        self._engine.push(push, (), (stored.variable,), priority, name=f"{call} {key}")

    def _pull(self, call: str, pairs: Keyed, priority: int, ignore_sparse: bool, later: bool) -> None:
        things: list[Any] = []
        copies = list(self._copies(call, pairs, ignore_sparse))
        if not ignore_sparse:
            self._pull_sparse(pairs)
        for stored, outs, targets in copies:
            self._pull_later(call, stored, outs, targets, priority)
            things += [stored.variable, *outs]
        if not later:
            self.wait(*things)

    def _pull_later(self, call: str, stored: Any, outs: list[Any], targets: list[Any], priority: int) -> None:
        filling = Filling(targets, self._device_trees)
        self._engine.push(functools.partial(stored.pull, filling), (stored.variable,), outs, priority, name=call)

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
        targets = {
            one: targets_of("pushpull", one, arrays, self._stored[one].value, self._takes_devices) for one, arrays in outs.items()
        }
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            self._push("pushpull", one, values, priority)
            self._pull_later("pushpull", self._stored[one], arrays, targets[one], priority)
        if not async_op:
            self.wait(*(thing for one, arrays in outs.items() for thing in (self._stored[one].variable, *arrays)))

    def _rows_of(self, stored: Any, rows: Any) -> Any:
        return stored.pull_rows(rows)

    def _rows_there(self, stored: Any) -> RowSparse:
        import numpy as np

        whole = np.zeros(stored.value.shape, stored.value.dtype)
        stored.pull(Filling([whole], None))
        return RowSparse.of(whole)

    def barrier(self) -> None:
        """Return once all workers have called it, and their pushes were accepted. It does not wait for lost workers."""
        self._settle()
        self._meeting.meet("barrier")

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """How many workers were missing in the last call that all make. MXNet's arguments have no effect."""
        return self.num_workers - self._meeting.present

    def set_updater(self, updater: Updater | None) -> None:
        """Raise :class:`UnsupportedError`: servers run no Python."""
        raise UnsupportedError(
            "set_updater: servers run no Python; use set_optimizer, or a store of type 'dist_sync', where it runs on each worker"
        )

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Let the servers apply an optimizer to each push. All workers call it, and rank 0's optimizer is used.

        An optimizer with the same name keeps its state, and only its numbers change. Any other begins with a new state. A
        number that a worker changes later, such as the learning rate, reaches the servers with this worker's next push of each
        key. For a scheduler the number of updates is rank 0's pushes of a key, times the number of workers.

        Args:
            optimizer: the result of :func:`create_optimizer`, or a name.
        """
        chosen = chosen_optimizer("set_optimizer", optimizer)
        if self._comes_back and self._optimizer is not None:
            settle(chosen, self._said, needs_scheduler=False)
            self._optimizer = chosen._twin()
            self._count_on(self._stored.values())
            return
        self._settle()
        if self.rank == 0:
            self._tell(chosen)
        self._meeting.meet("set_optimizer")
        said, planned = self._agree(chosen)
        settle(chosen, said, needs_scheduler=False)
        former = [stored.replace(self._servers, self._name, rule, layout, self.rank == 0) for stored, rule, layout in planned]
        if not chosen._has_settings_of(self._optimizer):
            self._optimizer = chosen._twin()
        self._meeting.meet("set_optimizer, done")
        if self.rank == 0:
            for table in former:
                if table is not None:
                    self._servers.drop_table(table)

    def _tell(self, chosen: Optimizer) -> None:
        """Let the other workers read an optimizer.

        Raises:
            TypeError: it contains something that cannot be sent. The others, which wait for it, get a :class:`MismatchError`.
        """
        try:
            said = described(chosen, with_keys=False)
        except TypeError as error:
            self._meeting.failed("set_optimizer")
            raise error from None
        self._meeting.tell(said)

    def _agree(self, chosen: Optimizer) -> tuple[Any, list[tuple[Any, Rule, Layout]]]:
        """Rank 0's description of an optimizer, and the layout of all keys' tables for it.

        All workers meet once they have read it, even those that cannot use it. So no worker confuses it with rank 0's next
        message.

        Raises:
            ArgumentError: on all workers, if such tables are impossible, or the description is too long. They keep the old
                optimizer.
            MismatchError: on all workers, if the tables are possible on some workers only.
        """
        said, planned, refused = self._said, list[tuple[Any, Rule, Layout]](), None
        try:
            said = self._meeting.message()
            proposed = of_described(said, chosen)
            planned = [(stored, *self._plan(proposed, key, stored)) for key, stored in self._stored.items()]
        except Exception as error:
            refused = error
        try:
            if refused is None:
                self._meeting.meet("set_optimizer")
            elif others := self._meeting.failed("set_optimizer"):
                raise MismatchError(others)
            else:
                raise refused
        except Exception as error:
            if self.rank == 0:
                self._meeting.tell(self._said)
            raise error from (None if error is refused else refused)
        self._said = said
        return said, planned

    def _plan(self, optimizer: Optimizer, key: Any, stored: Any) -> tuple[Rule, Layout]:
        """The rule of an optimizer for a key, and the layout of its table."""
        rule = Rule.of(optimizer, "set_optimizer", key)
        return rule, stored.layout_for("set_optimizer", self._count, rule)

    def set_gradient_compression(self, params: dict[str, Any]) -> None:
        """Raise :class:`UnsupportedError`: pushes to servers are not compressed."""
        raise UnsupportedError(f"set_gradient_compression: a store of type {self._kind!r} cannot compress; use 'dist_sync'")

    def _of_one_process(self, call: str) -> Optimizer:
        raise UnsupportedError(f"{call}: the states are on the servers, and stay there; save the values, which you get with pull")

    def _meet(self, call: str) -> None:
        """Meet the others. A worker that replaces a lost one does not, because the others have completed this call already."""
        if not self._comes_back:
            self._meeting.meet(call)

    def close(self) -> None:
        """Wait for this worker's pushes, and leave. Rank 0 waits for all others, and then lets the servers drop the values.

        The end of the program calls this. Rank 0 does not wait for workers that are lost or that an exception has ended.
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
        """Leave, so that the others do not wait for this worker. Its values stay."""
        _open.discard(self)
        self._servers.close()

    def _forget(self) -> None:
        for table in [*self._meeting.tables, *(stored.table.name for stored in self._stored.values())]:
            self._servers.drop_table(table)


_open: set[RemoteKVStore] = set()


def _end() -> None:
    """End the stores before the program ends; if an exception ends the program, leave them."""
    fails = ends_by_exception()
    for store in list(_open):
        try:
            store.leave() if fails else store.close()
        except Exception as error:
            if not fails:
                print_errors([error])


atexit.register(_end)
os.register_at_fork(after_in_child=_open.clear)
