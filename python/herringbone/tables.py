"""A parameter server: tables of rows on servers. Each worker pushes to them and pulls from them at its own pace.

Servers are processes, started with ``herringbone serve --tables``. Each worker connects to all of them::

    with herringbone.ParameterServer() as servers:          # HERRINGBONE_TABLES, RANK, WORLD_SIZE from the environment
        embeddings = servers.table("embeddings", rows=1_000_000, width=64, sparse=True, optimizer="adagrad")
        rows = embeddings.pull(keys)                        # numpy: len(keys) rows of 64 float32
        embeddings.push(keys, gradients)

Arrays are numpy's, or torch's tensors on the CPU.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _herringbone
from .errors import ArgumentError, TableError
from .needs import needs

__all__ = ["ParameterServer", "Table"]

TYPES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16"}
"""The types of elements, by their names in numpy (bfloat16: in ml_dtypes) and torch."""
NAMES = {short: name for name, short in TYPES.items()}
WORKERS_MOST = 1 << 16
"""The most workers of a table, and the most steps that take effect together."""
ELSEWHERE = "in another live process: give each process a rank of its own"
"""A server's words for a rank that it has already; it cannot tell which process has the rank."""
HERE = "by another ParameterServer of this process: close that one first"
"""The words if this process has it."""


@dataclass(frozen=True)
class _Spec:
    """A table as the native module takes it."""

    rows: int
    width: int
    dtype: str
    sparse: bool
    initializer: str
    seed: int
    deviation: float
    optimizer: str
    numbers: list[tuple[str, float]]
    bound: int | None
    first: int | None
    counts_nan: bool


class ParameterServer:
    """One logical parameter server, of one or more processes ``herringbone serve --tables``::

        with herringbone.ParameterServer(["10.0.0.5:7070"]) as servers:
            table = servers.table("embedding", rows=1_000_000, width=64, optimizer="adagrad")
            rows = table.pull(keys)

    Each worker of a job makes one, and opens the same tables. After the end of the ``with`` block, or ``close()``, the other
    workers' steps do not wait for this one. If a worker dies, the others wait for it for the servers' ``--patience``.

    The design follows ps-lite and Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014).
    """

    def __init__(
        self,
        servers: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        workers: int | None = None,
        token: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Connect to ``servers``, each ``"host:port"``; all workers name the same ones in the same order.

        ``rank`` and ``workers`` are this worker's rank and the number of workers. ``timeout`` is the most seconds that a call
        can take. If an argument is ``None``, it comes from the environment: ``HERRINGBONE_TABLES``, ``RANK`` and ``WORLD_SIZE``
        or the variables of another launcher, ``HERRINGBONE_TOKEN``, ``HERRINGBONE_TIMEOUT_S``.

        Raises :class:`ConfigError`, :class:`AuthError`, or :class:`RendezvousError` if a server does not answer in time.
        """
        needs("herringbone.ParameterServer", "numpy")
        if isinstance(servers, str):
            raise TypeError(f"servers is a list of addresses; write servers=[{servers!r}]")
        addresses = None if servers is None else list(servers)
        self._tables: weakref.WeakSet[Table] = weakref.WeakSet()
        self._native = _herringbone.ParameterServer.connect(
            servers=addresses, rank=rank, workers=workers, token=token, timeout=timeout
        )
        _open.add(self)

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._native.rank

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self._native.workers

    def table(
        self,
        name: str,
        *,
        rows: int,
        width: int = 1,
        dtype: Any = "float32",
        sparse: bool = False,
        initializer: str | None = "zeros",
        seed: int = 0,
        deviation: float = 0.01,
        optimizer: str = "add",
        numbers: Mapping[str, float] | None = None,
        consistency: str | int = "async",
        nan: str = "refuse",
        restore: bool = False,
    ) -> Table:
        """Open the table ``name``, which is made if it does not exist. All workers pass the same arguments.

        It has keys from 0 to ``rows - 1``, each with a row of ``width`` elements of ``dtype``: ``float32``, ``float64`` or
        ``bfloat16``. The rows of a ``sparse`` table take up memory only after the first push. ``initializer`` sets a row's first
        values: ``"zeros"``; ``"normal"``, around 0 with a standard ``deviation``, by ``seed`` and key; or, in a sparse table,
        ``None``: the row does not exist.

        ``optimizer`` decides what a push does: ``"add"``, ``"assign"``, ``"sgd"``, ``"nag"``, ``"adagrad"``, ``"rmsprop"``,
        ``"adam"``, ``"adamw"``, ``"adamw-mxnet"``, ``"lamb"``, ``"ftrl"`` or ``"signum"``, with its ``numbers``, such as
        ``{"learning_rate": 0.1, "momentum": 0.9}``.

        ``consistency`` decides which pushes a pull sees. ``"async"``: all that have arrived. ``"sync"``: all of the steps that
        this worker has ended, and none of later steps; each step is summed with the bits of an all-reduce. A number N: at least
        the pushes of all these steps except the last N. ``"first:4"``: all that have arrived; steps take effect four at a time,
        from whichever workers end them first, and their pushes are summed.

        With ``restore``, a missing table is made from the newest snapshot in its servers' ``--data``, if there is one, with
        optimizer and steps: see :meth:`Table.snapshot`. Another number of servers can have written the snapshot.

        A push with a NaN is refused, or with ``nan="count"`` accepted and counted. Opening a table that is open here returns
        the same table. A table outlives its workers: it exists until it is dropped or its servers end.

        Raises :class:`TableError` if the table is impossible, or one of this name exists with other arguments.
        """
        if nan not in ("refuse", "count"):
            raise ArgumentError(f'table {name!r}: nan is "refuse" or "count", not {nan!r}')
        if initializer not in ("zeros", "normal", None):
            raise ArgumentError(f'table {name!r}: initializer is "zeros", "normal" or None, not {initializer!r}')
        spec = _Spec(
            rows=_whole(name, "rows", rows),
            width=_whole(name, "width", width, 32),
            dtype=_dtype(name, dtype),
            sparse=_flag(name, "sparse", sparse),
            initializer=initializer or "missing",
            seed=_whole(name, "seed", seed),
            deviation=_number(name, "deviation", deviation),
            optimizer=_optimizer(name, optimizer),
            numbers=_numbers(name, numbers),
            bound=_bound(name, consistency),
            first=_first(name, consistency),
            counts_nan=nan == "count",
        )
        restores = _flag(name, "restore", restore)
        try:
            native = self._native.table(name, spec, restores)
        except TableError as error:
            if ELSEWHERE in str(error) and self._is_here(name):
                raise TableError(str(error).replace(ELSEWHERE, HERE), name) from None
            raise
        table = Table(native, name, spec)
        self._tables.add(table)
        return table

    def drop_table(self, name: str) -> None:
        """Delete a table on all servers. Workers that use it get an error.

        Raises :class:`TableError` if no table has this name.
        """
        self._native.drop_table(name)

    def _is_here(self, name: str) -> bool:
        """Whether another parameter server of this process has the table for the same rank."""
        others = [other for other in list(_open) if other is not self and other.rank == self.rank]
        return any(table.name == name for other in others for table in list(other._tables))

    def close(self) -> None:
        """Close all its tables, and disconnect."""
        _open.discard(self)
        for table in list(self._tables):
            table.close()
        self._native.close()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_open: weakref.WeakSet[ParameterServer] = weakref.WeakSet()
"""The parameter servers of this process."""


class Table:
    """A table of rows on a parameter server; :meth:`ParameterServer.table` opens it::

        rows = table.pull(keys)
        table.push(keys, gradients)
        table.end_step()

    Several threads can call it. ``name``, ``rows``, ``width`` and ``optimizer`` are the arguments it was opened with. Keep a
    reference to the object: when Python frees it, the table is closed.
    """

    def __init__(self, native: _herringbone.Table, name: str, spec: _Spec) -> None:
        """For :meth:`ParameterServer.table`."""
        self._native = native
        self.name = name
        self.rows = spec.rows
        self.width = spec.width
        self.optimizer = spec.optimizer
        self._dtype = spec.dtype

    @property
    def step(self) -> int:
        """How many steps this worker has ended, including steps in an earlier process."""
        return self._native.step

    def push(self, keys: Any, values: Any, *, more: bool = False) -> None:
        """Change the rows of ``keys`` by ``values``, of shape ``(len(keys), width)``; rows of a repeated key are added up.

        Keys are whole numbers in any order: one, or a list, array or tensor of any shape. Values have one row for each key.

        It returns when all servers have accepted the push. It ends this worker's step, unless ``more`` pushes of the step
        follow.

        Raises :class:`TableError` for keys and values that the table cannot have. Nothing is pushed then.
        """
        import numpy as np

        keys = _keys("push", keys)
        rows = np.ascontiguousarray(self._values("push", values, keys.size))
        self._native.push(_span(keys), 0, _span(rows), (keys, rows), more)

    def push_range(self, first: int, values: Any, *, more: bool = False) -> None:
        """Like :meth:`push`, for the ``n`` rows from key ``first`` on; ``values`` has shape ``(n, width)``."""
        import numpy as np

        first = self._place("push_range", "first", first, "the first key", self.rows - 1)
        rows = np.ascontiguousarray(self._values("push_range", values, None))
        self._native.push(None, first, _span(rows), rows, more)

    def pull(self, keys: Any, out: Any = None) -> Any:
        """The rows of ``keys``, of shape ``(len(keys), width)``, in a new array or in ``out``.

        It waits until the table's consistency holds for this worker's step. If ``keys`` are a tensor of torch, so is the new
        array.

        Raises :class:`TableError` for keys that the table does not have.
        """
        indices = _keys("pull", keys)
        result, into = self._out("pull", out, indices.size, keys)
        self._native.pull(_span(indices), 0, _span(into), (indices, into))
        return result

    def pull_range(self, first: int, count: int, out: Any = None) -> Any:
        """Like :meth:`pull`, for ``count`` rows from key ``first`` on.

        Raises :class:`ArgumentError` if ``first`` is no key of the table, or ``count`` is more than all its rows.
        """
        first = self._place("pull_range", "first", first, "the first key", self.rows - 1)
        count = self._place("pull_range", "count", count, "how many rows", self.rows)
        result, into = self._out("pull_range", out, count, None)
        self._native.pull(None, first, _span(into), into)
        return result

    def push_pull(self, keys: Any, values: Any, out: Any = None) -> Any:
        """:meth:`push`, which ends the step, then :meth:`pull` of the same keys."""
        self.push(keys, values)
        return self.pull(keys, out)

    def set_codecs(self, push: str = "plain", pull: str = "plain") -> None:
        """Compress the values of this worker's later pushes and pulls: ``"bf16"``, ``"fp16"``, ``"int8"`` or ``"plain"``.

        Only for tables of float32. Servers keep and change rows uncompressed. Each row is coded by itself, ``"int8"`` to 255
        multiples of 1/127 of its largest magnitude. There is no error feedback. Keys are never compressed.

        Raises :class:`ArgumentError` for another codec; :class:`TableError` for a table of other elements.
        """
        self._native.set_codecs(push, pull)

    def end_step(self) -> None:
        """End this worker's step without a push."""
        self._native.end_step()

    def snapshot(self) -> int:
        """Let all servers write the table to their ``--data``, with optimizer and steps, while training continues.

        The snapshot has the state after all workers have ended as many steps as this one. An async table is written range by
        range, as it is at that moment. One worker calls this, and it returns once everything is on disk. The two newest
        snapshots are kept. Returns the snapshot's number, which is the time in nanoseconds.

        Raises :class:`TableError` if it cannot be written. Earlier snapshots are unchanged then.
        """
        return self._native.snapshot()

    def tune(self, **numbers: float) -> None:
        """Change numbers of the optimizer, such as ``learning_rate=0.01``, for pushes that take effect after this.

        In a sync table these include the pushes of the current step. One worker calls it, or all with the same numbers.

        After ``assigns=1`` pushed values replace the old ones, until ``assigns=0``. Use this to give a table its first values.
        """
        checked = [(parameter, _number(self.name, parameter, number)) for parameter, number in numbers.items()]
        for parameter, number in checked:
            self._native.tune(parameter, number)

    def close(self) -> None:
        """Leave the table: other workers' steps do not wait for this one."""
        self._native.close()

    def _place(self, call: str, argument: str, given: Any, meaning: str, most: int) -> int:
        """A whole number from 0 to ``most``, as an argument of a call."""
        try:
            number = operator.index(given)
        except TypeError:
            number = -1
        if not 0 <= number <= most:
            bounds = f"from 0 to {most} in the table {self.name!r}"
            raise ArgumentError(f"{call}: {argument} is {given!r}; it is {meaning}, a whole number {bounds}")
        return number

    def _values(self, call: str, values: Any, rows: int | None) -> Any:
        """An array over the memory of ``rows`` rows, or of any number if it is ``None``."""
        if isinstance(values, list | tuple) and self._dtype in ("f32", "f64"):
            import numpy as np

            values = np.asarray(values, NAMES[self._dtype])
        array, name = _look(values)
        if TYPES.get(name) != self._dtype:
            raise ArgumentError(f"{call}: values are {name}, and the table {self.name!r} has {NAMES[self._dtype]}")
        count = array.size // self.width if rows is None else rows
        if array.size != count * self.width or (array.ndim > 1 and array.shape[-1] != self.width):
            wanted = "rows" if rows is None else f"{rows} rows"
            raise ArgumentError(f"{call}: values of shape {array.shape} are no {wanted} of {self.width} elements")
        return array

    def _out(self, call: str, out: Any, rows: int, keys: Any) -> tuple[Any, Any]:
        """The place for pulled rows: the object that the caller gets, and a numpy array over the same memory."""
        import numpy as np

        if out is None:
            torch, name = sys.modules.get("torch"), NAMES[self._dtype]
            if torch is not None and (isinstance(keys, torch.Tensor) or name == "bfloat16"):
                out = torch.empty((rows, self.width), dtype=getattr(torch, name))
            elif name == "bfloat16":
                raise ArgumentError(f"{call}: numpy has no bfloat16; pass out, or import torch")
            else:
                out = np.empty((rows, self.width), name)
        elif not hasattr(out, "shape"):
            raise ArgumentError(f"{call}: out is a {type(out).__name__}; pass an array or a tensor")
        elif isinstance(out, np.ndarray) and not out.dtype.isnative:
            raise ArgumentError(
                f"{call}: out has the byte order of another machine ({out.dtype.str}); pass one of this machine's"
            )
        into = self._values(call, out, rows)
        if not into.flags.c_contiguous or not into.flags.writeable:
            raise ArgumentError(f"{call}: out is not contiguous, or not writable; pass one that is both, or leave it out")
        return out, into


def _dtype(name: str, dtype: Any) -> str:
    """The native name of a type of numpy or torch, or of its name."""
    text = str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else dtype.__name__
    if text not in TYPES:
        raise ArgumentError(f"table {name!r}: elements of {text}; use one of {', '.join(TYPES)}")
    return TYPES[text]


def _optimizer(name: str, optimizer: Any) -> str:
    """The name of an optimizer."""
    if isinstance(optimizer, str):
        return optimizer
    known = ", ".join(known for known, _ in _herringbone.optimizers())
    raise ArgumentError(
        f"table {name!r}: optimizer is {optimizer!r}; pass a name: {known}, or own:NAME. Servers run no Python: write your own optimizer "
        f'in Rust, in your own server, as docs/tables.md describes under "An optimizer of your own"'
    )


def _numbers(name: str, numbers: Any) -> list[tuple[str, float]]:
    """An optimizer's numbers by their names."""
    given = {} if numbers is None else numbers
    if not isinstance(given, Mapping) or not all(isinstance(parameter, str) for parameter in given):
        wanted = 'pass them by their names, such as {"learning_rate": 0.1}'
        raise ArgumentError(f"table {name!r}: numbers is {numbers!r}; {wanted}")
    return [(parameter, _number(name, parameter, number)) for parameter, number in given.items()]


def _flag(name: str, what: str, given: Any) -> bool:
    """``given`` if it is a bool; else an error."""
    if given not in (True, False):
        raise ArgumentError(f"table {name!r}: {what} is {given!r}; pass True or False")
    return bool(given)


def _whole(name: str, what: str, number: Any, bits: int = 64) -> int:
    """A whole number of a table, from 0."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise ArgumentError(f"table {name!r}: {what} is {number!r}; pass a whole number") from None
    if not 0 <= whole < 1 << bits:
        raise ArgumentError(f"table {name!r}: {what} is {whole}; it is a number from 0, below 2**{bits}")
    return whole


def _number(name: str, what: str, number: Any) -> float:
    try:
        return float(number)
    except (TypeError, ValueError):
        raise ArgumentError(f"table {name!r}: {what} is {number!r}; pass a number") from None


def _bound(name: str, consistency: str | int) -> int | None:
    """From how many steps pushes can be missing in a pull; ``None`` means any number."""
    if not isinstance(consistency, str | bool) and hasattr(consistency, "__index__"):
        return _whole(name, "consistency", consistency, 32)
    if _first(name, consistency) is not None:
        return None
    if consistency not in ("sync", "async"):
        known = '"sync", "async", "first:K" or a number of steps from 0'
        raise ArgumentError(f"table {name!r}: consistency is {known}, not {consistency!r}")
    return 0 if consistency == "sync" else None


def _first(name: str, consistency: str | int) -> int | None:
    """How many steps take effect together, if ``consistency`` is ``first:K``; else ``None``."""
    if not isinstance(consistency, str) or not consistency.startswith("first:"):
        return None
    count = consistency.removeprefix("first:")
    # Compared as text, so that a number has one form.
    if not count.isdecimal() or count != str(int(count)) or not 1 <= int(count) <= WORKERS_MOST:
        raise ArgumentError(f"table {name!r}: consistency is {consistency!r}; write first:K, with K from 1 to {WORKERS_MOST}")
    return int(count)


def _look(value: Any) -> tuple[Any, str]:
    """A numpy array over the memory of an array or a tensor, and the name of its elements' type. bfloat16 appears as 16
    bits."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        array = np.asarray(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return array, str(array.dtype)
    tensor = value.detach()
    if tensor.device.type != "cpu":
        raise ArgumentError(f"a tensor on {tensor.device}: tables take tensors of the CPU; write tensor.cpu()")
    name = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if name == "bfloat16" else tensor).numpy(), name


def _keys(call: str, keys: Any) -> Any:
    """Keys as the native module reads them."""
    import numpy as np

    array = _look(keys)[0].reshape(-1)
    if array.size == 0:
        return array.astype(np.uint64)
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"{call}: keys are {array.dtype}; pass whole numbers")
    if array.dtype.kind == "i" and array.min() < 0:
        raise ArgumentError(f"{call}: a key is {array.min()}; keys count from 0")
    return np.ascontiguousarray(array, np.uint64)


def _span(array: Any) -> tuple[int, int]:
    """Address and bytes."""
    return array.ctypes.data, array.nbytes
