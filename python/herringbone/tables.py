"""A parameter server: tables of rows that live on servers, which workers push to and pull from, each at its own time.

Servers are processes: ``herringbone serve --tables``. Each worker connects to all of them::

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
"""What elements can be, by their names in numpy (bfloat16: in ml_dtypes) and torch."""
NAMES = {short: name for name, short in TYPES.items()}
WORKERS_MOST = 1 << 16
"""A table has at most so many workers, and takes at most so many steps together."""
ELSEWHERE = "in another process that lives: give each process a rank of its own"
"""What a server says of a rank that it has already, and cannot tell who has it."""
HERE = "by another ParameterServer of this process: close that one first"
"""What is said if it is this process."""


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

    Each worker of a job makes one, and opens the same tables. Leaving it as a context, or ``close()``, says goodbye: the steps of
    other workers do without this one. A worker that dies is waited for as long as its servers' ``--patience`` says.

    This is the design of ps-lite and of Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014).
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

        ``rank`` and ``workers`` are this worker's rank and how many there are. ``timeout`` says how many seconds a call may take.
        What is ``None`` comes from the environment: ``HERRINGBONE_TABLES``, ``RANK`` and ``WORLD_SIZE`` or what else launchers set,
        ``HERRINGBONE_TOKEN``, ``HERRINGBONE_TIMEOUT_S``.

        Raises :class:`ConfigError`, :class:`AuthError`, or :class:`RendezvousError` if a server is not there in time.
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
        """Take part in the table ``name``, which is made if there is none. All workers say the same of it.

        It has keys from 0 to ``rows - 1``, each with a row of ``width`` elements of ``dtype``: ``float32``, ``float64`` or
        ``bfloat16``. The rows of a ``sparse`` table take up memory only once they were pushed to. A row is at first what
        ``initializer`` says: ``"zeros"``; ``"normal"``, around 0, with a standard ``deviation``, by ``seed`` and key; or, in a
        sparse table, ``None``: it does not exist.

        ``optimizer`` says what a push does: ``"add"``, ``"assign"``, ``"sgd"``, ``"nag"``, ``"adagrad"``, ``"rmsprop"``, ``"adam"``,
        ``"adamw"``, ``"adamw-mxnet"``, ``"lamb"``, ``"ftrl"`` or ``"signum"``, with its ``numbers``, such as ``{"learning_rate": 0.1, "momentum": 0.9}``.

        ``consistency`` says which pushes a pull sees. ``"async"``: those that have come. ``"sync"``: all of the steps that this worker
        has ended, and none of later ones; the pushes of a step are summed with the bits of an all-reduce. A number: at least those
        of all these steps but the last so many. ``"first:4"``: those that have come, of steps that take effect four at a time, whichever
        workers end them; their pushes are summed.

        With ``restore`` a table that is not there is made as it is in the newest snapshot in its servers' ``--data``, with optimizer
        and steps, if there is one: :meth:`Table.snapshot`. These may have been written by another number of servers.

        A push with a NaN is refused, or with ``nan="count"`` taken and counted.
        While it is open here, to open it again gives the same table. A table outlives its workers: it is there until somebody drops it,
        or its servers end.

        Raises :class:`TableError` if there can be no such table, or there is another one of the name.
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
        """Forget a table on all servers. Who uses it gets an error.

        Raises :class:`TableError` if there is none of the name.
        """
        self._native.drop_table(name)

    def _is_here(self, name: str) -> bool:
        """Whether another parameter server of this process has the table for the same rank."""
        others = [other for other in list(_open) if other is not self and other.rank == self.rank]
        return any(table.name == name for other in others for table in list(other._tables))

    def close(self) -> None:
        """Close all its tables, and say goodbye."""
        _open.discard(self)
        for table in list(self._tables):
            table.close()
        self._native.close()

    def __enter__(self) -> ParameterServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


_open: weakref.WeakSet[ParameterServer] = weakref.WeakSet()
"""Those of this process."""


class Table:
    """A table of rows on a parameter server; :meth:`ParameterServer.table` opens it::

        rows = table.pull(keys)
        table.push(keys, gradients)
        table.end_step()

    Its calls can be made by several threads. ``name``, ``rows``, ``width`` and ``optimizer`` are as they were given. Keep the
    object: a table that Python collects is closed.
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
        """How many steps this worker has ended, perhaps in an earlier process."""
        return self._native.step

    def push(self, keys: Any, values: Any, *, more: bool = False) -> None:
        """Change the rows of ``keys`` by ``values``, of shape ``(len(keys), width)``; rows of a key that comes twice are added up.

        Keys are whole numbers in any order: one, or a list, array or tensor of any shape, whose values are as many rows.

        It returns when all servers have taken the push. It ends this worker's step, unless ``more`` pushes of the step follow.

        Raises :class:`TableError` for keys and values that the table cannot have: then nothing is pushed.
        """
        import numpy as np

        keys = _keys("push", keys)
        rows = np.ascontiguousarray(self._values("push", values, keys.size))
        self._native.push(_span(keys), 0, _span(rows), (keys, rows), more)

    def push_range(self, first: int, values: Any, *, more: bool = False) -> None:
        """As :meth:`push`, for the rows from key ``first`` on: as many as ``values``, of shape ``(n, width)``, has."""
        import numpy as np

        first = self._place("push_range", "first", first, "the first key", self.rows - 1)
        rows = np.ascontiguousarray(self._values("push_range", values, None))
        self._native.push(None, first, _span(rows), rows, more)

    def pull(self, keys: Any, out: Any = None) -> Any:
        """The rows of ``keys``, of shape ``(len(keys), width)``, in a new array or in ``out``.

        It waits until the table's consistency holds for this worker's step. If ``keys`` are a tensor of torch the new rows are one.

        Raises :class:`TableError` for keys that the table does not have.
        """
        indices = _keys("pull", keys)
        result, into = self._out("pull", out, indices.size, keys)
        self._native.pull(_span(indices), 0, _span(into), (indices, into))
        return result

    def pull_range(self, first: int, count: int, out: Any = None) -> Any:
        """As :meth:`pull`, for ``count`` rows from key ``first`` on.

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
        """Have values travel coded from now on, in this worker's pushes and pulls: ``"bf16"``, ``"fp16"``, ``"int8"`` or ``"plain"``.

        Of a table of float32 only. Servers keep and change rows as they are. Each row is coded by itself, ``"int8"`` to 255 multiples
        of 1/127 of its largest magnitude. What a codec loses is lost: nothing is fed back. Keys are never coded.

        Raises :class:`ArgumentError` for another codec; :class:`TableError` for a table of other elements.
        """
        self._native.set_codecs(push, pull)

    def end_step(self) -> None:
        """End this worker's step without a push."""
        self._native.end_step()

    def snapshot(self) -> int:
        """Have all servers write the table to their ``--data``, with optimizer and steps, while training goes on.

        It is written as it is once all workers have ended as many steps as this one; an async table as it is, range by range. One
        worker calls it, and goes on once all is on disk. The two newest snapshots are kept. Returns the snapshot's number, which is
        the time in nanoseconds.

        Raises :class:`TableError` if it cannot be written: then earlier snapshots are as they were.
        """
        return self._native.snapshot()

    def tune(self, **numbers: float) -> None:
        """Change numbers of the optimizer, such as ``learning_rate=0.01``, for what takes effect after this.

        In a sync table these are also the pushes of the step that is under way. One worker calls it, or all with the same numbers.

        After ``assigns=1`` what is pushed takes the place of what was there, until ``assigns=0``. This gives a table its first values.
        """
        checked = [(parameter, _number(self.name, parameter, number)) for parameter, number in numbers.items()]
        for parameter, number in checked:
            self._native.tune(parameter, number)

    def close(self) -> None:
        """Take part no more: the steps of other workers do without this one."""
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
        """An array over the memory of rows, so many or any number."""
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
        """Where rows go: as the caller gets it, and as a numpy array over the same memory."""
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
            raise ArgumentError(f"{call}: out is no contiguous array that can be written to")
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
        f"table {name!r}: optimizer is {optimizer!r}; pass a name: {known}, or own:NAME. Servers run no Python: an optimizer of your own "
        f'is in Rust, in a server of your own, as docs/tables.md says under "An optimizer of your own"'
    )


def _numbers(name: str, numbers: Any) -> list[tuple[str, float]]:
    """An optimizer's numbers by their names."""
    given = {} if numbers is None else numbers
    if not isinstance(given, Mapping) or not all(isinstance(parameter, str) for parameter in given):
        wanted = 'pass them by their names, such as {"learning_rate": 0.1}'
        raise ArgumentError(f"table {name!r}: numbers is {numbers!r}; {wanted}")
    return [(parameter, _number(name, parameter, number)) for parameter, number in given.items()]


def _flag(name: str, what: str, given: Any) -> bool:
    """Yes or no."""
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
    """For how many steps pushes may be missing from a pull; ``None`` if for any number."""
    if not isinstance(consistency, str | bool) and hasattr(consistency, "__index__"):
        return _whole(name, "consistency", consistency, 32)
    if _first(name, consistency) is not None:
        return None
    if consistency not in ("sync", "async"):
        known = '"sync", "async", "first:K" or a number of steps from 0'
        raise ArgumentError(f"table {name!r}: consistency is {known}, not {consistency!r}")
    return 0 if consistency == "sync" else None


def _first(name: str, consistency: str | int) -> int | None:
    """How many steps take effect together, if the consistency says that."""
    if not isinstance(consistency, str) or not consistency.startswith("first:"):
        return None
    count = consistency.removeprefix("first:")
    # Compared as text, so that a number has one form.
    if not count.isdecimal() or count != str(int(count)) or not 1 <= int(count) <= WORKERS_MOST:
        raise ArgumentError(f"table {name!r}: consistency is {consistency!r}; write first:K, with K from 1 to {WORKERS_MOST}")
    return int(count)


def _look(value: Any) -> tuple[Any, str]:
    """A numpy array over the memory of an array or a tensor, and the name of its elements' type. bfloat16 are 16 bits to it."""
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
