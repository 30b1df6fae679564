"""Keys and values as programs pass them: one or several, each with an array or a list of them, of numpy or torch."""

from __future__ import annotations

import sys
from typing import Any

from ..arguments import text, whole
from ..arrays import FOLDED, check_array, fold_type
from ..errors import ArgumentError, UnsupportedError
from ..unlike import unlike_its_memory
from .on_devices import OnDevice, on_device
from .sparse import RowSparse
from .tree_plan import TREE_BOUND, Trees, interpret, plan_sum, rows_of

__all__ = [
    "Keyed",
    "as_given",
    "by_trees",
    "check_alike",
    "check_shapes",
    "keyed",
    "summed",
    "targets_of",
    "view",
]

Keyed = dict[Any, list[Any]]
"""The arrays of each key, in the order of the call."""


def keyed(call: str, key: Any, values: Any, known: type | None) -> Keyed:
    """Each key with the list of its values, in the order of the keys; equal keys in a call are merged.

    ``known`` is the type of the store's keys so far.

    Raises:
        ArgumentError: keys have two types, or the numbers of keys and values differ.
    """
    keys = list(key) if isinstance(key, (list, tuple)) else [key]
    if isinstance(key, (list, tuple)):
        if not isinstance(values, (list, tuple)) or len(values) != len(keys):
            count = len(values) if isinstance(values, (list, tuple)) else "one"
            raise ArgumentError(f"{call}: {len(keys)} keys and {count} values; pass a value, or a list of arrays, for each key")
    else:
        values = [values]
    for at, one in enumerate(keys):
        if isinstance(one, str):
            keys[at] = str(text(call, "a key", one))
        else:
            meaning = "a whole number or a text"
            if isinstance(one, bool):
                raise TypeError(f"{call}: a key is a bool, not {meaning}")
            keys[at] = whole(call, "a key", one, meaning)
    kinds = {type(one) if isinstance(one, str) else int for one in keys} | ({known} if known else set())
    if len(kinds) > 1:
        raise ArgumentError(f"{call}: mixed key types are not allowed; use whole numbers or texts for all keys of a store")
    grouped: Keyed = {}
    for one, value in zip(keys, values):
        grouped.setdefault(one, []).extend(value if isinstance(value, (list, tuple)) else [value])
    return grouped


def view(call: str, value: Any, takes_devices: bool = False) -> Any:
    """A numpy array over the memory of an array or tensor, a :class:`RowSparse` as it is, or an :class:`OnDevice`.

    Args:
        takes_devices: whether tensors in an accelerator's memory are taken.
    """
    if isinstance(value, RowSparse):
        _check_type(call, value.data)
        return value
    if (held := on_device(call, value)) is not None:
        if not takes_devices:
            raise UnsupportedError(
                f"{call}: a tensor on {held.device}; pass tensors of the CPU, or use a store of type 'device' or 'dist_device_sync'"
            )
        if held.dtype.name not in FOLDED:
            _check_type(call, sys.modules["numpy"].empty(0, held.dtype))
        return held
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise UnsupportedError(f"{call}: a tensor on {value.device}; pass tensors of the CPU")
        problem = unlike_its_memory(value)
        if problem is not None:
            raise UnsupportedError(f"{call}: {problem}")
        if value.dtype == torch.bfloat16:
            raise UnsupportedError(f"{call}: numpy has no bfloat16; pass tensor.float()")
        value = value.detach().numpy()
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        raise TypeError(f"{call}: a value is a {type(value).__name__}, not a numpy array, a torch tensor or a RowSparse")
    check_array(call, value)
    _check_type(call, value)
    return value


def _check_type(call: str, array: Any) -> None:
    """Refuse elements that cannot be summed."""
    if array.dtype.name not in FOLDED or not array.dtype.isnative:
        fold_type(call, array, "sum")


def as_given(array: Any, is_tensor: bool) -> Any:
    """An array of the store as the program's kind of value, over the same memory."""
    if not is_tensor:
        return array
    return sys.modules["torch"].from_numpy(array)


def check_alike(call: str, key: Any, values: list[Any], like: Any) -> None:
    """Refuse values of another shape or type than a key's."""
    for value in values:
        if value.shape != like.shape or value.dtype != like.dtype:
            raise ArgumentError(
                f"{call}: a value of {value.dtype} and shape {value.shape} for a key of {like.dtype} and shape {like.shape}: "
                f"{key!r}; pass values like the first one"
            )


def check_shapes(call: str, key: Any, outs: list[Any], like: Any) -> None:
    """Refuse arrays of ``out`` of another shape than a key's value."""
    for out in outs:
        if out.shape != like.shape:
            raise ArgumentError(f"{call}: an array in out for key {key!r} has shape {out.shape}, but the value has {like.shape}")


def targets_of(call: str, key: Any, outs: list[Any], like: Any, takes_devices: bool = False) -> list[Any]:
    """Arrays over ``outs``, and tensors of devices, into which a value like ``like`` can be copied."""
    targets = [view(call, out, takes_devices) for out in outs]
    for target in targets:
        if target.shape != like.shape or not (isinstance(target, OnDevice) or target.flags.writeable):
            what = "is read-only" if target.shape == like.shape else f"has shape {target.shape}, but the value has {like.shape}"
            raise ArgumentError(f"{call}: an array in out for key {key!r} {what}")
    return targets


def summed(values: list[Any], trees: Trees | None = None) -> Any:
    """A new array with the sum of values of one shape and type, from left to right, or along the trees if there is one value
    per device."""
    import numpy as np

    wholes = [value.toarray() if isinstance(value, RowSparse) else value for value in values]
    if trees is not None and len(trees) == len(wholes) > 1:
        return by_trees(wholes, trees)
    total = np.array(wholes[0], copy=True, order="C")
    for value in wholes[1:]:
        total += value
    return total


def by_trees(values: list[Any], trees: Trees, bound: int = TREE_BOUND) -> Any:
    """The sum along trees, as in MXNet: a large array in slices of rows, each along the tree of another root."""
    import numpy as np

    rows = rows_of(values[0].shape, values[0].size, len(values), bound)
    sums = interpret(plan_sum(trees, len(rows)), rows, values)
    return sums[0] if len(sums) == 1 else np.concatenate(sums)
