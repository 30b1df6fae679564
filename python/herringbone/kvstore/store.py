"""The store."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..advice import in_words_of
from ..arguments import level
from ..communicator import Communicator
from ..dependency import Engine, Variable
from ..errors import ArgumentError, PeerLostError, UnsupportedError
from ..hosts import hosts_of
from .comm import Comm, first_value, with_rows
from .ending import wait_at_exit
from .on_devices import DeviceSum, DeviceTrees, Filling, OnDevice, sum_on_devices
from .sparse import RowSparse
from .sparse_pulls import SparsePulls
from .stored import Stored
from .updating import Updates
from .tree_plan import Trees
from .values import Keyed, check_alike, check_shapes, keyed, summed, targets_of, view

__all__ = ["KVStore"]


class KVStore(Updates, SparsePulls):
    """Values by key, summed over arrays and workers; :func:`~herringbone.kvstore.create` makes one::

        kv = kvstore.create("dist_sync")
        kv.init(3, weight)
        kv.pushpull(3, gradient, out=gradient)

    Keys are whole numbers or texts, never both in a store. A call takes one key with an array, or with a list of arrays, one
    per device; or a list of keys with a list of these. All workers make the same calls in the same order.

    Stores of a type with ``device`` in its name also take CUDA tensors. They are added on their devices, along trees over the links
    (MXNet's ``MXNET_KVSTORE_USETREE``), on streams that wait for the program's current streams. After ``pull`` and ``pushpull`` the
    current streams wait for the results. In one process, without an updater or an optimizer, the sum stays on the devices.
    Otherwise the host holds the value and changes it.
    """

    def __init__(
        self,
        kind: str,
        communicator: Communicator | None,
        engine: Engine | None,
        trees: Trees | None,
        device_trees: DeviceTrees | None = None,
    ) -> None:
        """For :func:`~herringbone.kvstore.create`.

        Args:
            trees: those for lists of numpy arrays.
            device_trees: those for lists of tensors of devices, if the store takes any.
        """
        super().__init__()
        self._kind = kind
        self._communicator = communicator
        self._engine = Engine(2) if engine is None else engine
        self._trees, self._device_trees = trees, device_trees
        self._comm = Comm(self._engine, communicator)
        self._stored: dict[Any, Stored] = {}
        self._keys: type | None = None
        self._lost: set[int] = set()
        self._local = (0, 1)
        if engine is None and communicator is not None:
            wait_at_exit(self)
        if communicator is not None:
            # Collectives that were pushed earlier are issued earlier.
            self._engine.wait(communicator)
            hosts = hosts_of(communicator)
            here = [rank for rank, host in enumerate(hosts) if host == hosts[communicator.rank]]
            self._local = here.index(communicator.rank), len(here)

    @property
    def type(self) -> str:
        """The type that it was created with."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's rank; 0 in a store of one process."""
        return 0 if self._communicator is None else self._communicator.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return 1 if self._communicator is None else self._communicator.size

    @property
    def local_rank(self) -> int:
        """This worker's rank within its host."""
        return self._local[0]

    @property
    def num_local_workers(self) -> int:
        """How many workers this host has."""
        return self._local[1]

    @property
    def engine(self) -> Engine:
        """The engine that runs the store's operations."""
        return self._engine

    def is_capable(self, capability: str) -> bool:
        """Whether the store supports this; only ``"optimizer"`` is known."""
        return capability.lower() == "optimizer" and self._kind != "horovod"

    def init(self, key: Any, value: Any) -> None:
        """Store the first value of each key. In a store of several workers rank 0's value is used, and all workers return
        together.

        If it fails, none of its keys has a value.

        Raises:
            ArgumentError: a key has a value already.
        """
        self._stores("init")
        self._init("init", self._pairs("init", key, value))

    def _check_init(self, call: str, pairs: Keyed) -> None:
        """Refuse invalid first values, and wait until the values can be read."""
        for one, values in pairs.items():
            if one in self._stored:
                raise ArgumentError(f"{call}: key {one!r} has a value already; push to it")
            self._check_read(call, values)
            if len(values) != 1:
                raise ArgumentError(f"{call}: key {one!r} has {len(values)} values; give it one")
            if isinstance(values[0], RowSparse):
                self._comm.check_rows(call, values[0])
        self._wait_for_all(values[0] for values in pairs.values())

    def _init(self, call: str, pairs: Keyed) -> None:
        if not pairs:
            return
        self._check_init(call, pairs)
        keys, begun = self._keys, dict[Any, Stored]()
        met = self._engine.var(call)
        try:
            for one, values in pairs.items():
                begun[one] = self._begin(call, one, values[0])
            self._stored.update(begun)
            self._keys = str if isinstance(next(iter(pairs)), str) else int
            # Rank 0 can finish a broadcast before another rank's has failed.
            names = [repr(one) for one in pairs]
            self._comm.meet(f"{call} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}", met)
            self.wait(*(stored.variable for stored in begun.values()), met)
        except Exception:
            for one in begun:
                self._stored.pop(one, None)
            self._keys = keys
            raise

    def _begin(self, call: str, key: Any, value: Any) -> Stored:
        given = self._on_host(call, value)
        variable = self._engine.var(f"key {key}")
        is_sparse = isinstance(given, RowSparse)
        rows_there = given.shape[0] if is_sparse else 0
        make = functools.partial(first_value, given)
        both, array, rows = self._comm.furnished(make, given.shape, given.dtype, rows_there)
        self._comm.broadcast(call, key, both, variable, array)
        return Stored(array, variable, rows, not is_sparse and given is not value)

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Replace the stored values by the sums of these values over devices and workers, or pass the sums to the updater.

        It returns when the values have been read. A refused call changes nothing.
        """
        self._stores("push")
        priority = level("push", "priority", priority)
        pairs = self._pairs("push", key, value)
        self._check_push("push", pairs)
        for one, values in pairs.items():
            self._push("push", one, values, priority)

    def _check_push(self, call: str, pairs: Keyed) -> None:
        """Refuse invalid pushes, and wait until the values can be read."""
        self._take_back()
        for one, values in pairs.items():
            stored = self._known(call, one)
            self._check_read(call, values)
            sparse = [isinstance(array, RowSparse) for array in values]
            if any(sparse) != all(sparse):
                raise ArgumentError(f"{call}: key {one!r} gets row-sparse and dense arrays; pass one kind")
            check_alike(call, one, [self._view(call, array) for array in values], stored.value)
            if self._optimizer is not None:
                self._optimizer.check(call, one, stored.value)
            if self._compression is not None:
                self._compression.check(call, one, stored.value, stored.rows is not None)
        if self._optimizer is not None:
            self._optimizer._check_next(call, pairs, self._updates_of_push)
        self._wait_for_all(array for values in pairs.values() for array in values)

    def _push(self, call: str, key: Any, values: list[Any], priority: int) -> None:
        stored, compressed = self._stored[key], self._compression
        arrays, merged = [self._view(call, value) for value in values], self._engine.var(f"sum {key}")
        if self._stay_on_devices(stored, arrays):
            hold = functools.partial(stored.hold, self._sum_of_devices(arrays))
            self._engine.push(hold, (), (stored.variable,), priority, name=f"update {key}")
            return
        rows_there = 0 if stored.rows is None else stored.rows.size
        make = functools.partial(self._pushed, key, stored, arrays, merged, priority)
        both, total, rows = self._comm.furnished(make, stored.value.shape, stored.value.dtype, rows_there)
        coded = None if compressed is None else compressed.of_workers(key)
        update, said = self._update_of(call, key)
        self._counted(key, self._comm.sum(call, key, both, merged, total, priority, coded, by=said))
        apply = functools.partial(stored.apply, key, update, total, rows)
        self._engine.push(apply, (merged,), (stored.variable,), priority, name=f"update {key}")

    def _stay_on_devices(self, stored: Stored, arrays: list[Any]) -> bool:
        """Whether a push replaces the value by a sum that only devices have to have."""
        changes = self._communicator is not None or self._updater is not None or self._optimizer is not None
        return isinstance(arrays[0], OnDevice) and not changes and self._compression is None and stored.rows is None

    def _sum_of_devices(self, arrays: list[OnDevice]) -> DeviceSum:
        trees = self._device_trees
        assert trees is not None, "a store that takes tensors of devices has trees for them"
        return sum_on_devices(arrays, trees.of(arrays[0].streams, [array.device for array in arrays]), trees.bound)

    def _pushed(self, key: Any, stored: Stored, arrays: list[Any], merged: Variable, priority: int) -> tuple[Any, Any, Any]:
        """What of a push travels, the sum in it, and its rows. To a dense value the whole of a row-sparse array is pushed.

        What comes from devices is there once ``merged`` has been waited for.
        """
        import numpy as np

        if isinstance(arrays[0], OnDevice):
            if self._compression is None and stored.rows is None:
                total, arrive = self._sum_of_devices(arrays).fetched()
                self._engine.push(arrive, (), (merged,), priority, name=f"fetch {key}")
                return total, total, None
            arrays = [array.toarray() for array in arrays]
        if stored.rows is None:
            arrays = [array.toarray() if isinstance(array, RowSparse) else array for array in arrays]
        if self._compression is not None:
            arrays = self._compression.of_devices(key, arrays)
        total = summed(arrays, self._trees)
        if stored.rows is None:
            return total, total, None
        pushed = np.zeros_like(stored.rows)
        for array in arrays:
            pushed[array.indices if isinstance(array, RowSparse) else slice(None)] = 1
        return with_rows(total, pushed)

    def pull(self, key: Any, out: Any, priority: int = 0, ignore_sparse: bool = True, *, async_op: bool = False) -> None:
        """Copy the stored values into all arrays of ``out``.

        Args:
            ignore_sparse: leave row-sparse arrays in ``out`` alone, with a warning. Otherwise they get the stored rows, or of a
                dense value the rows that are not all zero.
            async_op: return at once; :meth:`wait` and :meth:`wait_all` wait for the dense arrays in ``out``.
        """
        self._stores("pull")
        self._pull("pull", self._pairs("pull", key, out), level("pull", "priority", priority), ignore_sparse, async_op)

    def _pull(self, call: str, pairs: Keyed, priority: int, ignore_sparse: bool, later: bool) -> None:
        copies = list(self._copies(call, pairs, ignore_sparse))
        if not ignore_sparse:
            self._pull_sparse(pairs)
        if later:
            for stored, outs, targets in copies:
                self._copy_later(call, stored.variable, stored.newest, outs, targets, priority)
            return
        self._wait_for_all(thing for stored, outs, _ in copies for thing in (stored.variable, *outs))
        for stored, _, targets in copies:
            Filling(targets, self._device_trees).fill(stored.newest())

    def _copies(self, call: str, pairs: Keyed, ignore_sparse: bool) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """The stored value of each key, and the dense arrays that it is copied into, as given and as numpy's."""
        for one, outs in pairs.items():
            stored = self._known(call, one)
            dense = [array for array in outs if not isinstance(array, RowSparse)]
            check_shapes(call, one, [array for array in outs if isinstance(array, RowSparse)], stored.value)
            if len(dense) < len(outs) and ignore_sparse:
                warnings.warn(f"{call}: row-sparse arrays of key {one!r} are left alone; use row_sparse_pull", stacklevel=5)
            yield stored, dense, targets_of(call, one, dense, stored.value, self._takes_devices)

    def _copy_later(
        self, call: str, source: Variable, value: Callable[[], Any], outs: list[Any], targets: list[Any], priority: int
    ) -> None:
        """Push copies of the value that a variable then stands for. Tensors of devices have it when the operation is over."""
        filling = Filling(targets, self._device_trees)
        self._engine.push(lambda: filling.fill(value(), is_later=True), (source,), outs, priority, name=call)

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0, *, async_op: bool = False) -> None:
        """Push, then pull into ``out``, or into the values themselves. A store of type ``horovod`` needs no :meth:`init` for it.

        With ``async_op`` it returns when the values have been read; :meth:`wait` and :meth:`wait_all` wait for ``out``.
        """
        priority = level("pushpull", "priority", priority)
        pairs = self._pairs("pushpull", key, value)
        outs = pairs if out is None else self._pairs("pushpull", key, out)
        stores = self._kind != "horovod"
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            if any(isinstance(array, RowSparse) for array in [*values, *arrays]):
                raise ArgumentError(f"pushpull: key {one!r} has row-sparse arrays; use push and row_sparse_pull")
        if self._compression is not None and self._communicator is not None:
            raise UnsupportedError(
                "pushpull: with gradient compression use push and pull, as with MXNet's stores of several workers"
            )
        if stores:
            self._check_push("pushpull", pairs)
        else:
            self._check_sum("pushpull", pairs)
        likes = {one: self._stored[one].value if stores else view("pushpull", values[0]) for one, values in pairs.items()}
        targets = {one: targets_of("pushpull", one, arrays, likes[one], self._takes_devices) for one, arrays in outs.items()}
        on_streams: Keyed = {}
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            if stores:
                self._push("pushpull", one, values, priority)
                if not async_op and any(isinstance(target, OnDevice) for target in targets[one]):
                    on_streams[one] = arrays
                    continue
                stored = self._stored[one]
                source, newest = stored.variable, stored.newest
            else:
                source = self._engine.var(f"sum {one}")
                result = self._summed([view("pushpull", value) for value in values], self._trees)
                self._comm.sum("pushpull", one, result, source, result, priority)
                newest = functools.partial(_same, result)
            self._copy_later("pushpull", source, newest, arrays, targets[one], priority)
        if on_streams:
            self._pull("pushpull", on_streams, priority, True, False)
        if not async_op:
            variables = [self._stored[one].variable for one in pairs] if stores else []
            self.wait(*(array for arrays in outs.values() for array in arrays), *variables)

    def _check_sum(self, call: str, pairs: Keyed) -> None:
        """Refuse values that cannot be summed, and wait until they can be read."""
        for one, values in pairs.items():
            self._check_read(call, values)
            check_alike(call, one, [view(call, array) for array in values], view(call, values[0]))
        self._wait_for_all(array for values in pairs.values() for array in values)

    def _summed(self, arrays: list[Any], trees: Trees | None = None) -> Any:
        """A sum that is sent uncompressed."""

        def make() -> tuple[Any, Any, Any]:
            total = summed(arrays, trees)
            return total, total, None

        return self._comm.furnished(make, arrays[0].shape, arrays[0].dtype)[1]

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0, *, async_op: bool = False) -> None:
        """Give all of ``out`` rank 0's value, and store it: :meth:`init`, then :meth:`pull`."""
        priority = level("broadcast", "priority", priority)
        pairs, outs = self._pairs("broadcast", key, value), self._pairs("broadcast", key, out)
        targets = {}
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            self._check_read("broadcast", values)
            if len(values) != 1:
                raise ArgumentError(f"broadcast: key {one!r} has {len(values)} values; give it one")
            dense = [array for array in arrays if not isinstance(array, RowSparse)]
            like = self._view("broadcast", values[0])
            targets[one] = targets_of("broadcast", one, dense, like, self._takes_devices)
        if self._kind != "horovod":
            self._init("broadcast", pairs)
            self._pull("broadcast", outs, priority, True, async_op)
            return
        self._check_sum("broadcast", pairs)
        for (one, values), arrays in zip(pairs.items(), outs.values()):
            held, variable = self._summed([view("broadcast", values[0])]), self._engine.var(f"broadcast {one}")
            self._comm.broadcast("broadcast", one, held, variable, held, priority)
            self._copy_later("broadcast", variable, functools.partial(_same, held), arrays, targets[one], priority)
        if not async_op:
            self.wait(*(array for arrays in outs.values() for array in arrays))

    def wait(self, *arrays: Any) -> None:
        """Wait until these arrays, passed as ``out`` with ``async_op``, have their values; raise the first failure of any."""
        failures = []
        for array in arrays:
            try:
                self._wait(array)
            except Exception as error:
                failures.append(error)
        try:
            if failures:
                raise failures[0]
        finally:
            # Otherwise the error keeps this frame and the frame keeps the error: the call's objects would live on, and report it again.
            failures.clear()

    @in_words_of("kvstore")
    def wait_all(self) -> None:
        """Wait for all background work of this store, and raise its failures."""
        try:
            self._engine.wait_all()
        except PeerLostError as error:
            self._lost.update(error.ranks)
            raise

    def barrier(self) -> None:
        """Return once all workers have called it."""
        if self._communicator is not None:
            variable = self._engine.var("barrier")
            self._comm.meet("barrier", variable)
            self._wait(variable)

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """How many workers are known to be lost, from operations that failed. MXNet's arguments have no effect."""
        return len(self._lost)

    def _pairs(self, call: str, key: Any, values: Any) -> Keyed:
        return keyed(call, key, values, self._keys)

    def _known(self, call: str, key: Any) -> Stored:
        if key not in self._stored:
            raise ArgumentError(f"{call}: key {key!r} has no value; call init first")
        return self._stored[key]

    def _check_read(self, call: str, values: list[Any]) -> None:
        """Refuse what is no value, and lists of which only a part is on devices."""
        if not values:
            raise ArgumentError(f"{call}: a key has an empty list of values")
        held = [isinstance(self._view(call, value), OnDevice) for value in values]
        if any(held) != all(held):
            raise ArgumentError(f"{call}: a list has tensors of devices and arrays of the CPU; pass one kind for a key")

    @property
    def _takes_devices(self) -> bool:
        return self._device_trees is not None

    def _view(self, call: str, value: Any) -> Any:
        return view(call, value, self._takes_devices)

    def _on_host(self, call: str, value: Any) -> Any:
        """A view of a value, or a copy of it if it is on a device."""
        given = self._view(call, value)
        return given.toarray() if isinstance(given, OnDevice) else given

    def _wait_for_all(self, things: Iterable[Any]) -> None:
        """Wait for earlier calls that write into arrays or variables; raise the first failure of any."""
        self.wait(*(thing for thing in things if not isinstance(thing, RowSparse)))

    def _settle(self) -> None:
        """Wait for earlier pushes, so that they use the optimizer's state of their time. Failures stay for the pulls to
        raise."""
        settled = self._engine.var("settled")
        self._engine.push(lambda: None, [stored.variable for stored in self._stored.values()], [settled], name="settle")
        with contextlib.suppress(Exception):
            self._engine.wait(settled)

    @in_words_of("kvstore")
    def _wait(self, thing: Any) -> None:
        try:
            self._engine.wait(thing)
        except PeerLostError as error:
            self._lost.update(error.ranks)
            raise


def _same(value: Any) -> Any:
    return value
