"""Python values between ranks, over the collectives: as plain data, so that no code of another rank runs. Pickling has to be
requested by the program."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ... import plain
from ...arrays import FOLDED, new_array, writable
from .exceptions import HorovodInternalError
from .handles import Operand, start, synchronize
from .process_sets import ProcessSet, global_process_set, index_in
from .world import required

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["allgather_object", "broadcast_object", "gather_objects", "send_object"]

REFUSED = -1
"""Sent instead of a length if the root's object cannot be sent."""
PLAIN, PICKLED = 0, 1
"""The forms of an object's bytes."""


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
) -> Any:
    """The object of ``root_rank``, on every rank.

    It can contain dictionaries, lists, tuples, sets, tensors, arrays, numbers, texts, bytes, ``None`` and some more types of
    Python's library and torch. The program's named tuples, dataclasses and enumerations are allowed, too, if all ranks have
    imported their modules. Every value arrives with its own type. Nothing is pickled, so that no rank runs code that another
    one sends.

    Args:
        name: the same on all ranks.
        allow_pickle: pickle other objects. All ranks pass it, and the job needs a token, so that strangers cannot take part.

    Raises:
        TypeError: on the root, if the object contains anything else.
        ValueError: ``allow_pickle`` in a job without a token, or on some ranks only.
        HorovodInternalError: on the other ranks if the root fails; or the collective failed.
    """
    check_pickle("broadcast_object", allow_pickle)
    return send_object(obj, root_rank, name or "broadcast_object", process_set, allow_pickle)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    allow_pickle: bool = False,
) -> list[Any]:
    """The objects of all ranks, in the order of ranks; they contain the types that :func:`broadcast_object` takes.

    Raises:
        TypeError: on a rank whose object contains anything else.
        ValueError: ``allow_pickle`` in a job without a token.
        HorovodInternalError: on the other ranks if one fails; or the collective failed.
    """
    check_pickle("allgather_object", allow_pickle)
    return gather_objects(obj, name or "allgather_object", process_set, allow_pickle)


def check_pickle(call: str, allow_pickle: bool) -> None:
    """Refuse pickled objects if a stranger could be a rank."""
    # As in the engine, an empty token is none.
    if allow_pickle and not any(os.environ.get(name) for name in ("HERRINGBONE_TOKEN", "HERRINGBONE_TOKEN_FILE")):
        raise ValueError(
            f"{call}: allow_pickle runs code that other ranks send, so the job needs a token: set HERRINGBONE_TOKEN on all ranks"
        )


def _packed(call: str, obj: Any, allow_pickle: bool) -> tuple[Array, int]:
    """An object as bytes, and their form.

    Raises:
        TypeError: it contains something that cannot be sent.
    """
    import numpy as np

    try:
        return plain.pack(call, obj), PLAIN
    except (TypeError, ValueError, RecursionError) as error:
        if not allow_pickle:
            if type(error) is TypeError:
                raise TypeError(
                    f"{error}. {call}(..., allow_pickle=True) on all ranks pickles it, in a job with a token"
                ) from None
            raise
        return np.frombuffer(pickle.dumps(obj), np.uint8).copy(), PICKLED


def _unpacked(call: str, packed: Array, form: int, rank: int, allow_pickle: bool) -> Any:
    """The object of another rank."""
    if form == PLAIN:
        return plain.unpack(call, packed)
    if not allow_pickle:
        # This is no failure of the job, for which elastic training would begin again.
        raise ValueError(f"{call}: rank {rank} sent a pickled object; pass allow_pickle=True on all ranks, or on none")
    return pickle.loads(packed.tobytes())


def send_object(obj: Any, root_rank: int, name: str, process_set: ProcessSet, allow_pickle: bool = False) -> Any:
    """The object of ``root_rank`` on every rank of the set; on the root the same object.

    Raises:
        TypeError: on the root, if the object contains something that cannot be sent.
        MemoryError: on a rank that has no memory for it.
        HorovodInternalError: on the other ranks in these cases; or the collective failed.
    """
    import numpy as np

    index_in(process_set, root_rank, "broadcast_object")
    is_root = required().rank == root_rank
    packed, form, refused = np.empty(0, np.uint8), PLAIN, None
    if is_root:
        try:
            packed, form = _packed("broadcast_object", obj, allow_pickle)
        except Exception as error:
            refused = error
    about = np.array([REFUSED if refused else packed.size, form], np.int64)
    _broadcast(about, root_rank, f"{name}.sz", process_set)
    if refused is not None:
        raise refused
    length, form = about.tolist()
    if length == REFUSED:
        text = f"broadcast_object: rank {root_rank} has an object that cannot be sent; its own error says why"
        raise HorovodInternalError(text)
    if not is_root:
        packed = new_array("broadcast_object", (length,), np.uint8)
    _broadcast(packed, root_rank, f"{name}.t", process_set)
    return obj if is_root else _unpacked("broadcast_object", packed, form, root_rank, allow_pickle)


def gather_objects(obj: Any, name: str, process_set: ProcessSet, allow_pickle: bool = False) -> list[Any]:
    """The objects of all ranks of the set, in the order of ranks.

    Raises:
        TypeError: on a rank whose object contains something that cannot be sent.
        MemoryError: on a rank that has no memory for its own.
        HorovodInternalError: on the other ranks in these cases; or the collective failed.
    """
    import numpy as np

    packed, form, refused = np.empty(0, np.uint8), PLAIN, None
    try:
        packed, form = _packed("allgather_object", obj, allow_pickle)
    except Exception as error:
        refused = error
    about = _gather(np.array([[REFUSED if refused else packed.size, form]], np.int64), f"{name}.sz", process_set).reshape(-1, 2)
    if refused is not None:
        raise refused
    lengths, forms = about.T
    if REFUSED in lengths:
        rank = process_set.ranks[int(np.argmin(lengths))]
        text = f"allgather_object: rank {rank} has an object that cannot be sent; its own error says why"
        raise HorovodInternalError(text)
    everything = _gather(packed, f"{name}.t", process_set)
    ends = np.cumsum(lengths).tolist()
    parts = zip(pairwise([0, *ends]), forms.tolist(), process_set.ranks, strict=True)
    call = "allgather_object"
    return [_unpacked(call, everything[begin:end], of, rank, allow_pickle) for (begin, end), of, rank in parts]


def _broadcast(array: Array, root_rank: int, name: str, process_set: ProcessSet) -> None:
    span = writable("broadcast", array)
    operand = Operand(span, span, FOLDED[array.dtype.name], array.shape, lambda _: None, array)
    synchronize(start(process_set, "broadcast", name, [operand], root=index_in(process_set, root_rank, "broadcast")))


def _gather(array: Array, name: str, process_set: ProcessSet) -> Array:
    import numpy as np

    def finish(result: Any) -> Array:
        return np.frombuffer(result.data or b"", array.dtype)

    span = (array.ctypes.data, array.nbytes)
    operand = Operand(span, None, FOLDED[array.dtype.name], array.shape, finish, array)
    gathered: Array = synchronize(start(process_set, "allgather", name, [operand]))
    return gathered
