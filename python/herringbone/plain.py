"""Plain values as JSON and arrays, for ranks that trust each other with data but not with code.

Nothing here pickles. Both ends know the same few kinds of values; each is a JSON value, or a dictionary of one entry that
names its kind. A value arrives with exactly the type that it had, or is refused.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import HerringboneError
from .plain_kinds import joined, taken_apart
from .unlike import unlike_its_memory

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["build", "describe", "pack", "unpack", "unpack_file"]

PLAIN = (bool, int, float, str, type(None))
SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
TRAVELS = (
    "pass dictionaries, lists, tuples, sets, arrays, tensors, numbers, texts, bytes or None; your own classes can be named tuples, "
    "dataclasses and enumerations"
)
LONGEST_NUMBER = 1024
"""The most bits of a whole number that is written as JSON's; Python limits the length of decimals."""
LENGTH_BYTES = 8
"""Bytes of the number before a packed value's description."""


def pack(call: str, value: Any, where: str = "the object") -> Array:
    """``value`` as bytes in an array: the length of its description, the description, and the bytes of its arrays.

    Raises:
        TypeError: it holds something that is no plain value, array or tensor; the text begins with ``call`` and ``where``.
    """
    import numpy as np

    arrays: list[Array] = []
    try:
        described = describe(call, value, where, arrays)
        header = {"value": described, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
        text = json.dumps(header, separators=(",", ":")).encode()
    except RecursionError:
        raise TypeError(f"{call}: {where} contains itself, or is nested too deeply; pass it without that") from None
    parts = [np.frombuffer(len(text).to_bytes(LENGTH_BYTES, "little") + text, np.uint8)]
    parts += [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
    return np.concatenate(parts)


def unpack(call: str, packed: Array) -> Any:
    """The value that :func:`pack` has turned into these bytes.

    Raises:
        ValueError: their number is not what the description says. This is checked before anything is allocated for them.
    """
    at = 0

    def fill(into: Array) -> None:
        nonlocal at
        into[:] = packed[at : at + into.size]
        at += into.size

    return _unpacked(call, fill, packed.size)[0]


def unpack_file(call: str, file: BinaryIO) -> Any:
    """The value that :func:`pack` has turned into the bytes of a regular file. Nothing is allocated for bytes that the file
    lacks.

    Raises:
        ValueError: the number of bytes is not what the description says.
    """

    def fill(into: Array) -> None:
        if file.readinto(into.data) != into.size:  # type: ignore[attr-defined]  # what open() gives has it
            raise ValueError("it was cut while it was read")

    value, left = _unpacked(call, fill, os.fstat(file.fileno()).st_size)
    if left:
        raise ValueError(f"it has {left} bytes more than its description")
    return value


def _unpacked(call: str, fill: Callable[[Array], None], size: int) -> tuple[Any, int]:
    """The value of ``size`` packed bytes, and how many bytes follow it. ``fill`` puts the next bytes into an array."""
    import numpy as np

    left = size

    def take(bytes: int, what: str) -> Array:
        nonlocal left
        if bytes > left:
            raise ValueError(f"{what} would take {bytes} bytes, and {left} are left")
        taken = np.empty(bytes, np.uint8)
        if bytes:
            fill(taken)
        left -= bytes
        return taken

    length = int.from_bytes(take(LENGTH_BYTES, "its length").tobytes(), "little")
    header, arrays = json.loads(take(length, "its description").tobytes()), []
    for name, shape in header["arrays"]:
        dtype = np.dtype(name)
        if dtype.hasobject:
            raise ValueError(f"an array of {dtype} is not plain numbers")
        arrays.append(
            take(math.prod(shape) * dtype.itemsize, f"an array of {dtype} and shape {shape}").view(dtype).reshape(shape)
        )
    return build(call, header["value"], iter(arrays)), left


def describe(call: str, value: Any, where: str, arrays: list[Array]) -> Any:
    """A value as JSON; its arrays are appended to ``arrays``, in order.

    Raises:
        TypeError: it is of a kind that cannot be sent; the text names its place, ``where``.
    """
    import numpy as np

    kind = type(value)
    if kind is int and value.bit_length() > LONGEST_NUMBER:
        return {"int": hex(value)}
    if kind in PLAIN:
        return value
    if kind is dict:
        pairs = [
            [_key(call, key, where, arrays), describe(call, inner, f"{where}[{key!r}]", arrays)] for key, inner in value.items()
        ]
        return {"dict": pairs}
    if kind in SEQUENCES.values():
        return {kind.__name__: [describe(call, inner, f"{where}[{at}]", arrays) for at, inner in enumerate(value)]}
    if kind is bytes:
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(value)}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_described(call, torch, value, where, arrays)
    if kind is np.ndarray or isinstance(value, np.generic):
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject or array.dtype.names is not None:
            raise TypeError(f"{call}: {where} is an array of {array.dtype}, which is not plain numbers")
        if np.dtype(array.dtype.str) != array.dtype:
            raise TypeError(
                f"{call}: {where} is an array of {array.dtype}, which numpy alone does not know; pass its bits, such as view(numpy.uint8)"
            )
        arrays.append(array)
        return {"scalar" if kind is not np.ndarray else "array": list(np.shape(value))}
    try:
        parts = taken_apart(value)
    except TypeError as error:
        raise TypeError(f"{call}: {where} {error}") from None
    if parts is None:
        raise TypeError(f"{call}: {where} is of the type {kind.__name__}; {_in_place_of(value)}")
    return {parts[0]: describe(call, parts[1], where, arrays)}


def _in_place_of(value: Any) -> str:
    """Advice on what to pass instead of a value that cannot be sent."""
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        return "pass its data and its mask"
    if isinstance(value, np.ndarray):
        return "pass numpy.asarray(...) of it"
    for plain in (dict, list, tuple, set, str, int, float):
        if isinstance(value, plain):
            return f"pass {plain.__name__}(...) of it, since it would arrive as another type"
    return TRAVELS


def _tensor_described(call: str, torch: Any, value: Any, where: str, arrays: list[Array]) -> Any:
    import numpy as np

    problem = unlike_its_memory(value)
    if problem is not None:
        raise TypeError(f"{call}: {where} is {problem}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"{call}: {where} is of the type {type(value).__name__}; pass value.as_subclass(torch.Tensor)")
    held = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    arrays.append(held.reshape(-1).view(torch.uint8).numpy() if held.numel() else np.empty(0, np.uint8))
    described = {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    return described if type(value) is torch.Tensor else {"parameter": [value.requires_grad, described]}


def _key(call: str, key: Any, where: str, arrays: list[Array]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(key, torch.Tensor):
        raise TypeError(f"{call}: {where} has a key of the type {type(key).__name__}; use texts or numbers")
    return describe(call, key, f"a key of {where}", arrays)


def build(call: str, described: Any, arrays: Iterator[Array]) -> Any:
    """The value that JSON describes, with the arrays that were sent."""
    if not isinstance(described, dict):
        return described
    ((kind, held),) = described.items()
    if kind == "int":
        return int(held, 16)
    if kind == "dict":
        return {build(call, key, arrays): build(call, inner, arrays) for key, inner in held}
    if kind in SEQUENCES:
        return SEQUENCES[kind](build(call, inner, arrays) for inner in held)
    if kind == "bytes":
        return next(arrays).tobytes()
    if kind == "array":
        return next(arrays).reshape(held)
    if kind == "scalar":
        return next(arrays).reshape(())[()]
    if kind == "tensor":
        name, shape = held
        return _tensor(call, name, shape, next(arrays))
    if kind == "parameter":
        requires_grad, described = held
        tensor = build(call, described, arrays)
        return sys.modules["torch"].nn.Parameter(tensor, requires_grad)
    return joined(call, kind, build(call, held, arrays))


def _tensor(call: str, name: str, shape: list[int], held: Array) -> Any:
    if "torch" not in sys.modules:
        raise HerringboneError(f"{call}: the state holds tensors; import torch on this rank")
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise HerringboneError(f"{call}: the state holds tensors of {name}, which the torch of this rank does not have")
    if math.prod(shape) * dtype.itemsize != held.size:
        raise HerringboneError(
            f"{call}: the state holds a tensor of {name} and shape {shape} with {held.size} bytes: it is damaged"
        )
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(held))
    return tensor
