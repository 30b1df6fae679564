"""RABIT's interface, for programs that lose a process and continue where they were.

::

    import numpy as np
    from herringbone import rabit

    rabit.init()
    version, model = rabit.load_checkpoint()
    if version == 0:
        model = np.zeros(10)
    while rabit.version_number() < 100:
        gradient = np.empty(10)
        rabit.allreduce(gradient, rabit.SUM, prepare_fun=lambda out: np.copyto(out, model + 1))
        model = model - 0.1 * gradient
        rabit.checkpoint(model)
    rabit.finalize()

``herringbone launch --max-attempts 20 -n 4 python program.py`` starts it, and restarts each process that ends with a failure.
The new process loads the last checkpoint. Calls that the others have made since then return at once, with the results that the
others keep, and without calling ``prepare_fun``, which must make no calls of this module itself. Meanwhile the others wait in
their next call.

The names are the same as in RABIT's own module (dmlc/rabit), with these differences:

* Nothing is pickled. Models and broadcast objects are arrays, bytes, numbers, texts, ``None``, and lists, tuples, sets and
  dictionaries of these, whose keys are texts or numbers.
* :func:`allreduce` overwrites its array if that has the right layout, and returns an array of its shape.
* The library needs no tracker, so :func:`init` has no ``lib``.

All calls must be made by one thread.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from . import _herringbone
from .advice import in_words_of
from .arguments import whole
from .arrays import fold_type, move_type, readable, writable
from .errors import HerringboneError
from .kinds import Call, kind_of
from .listing import listing
from .needs import needs
from .plain import describe, pack, unpack

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = [
    "BITOR",
    "MAX",
    "MIN",
    "SUM",
    "allgather",
    "allreduce",
    "broadcast",
    "checkpoint",
    "finalize",
    "get_processor_name",
    "get_rank",
    "get_world_size",
    "init",
    "is_distributed",
    "kept_bytes",
    "lazy_checkpoint",
    "load_checkpoint",
    "tracker_print",
    "version_number",
]

__dir__ = listing(__name__)

MAX, MIN, SUM, BITOR = 0, 1, 2, 3
_OPS = {MAX: "max", MIN: "min", SUM: "sum", BITOR: "bit_or"}

_joined: _herringbone.Rabit | None = None


def init(args: Iterable[str | bytes] | None = None) -> None:
    """Join the job, or continue in it if this process replaces a lost one.

    Args:
        args: the program's arguments, by default ``sys.argv``. About ``rabit_global_replica=5`` ranks keep a result once all
            ranks have it. ``rabit_local_replica=2`` other ranks keep a local model. Ranks wait ``rabit_timeout_sec=1800``
            seconds for a process to restart. Any other name that begins with ``rabit_`` and is not one of RABIT's causes a
            warning.

    Raises:
        TypeError: ``args`` is one text instead of a list of texts.
        ReplayError: the others have dropped results that this process needs.
        HerringboneError: the job was not formed, or this process has joined already.
    """
    global _joined
    if _joined is not None:
        raise HerringboneError("rabit.init was called before: call finalize() first")
    if isinstance(args, (str, bytes)):
        raise TypeError(f"rabit.init: args is the text {args!r}; pass a list of arguments: [{args!r}]")
    needs("herringbone.rabit", "numpy")
    given = sys.argv if args is None else args
    _joined = _herringbone.Rabit([item.decode() if isinstance(item, bytes) else item for item in given])


@in_words_of("rabit")
def finalize() -> None:
    """Wait until all ranks call this, and leave the job. A process that ends without it is treated as lost.

    Raises:
        HerringboneError: :func:`init` was not called, or a rank is lost for good.
    """
    global _joined
    rabit, _joined = _rabit("finalize"), None
    rabit.finalize()


def get_rank() -> int:
    """This process's rank."""
    return _rabit("get_rank").place()[0]


def get_world_size() -> int:
    """How many ranks there are."""
    return _rabit("get_world_size").place()[1]


def is_distributed() -> bool:
    """Whether there are other ranks."""
    return get_world_size() > 1


def get_processor_name() -> str:
    """The name of this process's host."""
    return _rabit("get_processor_name").place()[2]


def tracker_print(msg: object) -> None:
    """Print a line on standard error, with this rank in front. In RABIT the tracker prints it."""
    _rabit("tracker_print").tracker_print(str(msg))


def version_number() -> int:
    """How many checkpoints there are."""
    return _rabit("version_number").version()


def kept_bytes() -> int:
    """How many bytes of results this rank keeps for restarted processes."""
    return _rabit("kept_bytes").kept_bytes()


def allreduce(data: Array, op: int, prepare_fun: Callable[[Array], object] | None = None) -> Array:
    """Fold an array over all ranks, element by element.

    Args:
        data: any shape; the same number of elements and type on every rank. The result overwrites it if it is C-contiguous and
            writable, even if it is a view of another array. Otherwise the result is a new array, and ``data`` is not changed.
            RABIT always copies: pass ``data.copy()`` to keep the input.
        op: :data:`MAX`, :data:`MIN`, :data:`SUM`, or, for integers, :data:`BITOR`.
        prepare_fun: puts the input into the array. It is not called if the others have the result already.

    Returns:
        The result: ``data`` if that was overwritten.

    Raises:
        ReplayError: the others have made a different call here.
        ValueError: ``op`` is none of the four.
        HerringboneError: the call failed.
    """
    import numpy as np

    rabit = _rabit("allreduce")
    if op not in _OPS:
        raise ValueError(f"allreduce: op {op!r} is none of rabit.MAX, MIN, SUM and BITOR")
    kind = kind_of("all_reduce", fold_type("allreduce", data, _OPS[op]), _OPS[op])
    is_in_place = data.flags.c_contiguous and data.flags.writeable and data.ndim > 0
    result = data if is_in_place else np.array(data, order="C", ndmin=1)
    span = writable("allreduce", result)
    call: Call = (kind, result.size, 0, span, span, result, None, 0, None)
    _make(rabit, call, _place(), None if prepare_fun is None else partial(prepare_fun, result))
    return data if is_in_place else result.reshape(data.shape)


def broadcast(data: Any, root: int) -> Any:
    """Give all ranks rank ``root``'s object, of the kinds that this module's documentation lists. Other ranks' objects are
    ignored.

    Raises:
        TypeError: the object is of another kind, or ``root`` is not an integer.
        ValueError: ``root`` is not a rank.
        HerringboneError: the call failed.
    """
    import numpy as np

    rabit = _rabit("broadcast")
    place = _place()
    rank, size, _ = rabit.place()
    root = whole("broadcast", "root", root, "a rank")
    if not 0 <= root < size:
        raise ValueError(f"broadcast: root {root} is not a rank; pass one from 0 to {size - 1}")
    is_root = root == rank
    packed = pack("broadcast", data) if is_root else None
    length = np.array([packed.size if packed is not None else 0], np.int64)
    _moved(rabit, length, root, place)
    if packed is None:
        packed = np.empty(int(length[0]), np.uint8)
    _moved(rabit, packed, root, place)
    return data if is_root else unpack("broadcast", packed)


def _moved(rabit: _herringbone.Rabit, array: Array, root: int, place: int) -> None:
    span = writable("broadcast", array)
    call: Call = (kind_of("broadcast", "u8"), array.nbytes, root, span, span, array, None, 0, None)
    _make(rabit, call, place)


def allgather(data: Array) -> Array:
    """Gather an array from each rank, all of one shape and type, into an array with the rank as a new first dimension.

    Raises:
        MismatchError: the ranks' arrays differ in size, or in a type that the engine knows.
        HerringboneError: the call failed.
    """
    import numpy as np

    rabit = _rabit("allgather")
    data = np.ascontiguousarray(data)
    dtype, scale = move_type("allgather", data)
    result = np.empty((rabit.place()[1], *data.shape), data.dtype)
    spans = readable("allgather", data), writable("allgather", result)
    call: Call = (kind_of("all_gather", dtype), data.size * scale, 0, *spans, (data, result), None, 0, None)
    _make(rabit, call, _place())
    return result


@in_words_of("rabit")
def load_checkpoint(with_local: bool = False) -> tuple[Any, ...]:
    """The last checkpoint: its version, the model that all ranks have, and, ``with_local``, this rank's own.

    Without a checkpoint the version is 0 and the models are ``None``. Calls before this one belong to no version. A new process
    finds results of broadcasts by the order of calls, and results of other calls by the line of the program that makes them. So
    make an all-reduce or all-gather from the same line on all ranks.

    Raises:
        ReplayError: calls of a version were made before this one.
    """
    loaded = _rabit("load_checkpoint").load_checkpoint()
    version, held, local = loaded if loaded is not None else (0, None, None)
    models = (held, local) if with_local else (held,)
    return version, *(None if model is None else _unpacked(model) for model in models)


@in_words_of("rabit")
def checkpoint(global_model: Any, local_model: Any = None) -> None:
    """End a version: a process that starts later begins with these models. Returns when all ranks have called it.

    Args:
        global_model: the same on all ranks.
        local_model: this rank's own; the next ranks keep copies. Either all ranks have one, or none.

    Raises:
        TypeError: a model is of a kind that this module does not support.
        ReplayError: the ranks have made different calls.
        HerringboneError: the call failed.
    """
    rabit = _rabit("checkpoint")
    held = pack("checkpoint", global_model, "the global model")
    local = None if local_model is None else pack("checkpoint", local_model, "the local model")
    spans = readable("checkpoint", held), None if local is None else readable("checkpoint", local)
    rabit.checkpoint(*spans, (held, local))


@in_words_of("rabit")
def lazy_checkpoint(global_model: Any) -> None:
    """End a version, like :func:`checkpoint`, without copying: the model is read only if a process is lost.

    In each version, make all calls first, then change the model, then make the next checkpoint. Do not change it between calls.

    Raises:
        TypeError: the model is of a kind that this module does not support.
        ReplayError: the ranks have made different calls.
        HerringboneError: the call failed.
    """
    rabit = _rabit("lazy_checkpoint")
    where = "the global model"
    # When a process is lost it is too late to find values that cannot be packed. Checking does not copy C-contiguous arrays.
    describe("lazy_checkpoint", global_model, where, [])
    rabit.lazy_checkpoint(lambda: pack("lazy_checkpoint", global_model, where).tobytes())


def _unpacked(model: bytes) -> Any:
    import numpy as np

    return unpack("load_checkpoint", np.frombuffer(model, np.uint8))


@in_words_of("rabit")
def _make(rabit: _herringbone.Rabit, call: Call, place: int, prepare: Callable[[], object] | None = None) -> None:
    rabit.call(call, place, prepare)


def _rabit(call: str) -> _herringbone.Rabit:
    if _joined is None:
        raise HerringboneError(f"rabit.{call}: call rabit.init() first")
    return _joined


def _place() -> int:
    """A number for the line of the program that calls this module."""
    frame = sys._getframe(2)
    return _number(frame.f_code.co_filename, frame.f_lineno)


@cache
def _number(file: str, line: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{file}:{line}".encode(), digest_size=8).digest(), "little")
