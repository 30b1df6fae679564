"""How numpy's arrays and types are described to the engine, and arrays over the engine's memory.

The engine sees memory: an address, a number of elements, one of its types. numpy is imported only where an
array has to be made.
"""

from __future__ import annotations

import ctypes
import math
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from . import _herringbone
from .arguments import lengths
from .errors import ConfigError, UnsupportedError
from .names import Operation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = [
    "Lacking",
    "copied",
    "fold_type",
    "holder_of",
    "mapped_array",
    "move_type",
    "new_array",
    "readable",
    "refuse_masked",
    "row",
    "same_size",
    "writable",
    "wrong_op",
]

FOLDED = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "uint8": "u8",
    "int32": "i32",
    "int64": "i64",
    "int16": "i16",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
}
"""numpy's names (``bfloat16``: of ml_dtypes) of the types that the engine can fold."""

OPS: tuple[str, ...] = get_args(Operation)
SYNONYMS = {
    "mean": "average",
    "avg": "average",
    "add": "sum",
    "prod": "product",
    "mul": "product",
    "band": "bit_and",
    "bor": "bit_or",
    "bxor": "bit_xor",
    "xor": "bit_xor",
}
"""Other names of some of them."""

_folded: dict[Any, str] = {}
"""The engine's types for the numpy types used so far: numpy builds a type's name again at every access."""


def fold_type(name: str, array: Array, op: str) -> str:
    """The engine's type for folding ``array``."""
    known = _folded.get(getattr(array, "dtype", None))
    if known is not None:
        return known
    check_array(name, array)
    if array.dtype.name in FOLDED and array.dtype.isnative:
        return _folded.setdefault(array.dtype, FOLDED[array.dtype.name])
    if array.dtype.kind not in "biufcV" or array.dtype.name.startswith("void"):
        raise UnsupportedError(f"{name} does not reduce {array.dtype}, which is no number; pass numbers, like float32")
    if array.dtype.name == "bool":
        alternative = "array.view('uint8') with min (all), max (any) or bit_xor"
    elif array.dtype.kind == "c":
        alternative = f"array.view('{array.real.dtype}') for sum or average"
    elif not array.dtype.isnative:
        alternative = f"array.astype('{array.dtype.newbyteorder('=')}')"
    else:
        alternative = "array.astype('float32')"
    raise UnsupportedError(f"{name} does not reduce {array.dtype} with {op}; pass {alternative}")


def wrong_op(name: str, op: Any) -> Exception:
    """The error to raise if ``op`` is none of the engine's."""
    if not isinstance(op, str):
        return TypeError(f"{name}: op is a {type(op).__name__}, not one of {', '.join(OPS)}")
    name_of = op.strip().lower()
    meant = SYNONYMS.get(name_of) or next(iter(get_close_matches(name_of, OPS, 1)), None)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return ValueError(f"{name}: op {op!r} is none of {', '.join(OPS)}{hint}")


def move_type(name: str, array: Array) -> tuple[str, int]:
    """The type and its elements per element of ``array`` for moving it unchanged."""
    known = _folded.get(getattr(array, "dtype", None))
    if known is not None:
        return known, 1
    check_array(name, array)
    if array.dtype.hasobject:
        raise UnsupportedError(f"{name} does not move Python objects; pickle them into a uint8 array")
    if array.dtype.name in FOLDED:
        return FOLDED[array.dtype.name], 1
    return "u8", array.dtype.itemsize


def check_array(name: str, array: Array, role: str = "") -> dict[str, Any]:
    """How ``array`` describes its memory; a TypeError if it is no array. ``role`` is its argument's name."""
    refuse_masked(name, array)
    try:
        return array.__array_interface__
    except AttributeError:
        kind = type(array).__name__
        what = f"{role} is a {kind}, not a numpy array" if role else f"takes numpy arrays, not {kind}"
        raise TypeError(f"{name}{':' if role else ''} {what}; for torch use torch.distributed") from None


def refuse_masked(name: str, array: Any) -> None:
    """Refuse a masked array, because its values would be sent without the mask."""
    if type(array).__name__ != "ndarray" and hasattr(array, "filled"):
        raise TypeError(f"{name} takes no masked arrays: the mask would be lost; pass array.filled(value)")


def readable(name: str, array: Array | None) -> tuple[int, int]:
    """Address and length in bytes of an array whose memory is its values in order."""
    return (0, 0) if array is None else in_order(name, array)[0]


def writable(name: str, array: Array | None) -> tuple[int, int]:
    """Address and length in bytes of an array that is writable."""
    if array is None:
        return 0, 0
    span, frozen = in_order(name, array)
    if frozen:
        raise ValueError(f"{name}: the array is read-only; pass array.copy(), or a writable out=")
    return span


def in_order(name: str, array: Array) -> tuple[tuple[int, int], bool]:
    """Address, length in bytes, and whether it is read-only, of an array whose memory is its values in order."""
    interface = check_array(name, array)
    if interface["shape"] == ():
        refuse_scalar(name, array)
    if interface["strides"] is not None:
        raise ValueError(f"{name}: the array is not C-contiguous; pass numpy.ascontiguousarray(array)")
    address, frozen = interface["data"]
    return (address, array.nbytes), frozen


def refuse_scalar(name: str, array: Array) -> None:
    """Numpy's scalars describe themselves like arrays, but the memory they describe is a copy that is freed at once."""
    import numpy as np

    if isinstance(array, np.generic):
        kind = type(array).__name__
        raise TypeError(f"{name} takes numpy arrays, not the scalar {kind}; pass numpy.array(value)")


def same_size(name: str, array: Array, out: Array, elements: int) -> None:
    """Check that ``out`` can take ``elements`` elements of the type of ``array``."""
    check_array(name, out, "out")
    if out.dtype != array.dtype:
        raise ValueError(f"{name}: the array is of {array.dtype} and out of {out.dtype}")
    if out.size != elements:
        raise ValueError(f"{name}: out has {out.size} elements and needs {elements}")


def row(array: Array) -> int:
    """How many elements each step along the first axis has."""
    return math.prod(array.shape[1:])


class Lacking:
    """Stands for an array that there is no memory for. A collective on it fails on all ranks, so no rank waits for this one."""

    def __init__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """It has a shape and a type, but no values."""
        import numpy as np

        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.ndim, self.size = len(self.shape), math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        # numpy reads nothing that has no type here.
        self.__array_interface__ = {"shape": self.shape, "strides": None, "data": (0, False)}


def new_array(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """An array for a result, or what stands for it (:class:`Lacking`)."""
    import numpy as np

    try:
        return np.empty(shape, dtype)
    except MemoryError:
        return Lacking(shape, dtype)
    except ValueError:
        raise ValueError(
            f"{name}: a result of shape {shape} of {np.dtype(dtype)} is larger than any array; pass smaller lengths"
        ) from None


def copied(name: str, array: Array) -> Any:
    """A copy whose memory is its values in order, or what stands for it (:class:`Lacking`)."""
    copy = new_array(name, array.shape, array.dtype)
    if not isinstance(copy, Lacking):
        copy[...] = array
    return copy


def mapped_array(native: _herringbone.Communicator, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array in memory that all ranks of the host map; the last array over it frees it."""
    import numpy as np

    shape = lengths("empty", "shape", shape)
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise UnsupportedError("empty makes no arrays of Python objects; pickle them into a uint8 array")
    count = math.prod(shape)
    if count * kind.itemsize == 0:
        return np.empty(shape, kind)
    return np.frombuffer(holder_of(native, count * kind.itemsize), kind).reshape(shape)


def holder_of(native: _herringbone.Communicator, length: int) -> Any:
    """An object with the buffer protocol over ``length`` bytes, above 0, of new mapped memory, which it keeps."""
    if length > sys.maxsize:
        raise ConfigError(f"empty: {length} bytes of mapped memory are more than there can be")
    memory = native.allocate(length)
    holder = (ctypes.c_ubyte * length).from_address(memory.address)
    holder.memory = memory  # type: ignore[attr-defined]  # an attribute to keep it alive
    return holder
