"""The state of a store's optimizer for one array, and its steps by the native rules."""

from __future__ import annotations

import math
from typing import Any

from .. import _herringbone
from ..arrays import FOLDED
from .rules import NAMES, STATES, Parameters, native_numbers

__all__ = ["Held"]


class Held:
    """A native optimizer for one array."""

    def __init__(self, name: str, numbers: Parameters, weight: Any, multi_precision: bool, restored: dict[str, Any]) -> None:
        """``state`` is a restored state; ``{"step": 5}`` means five earlier steps.

        Args:
            multi_precision: keep a weight of float16 in float32, which the steps change.
        """
        import numpy as np

        self._name = name
        self._numbers = dict(numbers)
        self.fits = weight.shape, weight.dtype
        self._wide = weight.astype(np.float32) if multi_precision and weight.dtype == np.float16 else None
        self.dtype = weight.dtype if self._wide is None else self._wide.dtype
        self._native = _herringbone.LocalOptimizer(
            NAMES[name], native_numbers(name, numbers), FOLDED[self.dtype.name], weight.size
        )
        if restored["step"]:
            self._restore(restored)

    def step(self, numbers: Parameters, weight: Any, gradients: Any) -> None:
        import numpy as np

        if numbers != self._numbers:
            self._native.set(native_numbers(self._name, numbers))
            self._numbers = dict(numbers)
        weights = weight if self._wide is None else self._wide
        weights = weights if weights.flags.c_contiguous else np.ascontiguousarray(weights)
        self._native.step(_span(weights), _span(gradients), (weights, gradients))
        if weights is not weight:
            weight[...] = weights

    def state(self) -> dict[str, Any]:
        kept = self._arrays(bytearray(self._native.state()))
        wide = {} if self._wide is None else {"weight": self._wide.copy()}
        return {"step": self._native.steps, **dict(zip(STATES[self._name], kept)), **wide}

    def _restore(self, restored: dict[str, Any]) -> None:
        """Continue with a state; missing arrays are zero, such as a momentum that the saved optimizer did not have."""
        state = bytearray(len(self._native.state()))
        for name, into in zip(STATES[self._name], self._arrays(state)):
            into[...] = restored.get(name, 0)
        self._native.restore(restored["step"], bytes(state))
        if self._wide is not None and "weight" in restored:
            self._wide[...] = restored["weight"]

    def _arrays(self, state: bytearray) -> Any:
        """Arrays over a native state, one for each name."""
        import numpy as np

        wide = np.float64 if self.dtype.itemsize == 8 else np.float32
        shape = self.fits[0]
        count = 0 if not state else len(state) // (math.prod(shape) * np.dtype(wide).itemsize)
        return np.frombuffer(state, wide).reshape(count, *shape)


def _span(array: Any) -> tuple[int, int]:
    """Address and bytes."""
    return array.ctypes.data, array.nbytes
