"""Plain values as JSON and arrays: what travels between ranks that trust each other with data, and with no code.

Nothing here pickles. Both ends know the same few kinds of values; each is a JSON value, or a dictionary of one entry that
names its kind.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import HerringboneError
from .unlike import unlike_its_memory

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["build", "describe", "pack", "unpack"]

PLAIN = (bool, int, float, str, type(None))
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
LENGTH_BYTES = 8
"""Of the number before a packed value's description."""


def pack(call: str, value: Any, where: str = "the object") -> Array:
    """``value`` as bytes in an array: the length of its description, the description, and the bytes of its arrays.

    Raises:
        TypeError: it holds something that is no plain value, array or tensor; the text begins with ``call`` and ``where``.
    """
    import numpy as np

    arrays: list[Array] = []
    described = describe(call, value, where, arrays)
    header = {"value": described, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [np.frombuffer(len(text).to_bytes(LENGTH_BYTES, "little") + text, np.uint8)]
    parts += [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return np.concatenate(parts)


def unpack(call: str, packed: Array) -> Any:
    """The value that :func:`pack` has made these bytes of."""
    import numpy as np

    length = int.from_bytes(packed[:LENGTH_BYTES].tobytes(), "little")
    header = json.loads(packed[LENGTH_BYTES : LENGTH_BYTES + length].tobytes())
    at, arrays = LENGTH_BYTES + length, []
    for name, shape in header["arrays"]:
        array = np.empty(shape, name)
        array.reshape(-1).view(np.uint8)[:] = packed[at : at + array.nbytes]
        at += array.nbytes
        arrays.append(array)
    return build(call, header["value"], iter(arrays))


def describe(call: str, value: Any, where: str, arrays: list[Array]) -> Any:
    """What JSON says of a value; the arrays in it go to ``arrays``, in order.

    Raises:
        TypeError: it is of a kind that does not travel; the text names ``where`` it stands.
    """
    import numpy as np

    if isinstance(value, PLAIN):
        return _unnamed(value)
    if isinstance(value, dict):
        pairs = [[_key(call, key, where), describe(call, inner, f"{where}[{key!r}]", arrays)] for key, inner in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple, set, frozenset)):
        name = next(name for name, kind in SEQUENCES.items() if isinstance(value, kind))
        return {name: [describe(call, inner, f"{where}[{at}]", arrays) for at, inner in enumerate(value)]}
    if isinstance(value, (bytes, bytearray)):
        arrays.append(np.frombuffer(bytes(value), np.uint8))
        return {"bytes": len(value)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_described(call, torch, value, where, arrays)
    if isinstance(value, (np.ndarray, np.generic)):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{call}: {where} is a masked array; pass its data and its mask")
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise TypeError(f"{call}: {where} is an array of {array.dtype}, which is not plain numbers")
        arrays.append(array)
        return {"scalar" if isinstance(value, np.generic) else "array": list(np.shape(value))}
    raise TypeError(
        f"{call}: {where} is of the type {type(value).__name__}; pass dictionaries, lists, tuples, sets, arrays, tensors, "
        f"numbers, texts, bytes and None"
    )


def _unnamed(value: Any) -> Any:
    """A plain value as its own type: a subclass, such as an enumeration's member, arrives as what it is made of."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None


def _tensor_described(call: str, torch: Any, value: Any, where: str, arrays: list[Array]) -> Any:
    import numpy as np

    problem = unlike_its_memory(value)
    if problem is not None:
        raise TypeError(f"{call}: {where} is {problem}")
    held = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    arrays.append(held.reshape(-1).view(torch.uint8).numpy() if held.numel() else np.empty(0, np.uint8))
    return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}


def _key(call: str, key: Any, where: str) -> Any:
    if not isinstance(key, PLAIN):
        raise TypeError(f"{call}: {where} has a key of the type {type(key).__name__}; use texts or numbers")
    return _unnamed(key)


def build(call: str, described: Any, arrays: Iterator[Array]) -> Any:
    """The value that JSON describes, with the arrays that were sent."""
    if not isinstance(described, dict):
        return described
    ((kind, held),) = described.items()
    if kind == "dict":
        return {key: build(call, inner, arrays) for key, inner in held}
    if kind in SEQUENCES:
        return SEQUENCES[kind](build(call, inner, arrays) for inner in held)
    if kind == "bytes":
        return next(arrays).tobytes()
    if kind == "array":
        return next(arrays).reshape(held)
    if kind == "scalar":
        return next(arrays).reshape(())[()]
    name, shape = held
    return _tensor(call, name, shape, next(arrays))


def _tensor(call: str, name: str, shape: list[int], held: Array) -> Any:
    if "torch" not in sys.modules:
        raise HerringboneError(f"{call}: the state holds tensors; import torch on this rank")
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise HerringboneError(f"{call}: the state holds tensors of {name}, which the torch of this rank does not have")
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(held))
    return tensor
