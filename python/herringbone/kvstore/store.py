"""The store."""

from __future__ import annotations

import functools
import os
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

from .. import _herringbone
from ..arguments import level
from ..communicator import Communicator, init
from ..dependency import Engine, Variable
from ..errors import ArgumentError, PeerLostError, UnsupportedError
from ..plain import pack, unpack
from .compression import codec_of
from .hosts import places
from .optimizer import Optimizer, create_optimizer
from .sparse import RowSparse, check_rows
from .values import Trees, as_given, keyed, summed, view

__all__ = ["KVStore", "create"]

ELSEWHERE = {
    "nccl": "'device'",
    "p3": "'dist_sync', whose operations take priorities",
    "byteps": "'dist_sync', and reducers for what BytePS calls servers",
}
"""MXNet's types that are not here, and what to use."""


class _Stored:
    """The value of a key."""

    def __init__(self, number: int, value: Any, variable: Variable, rows: Any, is_tensor: bool) -> None:
        self.number = number
        self.value = value
        self.variable = variable
        self.rows = rows
        """Which rows are there, of a value that is sparse; else None."""
        self.is_tensor = is_tensor


def create(
    name: str = "local",
    *,
    communicator: Communicator | None = None,
    engine: Engine | None = None,
    topology: str | os.PathLike[str] | None = None,
) -> KVStore:
    """A store, by MXNet's name of its type.

    ``local`` and ``device`` are of this process alone. ``dist_sync``, ``dist_device_sync`` and ``horovod`` are of all workers of a
    job; all of them create it. ``horovod`` stores nothing and has ``pushpull`` and ``broadcast`` only.

    Args:
        name: upper case counts as lower case.
        communicator: whose workers; those of :func:`herringbone.init` if it is not given.
        engine: what runs the store's operations; one of its own if it is not given.
        topology: a file with the links of the devices, or one topology of it as ``FILE#NAME``: lists of as many arrays are added
            along trees over these links, all others from left to right.

    Raises:
        UnsupportedError: the type needs a parameter server, or is not here.
    """
    if not isinstance(name, str):
        raise TypeError(f"create: name is a {type(name).__name__}, not one like 'local' or 'dist_sync'")
    kind = name.lower()
    if kind in ELSEWHERE:
        raise UnsupportedError(f"create: there is no store of type {name!r} here; use {ELSEWHERE[kind]}")
    if "dist" in kind and "async" in kind:
        raise UnsupportedError(f"create: {name!r} needs a parameter server, which this version does not have; use 'dist_sync'")
    if kind != "horovod" and not any(part in kind for part in ("local", "device", "dist")):
        raise ArgumentError(
            f"create: no store is of type {name!r}; use 'local', 'device', 'dist_sync', 'dist_device_sync' or 'horovod'"
        )
    if "dist" in kind or kind == "horovod":
        communicator = init() if communicator is None else communicator
    elif communicator is not None:
        raise ArgumentError(f"create: a store of type {name!r} is of one process; use 'dist_sync' for a communicator")
    return KVStore(kind, communicator, engine, None if topology is None else _trees_of(os.fspath(topology)))


class KVStore:
    """Values by key; :func:`create` makes one.

    Keys are whole numbers or texts, never both in a store. A call takes one key with an array, or with a list of arrays of as many
    devices; or a list of keys with a list of these. All workers make the same calls in the same order.
    """

    def __init__(
        self, kind: str, communicator: Communicator | None, engine: Engine | None, trees: Trees | None
    ) -> None:
        """For :func:`create`."""
        self._kind = kind
        self._communicator = communicator
        self._engine = Engine(2) if engine is None else engine
        self._trees = trees
        self._stored: dict[Any, _Stored] = {}
        self._keys: type | None = None
        self._updater: Callable[[Any, Any, Any], object] | None = None
        self._optimizer: Optimizer | None = None
        self._lost: set[int] = set()
        self._local = (0, 1)
        if communicator is not None:
            # Collectives that were pushed before are issued before.
            self._engine.wait(communicator)
            self._local = places(communicator)

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
        """This worker's rank among those of its host."""
        return self._local[0]

    @property
    def num_local_workers(self) -> int:
        """How many workers this host has."""
        return self._local[1]

    @property
    def engine(self) -> Engine:
        """What runs the store's operations."""
        return self._engine

    def is_capable(self, capability: str) -> bool:
        """Whether it can be an ``"optimizer"``."""
        return capability.lower() == "optimizer" and self._kind != "horovod"

    def init(self, key: Any, value: Any) -> None:
        """Store the first value of each key. In a store of several workers rank 0's counts.

        Raises:
            ArgumentError: a key has a value already.
        """
        self._stores("init")
        pairs = self._pairs("init", key, value)
        for one, values in pairs:
            if one in self._stored:
                raise ArgumentError(f"init: key {one!r} has a value already; push to it")
            if len(values) != 1:
                raise ArgumentError(f"init: key {one!r} has {len(values)} values; give it one")
        begun = [self._begin(one, values[0]) for one, values in pairs]
        for variable in (stored.variable for stored in begun):
            self._wait(variable)

    def _begin(self, key: Any, value: Any) -> _Stored:
        import numpy as np

        given = view("init", value)
        is_sparse = isinstance(given, RowSparse)
        array = np.array(given.toarray() if is_sparse else given, copy=True, order="C")
        rows = None
        if is_sparse:
            rows = np.zeros(array.shape[0], np.uint8)
            rows[given.indices] = 1
        variable = self._engine.var(f"key {key}")
        stored = _Stored(len(self._stored), array, variable, rows, not is_sparse and given is not value)
        self._stored[key] = stored
        self._keys = str if isinstance(key, str) else int
        if self._communicator is not None:
            for part in (array,) if rows is None else (array, rows):
                run = functools.partial(self._communicator.broadcast, part)
                self._engine.collective(self._communicator, run, (variable,), name=f"init {key}")
        return stored

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Replace the stored values by the sums of these over devices and workers, or give the sums to the updater.

        It returns when the values have been read.
        """
        self._stores("push")
        priority = level("push", "priority", priority)
        for one, values in self._pairs("push", key, value):
            self._push(one, values, priority)

    def _push(self, key: Any, values: list[Any], priority: int) -> None:
        import numpy as np

        stored = self._known("push", key)
        arrays = self._read("push", values)
        sparse = [isinstance(array, RowSparse) for array in arrays]
        if any(sparse) != all(sparse) or (all(sparse) and stored.rows is None):
            raise ArgumentError(f"push: key {key!r} gets {'row-sparse and ' if any(sparse) else ''}dense arrays; pass one kind, as in init")
        total = summed("push", arrays, stored.value, self._trees)
        merged = self._engine.var(f"sum {key}")
        rows = None
        if stored.rows is not None:
            rows = np.ones_like(stored.rows)
            if all(sparse):
                rows[:] = 0
                for array in arrays:
                    rows[array.indices] = 1
        if self._communicator is not None:
            self._engine.all_reduce(self._communicator, total, var=merged, priority=priority, name=f"push {key}")
            if rows is not None:
                self._engine.all_reduce(self._communicator, rows, "max", var=merged, priority=priority, name=f"rows {key}")
        apply = functools.partial(self._apply, key, stored, total, rows)
        self._engine.push(apply, (merged,), (stored.variable,), priority, name=f"update {key}")

    def _apply(self, key: Any, stored: _Stored, total: Any, rows: Any) -> None:
        """Runs on a thread of the engine, alone with the stored value."""
        import numpy as np

        if self._updater is None:
            stored.value[...] = total
            if rows is not None:
                stored.rows[:] = rows
            return
        received = as_given(total, stored.is_tensor)
        if rows is not None:
            there = np.flatnonzero(rows)
            received = RowSparse(total[there], there, total.shape)
            stored.rows[:] |= rows
        self._updater(key, received, as_given(stored.value, stored.is_tensor))

    def pull(
        self, key: Any, out: Any, priority: int = 0, ignore_sparse: bool = True, *, async_op: bool = False
    ) -> None:
        """Copy the stored values into all arrays of ``out``.

        Args:
            ignore_sparse: leave row-sparse arrays of ``out`` alone, with a warning; else they are an error.
            async_op: return at once; :meth:`wait` and :meth:`wait_all` wait for ``out``.
        """
        self._stores("pull")
        priority = level("pull", "priority", priority)
        for one, outs in self._pairs("pull", key, out):
            stored = self._known("pull", one)
            dense = [array for array in outs if not isinstance(array, RowSparse)]
            if len(dense) < len(outs):
                if not ignore_sparse:
                    raise ArgumentError(f"pull: an out of key {one!r} is row-sparse; use row_sparse_pull")
                warnings.warn(f"pull: row-sparse arrays of key {one!r} are left alone; use row_sparse_pull", stacklevel=2)
            self._copy("pull", stored, stored.variable, stored.value, dense, priority, async_op)

    def _copy(
        self, call: str, stored: _Stored | None, source: Variable, value: Any, outs: list[Any], priority: int, later: bool
    ) -> None:
        """Copies a value into arrays, now or when it is there."""
        targets = [view(call, out) for out in outs]
        for target in targets:
            if target.shape != value.shape or not target.flags.writeable:
                what = "read-only" if target.shape == value.shape else f"of shape {target.shape}, and the value of {value.shape}"
                raise ArgumentError(f"{call}: an array of out is {what}")

        def copy() -> None:
            for target in targets:
                target[...] = value

        if later:
            self._engine.push(copy, (source,), outs, priority, name=call)
            return
        self._wait(source)
        for out in outs:
            self._wait(out)
        copy()

    def pushpull(
        self, key: Any, value: Any, out: Any = None, priority: int = 0, *, async_op: bool = False
    ) -> None:
        """Push, then pull into ``out``, or into the values themselves. A store of type ``horovod`` needs no :meth:`init` for it.

        With ``async_op`` it returns when the values have been read; :meth:`wait` and :meth:`wait_all` wait for ``out``.
        """
        priority = level("pushpull", "priority", priority)
        pairs = self._pairs("pushpull", key, value)
        outs = pairs if out is None else self._pairs("pushpull", key, out)
        for (one, values), (_, targets) in zip(pairs, outs):
            if any(isinstance(array, RowSparse) for array in [*values, *targets]):
                raise ArgumentError(f"pushpull: key {one!r} has row-sparse arrays; use push and row_sparse_pull")
            if self._kind == "horovod":
                self._sum(one, values, targets, priority)
            else:
                self._push(one, values, priority)
                stored = self._stored[one]
                self._copy("pushpull", stored, stored.variable, stored.value, targets, priority, True)
        if not async_op:
            stored = [] if self._kind == "horovod" else [self._stored[one].variable for one, _ in pairs]
            self.wait(*(target for _, targets in outs for target in targets), *stored)

    def _sum(self, key: Any, values: list[Any], targets: list[Any], priority: int) -> None:
        """The sum over workers, which is not stored."""
        arrays = self._read("pushpull", values)
        total = summed("pushpull", arrays, arrays[0], self._trees)
        merged = self._engine.var(f"sum {key}")
        assert self._communicator is not None
        self._engine.all_reduce(self._communicator, total, var=merged, priority=priority, name=f"pushpull {key}")
        self._copy("pushpull", None, merged, total, targets, priority, True)

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0, *, async_op: bool = False) -> None:
        """Give all of ``out`` rank 0's value, and store it: :meth:`init`, then :meth:`pull`."""
        if self._kind != "horovod":
            self.init(key, value)
            self.pull(key, out, priority, async_op=async_op)
            return
        priority = level("broadcast", "priority", priority)
        assert self._communicator is not None
        pairs, outs = self._pairs("broadcast", key, value), self._pairs("broadcast", key, out)
        for (one, values), (_, targets) in zip(pairs, outs):
            held = summed("broadcast", self._read("broadcast", values[:1]), view("broadcast", values[0]))
            variable = self._engine.var(f"broadcast {one}")
            run = functools.partial(self._communicator.broadcast, held, priority=priority)
            self._engine.collective(self._communicator, run, (variable,), priority, name=f"broadcast {one}")
            self._copy("broadcast", None, variable, held, targets, priority, async_op)

    def row_sparse_pull(self, key: Any, out: Any, priority: int = 0, row_ids: Any = None) -> None:
        """Copy some rows of a row-sparse value into ``out``; all other rows of ``out`` are zero then.

        Args:
            out: a :class:`RowSparse`, or a list of them; in a store of several workers one for a key.
            row_ids: whole numbers for each of ``out``, or for all; in any order, and any number of times.
        """
        import numpy as np

        self._stores("row_sparse_pull")
        level("row_sparse_pull", "priority", priority)
        if row_ids is None:
            raise ArgumentError("row_sparse_pull: pass row_ids, the rows to copy")
        several = isinstance(row_ids, (list, tuple)) and len(row_ids) > 0 and not np.isscalar(row_ids[0])
        given = iter(list(row_ids)) if several else None
        for one, outs in self._pairs("row_sparse_pull", key, out):
            stored = self._known("row_sparse_pull", one)
            if stored.rows is None or not all(isinstance(target, RowSparse) for target in outs):
                raise ArgumentError(f"row_sparse_pull: key {one!r} and its out have to be row-sparse; use pull for dense arrays")
            if self._communicator is not None and len(outs) > 1:
                raise ArgumentError(f"row_sparse_pull: key {one!r} has {len(outs)} outs; a store of several workers takes one")
            self._wait(stored.variable)
            for target in outs:
                wanted = row_ids if given is None else next(given, None)
                if wanted is None:
                    raise ArgumentError("row_sparse_pull: there are more outs than row_ids; pass one list for each, or one for all")
                rows = np.unique(np.asarray(wanted, np.int64).reshape(-1))
                check_rows("row_sparse_pull", rows, stored.value.shape)
                target.replace(stored.value[rows], rows)

    def wait(self, *arrays: Any) -> None:
        """Wait until these arrays, given as ``out`` with ``async_op``, have their values; raise the first failure of any."""
        failures = []
        for array in arrays:
            try:
                self._wait(array)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def wait_all(self) -> None:
        """Wait for all that goes on behind this store, and raise what has failed."""
        try:
            self._engine.wait_all()
        except PeerLostError as error:
            self._lost.update(error.ranks)
            raise

    def barrier(self) -> None:
        """Return once all workers have called it."""
        if self._communicator is not None:
            variable = self._engine.var("barrier")
            self._engine.collective(self._communicator, self._communicator.barrier, (variable,), name="barrier")
            self._wait(variable)

    def num_dead_node(self, node_id: int = 0, timeout: float = 60) -> int:
        """How many workers this one knows to be lost, from operations that failed. MXNet's arguments change nothing."""
        return len(self._lost)

    def set_updater(self, updater: Callable[[Any, Any, Any], object] | None) -> None:
        """Have ``updater(key, received, stored)`` change the stored value by each push; ``None``: a push replaces it.

        In a store of several workers it runs on each, on the same sum, so all workers pass the same one.
        """
        self._stores("set_updater")
        if updater is not None and not callable(updater):
            raise TypeError(f"set_updater: updater is a {type(updater).__name__}, which cannot be called")
        self._settle()
        self._updater, self._optimizer = updater, None

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Have an optimizer change the stored values by each push. In a store of several workers rank 0's is taken by all.

        Each worker applies it to the same sum, where MXNet's servers do; the values are the same.

        Args:
            optimizer: one that :func:`create_optimizer` has made, or its name.
        """
        self._stores("set_optimizer")
        chosen = create_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
        if not isinstance(chosen, Optimizer):
            raise TypeError(f"set_optimizer: optimizer is a {type(chosen).__name__}; make it with create_optimizer(name)")
        self._settle()
        if self._communicator is not None:
            self._engine.wait(self._communicator)
            chosen = _agreed(self._communicator, chosen)
        self._optimizer = chosen
        self._updater = functools.partial(_update, chosen)

    def set_gradient_compression(self, params: dict[str, Any]) -> None:
        """Ask for ``{"type": "1bit"}`` or ``{"type": "2bit", "threshold": 0.5}``; this version says that it has no codecs yet."""
        codec_of(self._kind, params)

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file, and with ``dump_optimizer`` the optimizer. Only in a store of one process."""
        optimizer = self._of_one_process("save_optimizer_states")
        held = {"states": optimizer.states, "name": optimizer.name, "params": optimizer.params if dump_optimizer else None}
        pathlib.Path(fname).write_bytes(pack("save_optimizer_states", held).tobytes())

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Take the optimizer's state from a file of :meth:`save_optimizer_states`."""
        import numpy as np

        optimizer = self._of_one_process("load_optimizer_states")
        held = unpack("load_optimizer_states", np.frombuffer(pathlib.Path(fname).read_bytes(), np.uint8))
        if held["name"] != optimizer.name:
            raise ArgumentError(f"load_optimizer_states: {fname} is of {held['name']}, and the store has {optimizer.name}")
        optimizer.states = held["states"]
        if held["params"] is not None:
            optimizer.params = held["params"]

    def _of_one_process(self, call: str) -> Optimizer:
        if self._communicator is not None:
            raise UnsupportedError(f"{call}: a store of several workers keeps no states in files; save them on your own")
        if self._optimizer is None:
            raise ArgumentError(f"{call}: the store has no optimizer; call set_optimizer first")
        self._settle()
        return self._optimizer

    def _stores(self, call: str) -> None:
        if self._kind == "horovod":
            raise UnsupportedError(f"{call}: a store of type 'horovod' stores nothing; use pushpull and broadcast, or 'dist_sync'")

    def _pairs(self, call: str, key: Any, values: Any) -> list[tuple[Any, list[Any]]]:
        return keyed(call, key, values, self._keys)

    def _known(self, call: str, key: Any) -> _Stored:
        if key not in self._stored:
            raise ArgumentError(f"{call}: key {key!r} has no value; call init first")
        return self._stored[key]

    def _read(self, call: str, values: list[Any]) -> list[Any]:
        """Values that may be read now: what an earlier call writes into them is there."""
        if not values:
            raise ArgumentError(f"{call}: a key has an empty list of values")
        for value in values:
            if not isinstance(value, RowSparse):
                view(call, value)
                self._wait(value)
        return [view(call, value) for value in values]

    def _settle(self) -> None:
        """Let earlier pushes meet the updater of their time."""
        for stored in self._stored.values():
            self._wait(stored.variable)

    def _wait(self, thing: Any) -> None:
        try:
            self._engine.wait(thing)
        except PeerLostError as error:
            self._lost.update(error.ranks)
            raise


def _trees_of(topology: str) -> Trees:
    path, _, name = topology.partition("#")
    try:
        return _herringbone.device_trees(pathlib.Path(path).read_text(), name or None)
    except ValueError as error:
        raise ArgumentError(f"create: the topology {topology}: {error}") from None


def _update(optimizer: Optimizer, key: Any, received: Any, stored: Any) -> None:
    optimizer.update(key, view("push", received), view("push", stored))


def _agreed(communicator: Communicator, optimizer: Optimizer) -> Optimizer:
    """Rank 0's optimizer, made anew from its name and numbers."""
    import numpy as np

    told = pack("set_optimizer", [optimizer.name, optimizer.params])
    length = np.array([told.size], np.int64)
    communicator.broadcast(length)
    told = np.resize(told, int(length[0]))
    communicator.broadcast(told)
    name, params = unpack("set_optimizer", told)
    return create_optimizer(name, **params)
