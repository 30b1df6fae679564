"""Compression of numpy arrays: what is checked before the engine is called, and what is left of tensors."""

from __future__ import annotations

from typing import Any

from . import _herringbone

__all__ = ["compressed", "native_residuals", "residuals"]


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


def native_residuals(state: dict[str, dict[str, Any]]) -> list[tuple[str, int, bytes]]:
    """The same as the engine has it."""
    import numpy as np

    bytes_of = {tensor: np.asarray(kept["left"], dtype="<f4").tobytes() for tensor, kept in state.items()}
    return [(tensor, int(state[tensor]["steps"]), data) for tensor, data in bytes_of.items()]
