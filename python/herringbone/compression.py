"""Compression of numpy arrays: what is checked before the engine is called, and what is left of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _herringbone
from .errors import ArgumentError

__all__ = ["compressed", "native_residual", "native_residuals", "residuals"]

LOAD = "load_compression_state_dict"


def compressed(name: str, codec: str | None, tensor: str | None) -> tuple[str, str | None] | None:
    """What the engine is told of a call's compression."""
    for argument, value in (("compression", codec), ("tensor", tensor)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}: {argument} is a {type(value).__name__}, not a name")
    if codec is None:
        if tensor is not None:
            raise ValueError(f"{name}: tensor={tensor!r} without compression: nothing is lost of it; pass compression, too")
        return None
    return codec, tensor


def residuals(native: _herringbone.Communicator) -> dict[str, dict[str, Any]]:
    """What is left of a group's tensors, by name."""
    import numpy as np

    floats = {tensor: (steps, np.frombuffer(data, dtype="<f4").copy()) for tensor, steps, data in native.residuals()}
    return {tensor: {"steps": steps, "left": left} for tensor, (steps, left) in floats.items()}


def native_residuals(state: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, int, bytes]]:
    """The same as the engine has it.

    Raises:
        TypeError, ArgumentError: it is not what :func:`residuals` gave.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{LOAD}: the state is a {type(state).__name__}; pass what compression_state_dict gave")
    return [native_residual(LOAD, tensor, kept) for tensor, kept in state.items()]


def native_residual(call: str, tensor: Any, kept: Any) -> tuple[str, int, bytes]:
    """What is left of a tensor, after a check: a NaN in it would stay, and come out of every later operation on it.

    Raises:
        TypeError, ArgumentError: no communicator gave this.
    """
    import numpy as np

    if not isinstance(tensor, str):
        raise TypeError(f"{call}: a tensor's name is {tensor!r}, not a text")
    if not isinstance(kept, Mapping) or not {"steps", "left"} <= kept.keys():
        raise TypeError(f"{call}: what the state has of {tensor!r} lacks steps or left; pass it as it was saved")
    steps, left = kept["steps"], np.asarray(kept["left"])
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or not 0 <= steps < 1 << 64:
        raise ArgumentError(f"{call}: the steps of {tensor!r} are {steps!r}, not a number from 0")
    if left.dtype != np.float32 or left.ndim != 1:
        what = f"{left.dtype} in {left.ndim} dimensions"
        raise ArgumentError(f"{call}: what is left of {tensor!r} is {what}, not float32 in one; pass it as it was saved")
    if not np.isfinite(left).all():
        raise ArgumentError(f"{call}: what is left of {tensor!r} has a NaN or an infinity: the state is damaged; load another one")
    return tensor, int(steps), left.astype("<f4").tobytes()
