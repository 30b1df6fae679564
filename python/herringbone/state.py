"""A model's state from one rank to all others: nested dictionaries and lists of arrays, tensors and plain values.

What travels is a description in JSON and the bytes of the arrays. Nothing is pickled: a state holds data and no code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .errors import HerringboneError

if TYPE_CHECKING:
    import numpy as np

    from .communicator import Communicator

__all__ = ["broadcast_state"]

PLAIN = (bool, int, float, str, type(None))
MOST_DESCRIBED = 256 << 20
"""The longest description, in bytes."""


def broadcast_state(communicator: Communicator, state: Any, *, root: int | None = None, newest: int = 0) -> Any:
    """Give every rank the state of one: what a process lacks that takes part anew.

    All ranks of the group call it.

    Args:
        communicator: the group.
        state: dictionaries, lists and tuples of numpy arrays, torch tensors, numbers, texts, booleans and ``None``, such as
            ``model.state_dict()`` and ``optimizer.state_dict()`` in a dictionary with the number of the step. Only the
            root's counts. Tensors arrive on the CPU.
        root: whose state it is; the same on all ranks. If it is left out, it is that of the rank with the largest
            ``newest``, and of those the lowest.
        newest: how far this rank's state is, such as the number of its steps; a new process has none and says -1.

    Returns:
        The root's state; on the root itself the very object that it passed.

    Raises:
        TypeError: on the root, if the state holds something else.
        HerringboneError: on the others then; or the collective failed.
    """
    import numpy as np

    newest = whole("broadcast_state", "newest", newest, "a number")
    if root is None:
        root = _furthest(communicator, newest)
    elif not 0 <= (root := whole("broadcast_state", "root", root, "a rank")) < communicator.size:
        raise ValueError(f"broadcast_state: root {root} is not a rank of this group of {communicator.size}")
    if communicator.rank == root:
        return _send(communicator, state, root)
    length = int(communicator.broadcast(np.zeros(1, np.int64), root)[0])
    if length < 0:
        raise HerringboneError(f"broadcast_state: rank {root} has a state that cannot be sent; its own error says why")
    if length > MOST_DESCRIBED:
        raise HerringboneError(f"broadcast_state: rank {root} announces a description of {length} bytes: too long")
    text = bytes(communicator.broadcast(np.zeros(length, np.uint8), root))
    told = json.loads(text)
    # All is received before anything is made of it: whatever fails then leaves the ranks in step.
    arrays = [np.empty(shape, dtype) for dtype, shape in told["arrays"]]
    for array in arrays:
        if array.size:
            communicator.broadcast(array.reshape(-1).view(np.uint8), root)
    return _built(told["state"], iter(arrays))


def _furthest(communicator: Communicator, newest: int) -> int:
    """The lowest of the ranks whose state is the newest."""
    import numpy as np

    everybody = np.zeros(communicator.size, np.int64)
    communicator.all_gather(np.array([newest], np.int64), out=everybody)
    return int(everybody.argmax())


def _send(communicator: Communicator, state: Any, root: int) -> Any:
    import numpy as np

    arrays: list[np.ndarray[Any, Any]] = []
    try:
        described = _described(state, "state", arrays)
        told = {"state": described, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
        text = json.dumps(told, separators=(",", ":")).encode()
        if len(text) > MOST_DESCRIBED:
            raise TypeError(f"broadcast_state: the state's description has {len(text)} bytes, too many values beside arrays")
    except Exception:
        # The others wait for the length.
        communicator.broadcast(np.array([-1], np.int64), root)
        raise
    communicator.broadcast(np.array([len(text)], np.int64), root)
    communicator.broadcast(np.frombuffer(text, np.uint8).copy(), root)
    for array in arrays:
        if array.size:
            communicator.broadcast(array.reshape(-1).view(np.uint8), root)
    return state


def _described(value: Any, where: str, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """What JSON says of a value; the arrays in it go to ``arrays``, in order."""
    import numpy as np

    if isinstance(value, PLAIN):
        return value
    if isinstance(value, dict):
        pairs = [[_key(key, where), _described(inner, f"{where}[{key!r}]", arrays)] for key, inner in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_described(inner, f"{where}[{at}]", arrays) for at, inner in enumerate(value)]}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized:
            raise TypeError(f"broadcast_state: {where} is a tensor that is sparse or quantized")
        held = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        arrays.append(held.reshape(-1).view(torch.uint8).numpy() if held.numel() else np.empty(0, np.uint8))
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    if isinstance(value, (np.ndarray, np.generic)):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"broadcast_state: {where} is a masked array; pass its data and its mask")
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise TypeError(f"broadcast_state: {where} is an array of {array.dtype}, which is not plain numbers")
        arrays.append(array)
        return {"scalar" if isinstance(value, np.generic) else "array": list(np.shape(value))}
    raise TypeError(
        f"broadcast_state: {where} is a {type(value).__name__}; a state holds dictionaries, lists, tuples, arrays, tensors, "
        f"numbers, texts and None"
    )


def _key(key: Any, where: str) -> Any:
    if not isinstance(key, PLAIN):
        raise TypeError(f"broadcast_state: {where} has a key that is a {type(key).__name__}; use texts or numbers")
    return key


def _built(described: Any, arrays: Iterator[np.ndarray[Any, Any]]) -> Any:
    """The value that JSON describes, with the arrays that were sent."""
    if not isinstance(described, dict):
        return described
    ((kind, held),) = described.items()
    if kind == "dict":
        return {key: _built(inner, arrays) for key, inner in held}
    if kind in ("list", "tuple"):
        items = [_built(inner, arrays) for inner in held]
        return items if kind == "list" else tuple(items)
    if kind == "array":
        return next(arrays).reshape(held)
    if kind == "scalar":
        return next(arrays).reshape(())[()]
    name, shape = held
    return _tensor(name, shape, next(arrays))


def _tensor(name: str, shape: list[int], held: np.ndarray[Any, Any]) -> Any:
    if "torch" not in sys.modules:
        raise HerringboneError("broadcast_state: the state holds tensors; import torch on this rank")
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise HerringboneError(f"broadcast_state: the state holds tensors of {name}, which the torch of this rank does not have")
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(held))
    return tensor
