"""Sends a model's state from one rank to all others: nested dictionaries and lists of arrays, tensors and plain values.

The message is a description in JSON and the bytes of the arrays. Nothing is pickled: a state holds data, not code.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .arrays import copied, new_array
from .errors import HerringboneError
from .plain import build, describe

if TYPE_CHECKING:
    import numpy as np

    from .communicator import Communicator

__all__ = ["broadcast_state"]

MOST_DESCRIBED = 256 << 20
"""The longest description, in bytes."""


def broadcast_state(communicator: Communicator, state: Any, *, root: int | None = None, newest: int = 0) -> Any:
    """Give every rank the state of one rank, for instance after a new process has joined. All ranks of the group call it.

    Args:
        communicator: the group.
        state: dictionaries, lists and tuples of numpy arrays, torch tensors, numbers, texts, booleans and ``None``, such as
            ``model.state_dict()`` and ``optimizer.state_dict()`` in a dictionary with the number of the step. Only the
            root's state is used. Tensors arrive on the CPU.
        root: the rank whose state it is; the same on all ranks. By default the rank with the largest ``newest``, and the lowest
            of several.
        newest: the progress of this rank's state, such as its number of steps; a new process without a state passes -1.

    Returns:
        The root's state; on the root itself the object that it passed.

    Raises:
        TypeError: on the root, if the state holds something else.
        OutOfMemoryError: on all ranks, if one has no memory for it.
        HerringboneError: the root's state cannot be sent, or the collective failed.
    """
    import numpy as np

    newest = whole("broadcast_state", "newest", newest, "a number")
    root = _furthest(communicator, newest) if root is None else communicator._root("broadcast_state", root)
    if communicator.rank == root:
        return _send(communicator, state, root)
    length = int(communicator.broadcast(np.zeros(1, np.int64), root)[0])
    if length < 0:
        raise HerringboneError(f"broadcast_state: rank {root} has a state that cannot be sent; its own error says why")
    if length > MOST_DESCRIBED:
        raise HerringboneError(f"broadcast_state: rank {root} announces a description of {length} bytes: too long")
    text = bytes(communicator.broadcast(new_array("broadcast_state", (length,), np.uint8), root))
    header = json.loads(text)
    # Everything is received before it is used, so that a failure leaves the ranks in step.
    arrays = [_received(communicator, np.dtype(dtype), shape, root) for dtype, shape in header["arrays"]]
    return build("broadcast_state", header["state"], iter(arrays))


def _received(communicator: Communicator, dtype: np.dtype[Any], shape: list[int], root: int) -> np.ndarray[Any, Any]:
    import numpy as np

    size = math.prod(shape) * dtype.itemsize
    values = communicator.broadcast(new_array("broadcast_state", (size,), np.uint8), root) if size else np.empty(0, np.uint8)
    array: np.ndarray[Any, Any] = values.view(dtype).reshape(shape)
    return array


def _furthest(communicator: Communicator, newest: int) -> int:
    """The lowest rank with the newest state."""
    import numpy as np

    everybody = np.zeros(communicator.size, np.int64)
    communicator.all_gather(np.array([newest], np.int64), out=everybody)
    return int(everybody.argmax())


def _send(communicator: Communicator, state: Any, root: int) -> Any:
    import numpy as np

    arrays: list[np.ndarray[Any, Any]] = []
    try:
        described = describe("broadcast_state", state, "state", arrays)
        header = {"state": described, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > MOST_DESCRIBED:
            raise TypeError(
                f"broadcast_state: the state's description has {len(text)} bytes: the state has too many values that are not arrays"
            )
    except Exception:
        # The others wait for the length.
        communicator.broadcast(np.array([-1], np.int64), root)
        raise
    communicator.broadcast(np.array([len(text)], np.int64), root)
    communicator.broadcast(copied("broadcast_state", np.frombuffer(text, np.uint8)), root)
    for array in arrays:
        if array.size:
            communicator.broadcast(array.reshape(-1).view(np.uint8), root)
    return state
