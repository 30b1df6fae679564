"""Python values between ranks, over the collectives: as plain data, because nothing here runs what another rank sends."""

from __future__ import annotations

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
"""In place of a length: the root has no bytes to send, since its object is none that travels."""


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``, on every rank.

    It consists of dictionaries, lists, tuples, sets, tensors, arrays, numbers, texts, bytes and ``None``. Nothing is pickled,
    because a rank does not run what another one sends.

    Args:
        name: the same on all ranks.

    Raises:
        TypeError: on the root, if the object holds something else.
        HorovodInternalError: on the others then; or the collective failed.
    """
    return send_object(obj, root_rank, name or "broadcast_object", process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """The objects of all ranks, in their order; they consist of what :func:`broadcast_object` takes.

    Raises:
        TypeError: on the rank whose object holds something else.
        HorovodInternalError: on the others then; or the collective failed.
    """
    return gather_objects(obj, name or "allgather_object", process_set)


def send_object(obj: Any, root_rank: int, name: str, process_set: ProcessSet) -> Any:
    """The object of ``root_rank`` on every rank of the set; on the root itself the very object.

    Raises:
        TypeError: on the root, if the object holds something that does not travel.
        MemoryError: on a rank that has no memory for it.
        HorovodInternalError: on the others then; or the collective failed.
    """
    import numpy as np

    index_in(process_set, root_rank, "broadcast_object")
    is_root = required().rank == root_rank
    packed, refused = np.empty(0, np.uint8), None
    if is_root:
        try:
            packed = plain.pack("broadcast_object", obj)
        except Exception as error:
            refused = error
    length = np.array([REFUSED if refused else packed.size], np.int64)
    _broadcast(length, root_rank, name + ".sz", process_set)
    if refused is not None:
        raise refused
    if length[0] == REFUSED:
        text = f"broadcast_object: rank {root_rank} has an object that cannot be sent; its own error says why"
        raise HorovodInternalError(text)
    if not is_root:
        packed = new_array("broadcast_object", (int(length[0]),), np.uint8)
    _broadcast(packed, root_rank, name + ".t", process_set)
    return obj if is_root else plain.unpack("broadcast_object", packed)


def gather_objects(obj: Any, name: str, process_set: ProcessSet) -> list[Any]:
    """The objects of all ranks of the set, in their order.

    Raises:
        TypeError: on the rank whose object holds something that does not travel.
        MemoryError: on a rank that has no memory for its own.
        HorovodInternalError: on the others then; or the collective failed.
    """
    import numpy as np

    packed, refused = np.empty(0, np.uint8), None
    try:
        packed = plain.pack("allgather_object", obj)
    except Exception as error:
        refused = error
    lengths = _gather(np.array([REFUSED if refused else packed.size], np.int64), name + ".sz", process_set)
    if refused is not None:
        raise refused
    if REFUSED in lengths:
        rank = process_set.ranks[int(np.argmin(lengths))]
        text = f"allgather_object: rank {rank} has an object that cannot be sent; its own error says why"
        raise HorovodInternalError(text)
    everything = _gather(packed, name + ".t", process_set)
    ends = np.cumsum(lengths).tolist()
    return [plain.unpack("allgather_object", everything[begin:end]) for begin, end in pairwise([0, *ends])]


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
