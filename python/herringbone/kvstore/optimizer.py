"""Optimizers by name: what a store applies to a pushed gradient. They are plain numbers and arrays, and nothing is unpickled.

The arithmetic is that of tables on servers, ``herringbone::table::LocalOptimizer``.
"""

from __future__ import annotations

import math
import numbers
import operator
import pathlib
from typing import Any

from .. import _herringbone
from ..arrays import FOLDED
from ..communicator import Communicator
from ..errors import ArgumentError
from ..plain import pack, unpack

__all__ = [
    "Optimizer",
    "agreed",
    "chosen_optimizer",
    "create_optimizer",
    "described",
    "native_of",
    "of_described",
    "states_of",
]

NAMES = {"sgd": "sgd", "nag": "nag", "adam": "adam", "adagrad": "adagrad", "rmsprop": "rmsprop", "test": "add"}
"""MXNet's names, and the rules that they stand for."""
STATES = {
    "sgd": ("velocity",),
    "nag": ("velocity",),
    "adam": ("mean", "variance"),
    "adagrad": ("history",),
    "rmsprop": ("square",),
    "test": (),
}
"""What each keeps for an element, in the rules' order. ``sgd`` keeps a velocity only if it has a momentum."""
TEST = ("learning_rate", 0.01), ("wd", 0.0)
"""What ``test`` takes, too, and does not need."""
FRACTIONS = ("float16", "bfloat16", "float32", "float64")
LATEST = (1 << 32) - 1
"""So many steps are counted."""

Parameters = dict[str, Any]


class Optimizer:
    """An optimizer and its state of each key; :func:`create_optimizer` makes one.

    ``params`` has its numbers. A number that is set there counts from the next step on.
    """

    def __init__(self, name: str, params: Parameters) -> None:
        """For :func:`create_optimizer`."""
        self.name = name
        self.params = params
        self._held: dict[Any, _Held] = {}
        self._restored: dict[Any, dict[str, Any]] = {}

    def check(self, call: str, key: Any, weight: Any) -> None:
        """Refuse a weight that steps of fractions cannot change."""
        if weight.dtype.name not in FRACTIONS:
            raise ArgumentError(
                f"{call}: key {key!r} is {weight.dtype}, and the optimizer {self.name} needs a type with fractions, like float32"
            )

    def update(self, key: Any, gradient: Any, weight: Any) -> None:
        """Change ``weight``, a numpy array, by a gradient; the state of ``key`` goes on.

        A step that fails has changed neither weight nor state.
        """
        import numpy as np

        self.check("update", key, weight)
        gradients = np.ascontiguousarray(np.broadcast_to(np.asarray(gradient), weight.shape), weight.dtype)
        held = self._held.get(key)
        if held is None:
            held = _Held(self, weight, self._restored.get(key))
        if held.fits != (weight.shape, weight.dtype):
            raise ArgumentError(f"update: key {key!r} was of shape {held.fits[0]} and {held.fits[1]}, and is of another now")
        weights = weight if weight.flags.c_contiguous else np.ascontiguousarray(weight)
        held.step(self.params, weights, gradients)
        self._held[key] = held
        self._restored.pop(key, None)
        if weights is not weight:
            weight[...] = weights

    @property
    def states(self) -> dict[Any, dict[str, Any]]:
        """What it keeps of each key: ``"step"``, a number, and arrays by their names."""
        return {**self._restored, **{key: held.state() for key, held in self._held.items()}}

    @states.setter
    def states(self, states: dict[Any, dict[str, Any]]) -> None:
        self._held, self._restored = {}, dict(states)

    def __repr__(self) -> str:
        return f"<Optimizer {self.name} {self.params}>"


class _Held:
    """A native optimizer of one array."""

    def __init__(self, optimizer: Optimizer, weight: Any, restored: dict[str, Any] | None) -> None:
        """With the state that was restored for it, if any was."""
        self._name = optimizer.name
        self._params = dict(optimizer.params)
        self.fits = weight.shape, weight.dtype
        rule, given = native_of(optimizer)
        self._native = _herringbone.LocalOptimizer(rule, given, FOLDED[weight.dtype.name], weight.size)
        if restored is not None:
            self._restore(restored)

    def step(self, params: Parameters, weights: Any, gradients: Any) -> None:
        if params != self._params:
            self._native.set(_native_numbers(self._name, params))
            self._params = dict(params)
        self._native.step(_span(weights), _span(gradients), (weights, gradients))

    def state(self) -> dict[str, Any]:
        kept = self._arrays(bytearray(self._native.state()))
        return {"step": self._native.steps, **dict(zip(STATES[self._name], kept))}

    def _restore(self, restored: dict[str, Any]) -> None:
        """Continue with a state in which what is missing is zero, as where there was no momentum."""
        state = bytearray(len(self._native.state()))
        for name, into in zip(STATES[self._name], self._arrays(state)):
            into[...] = restored.get(name, 0)
        self._native.restore(restored["step"], bytes(state))

    def _arrays(self, state: bytearray) -> Any:
        """Arrays over a native state, one for each name."""
        import numpy as np

        shape, dtype = self.fits
        wide = np.float64 if dtype.itemsize == 8 else np.float32
        count = 0 if not state else len(state) // (math.prod(shape) * np.dtype(wide).itemsize)
        return np.frombuffer(state, wide).reshape(count, *shape)


def create_optimizer(name: str, **params: Any) -> Optimizer:
    """An optimizer by MXNet's name: ``sgd``, ``nag``, ``adam``, ``adagrad``, ``rmsprop``, or ``test``, which adds the gradient.

    All take ``learning_rate``, ``wd``, ``rescale_grad`` and ``clip_gradient``; ``sgd`` and ``nag`` take ``momentum``, ``adam`` takes
    ``beta1``, ``beta2`` and ``epsilon``, ``adagrad`` takes ``epsilon``, ``rmsprop`` takes ``rho`` and ``epsilon``. A ``clip_gradient`` of
    ``None``, or not above 0, cuts nothing.
    """
    if not isinstance(name, str) or name.lower() not in NAMES:
        raise ArgumentError(f"create_optimizer: no optimizer is called {name!r}; use one of {', '.join(NAMES)}")
    name = name.lower()
    known: Parameters = dict(TEST if name == "test" else ()) | dict(dict(_herringbone.optimizers())[NAMES[name]])
    known["clip_gradient"] = None
    del known["assigns"]  # a table's, not an optimizer's
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ArgumentError(f"create_optimizer: {name} takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    made = Optimizer(name, known | {given: _number(given, value) for given, value in params.items()})
    try:
        _herringbone.LocalOptimizer(*native_of(made), "f32", 0)
    except ValueError as error:
        raise ArgumentError(f"create_optimizer: {error}") from None
    return made


def chosen_optimizer(call: str, optimizer: Any) -> Optimizer:
    """An optimizer that a program passes, or the one of this name."""
    chosen = create_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(chosen, Optimizer):
        raise TypeError(f"{call}: optimizer is a {type(chosen).__name__}; make it with create_optimizer(name)")
    return chosen


def native_of(optimizer: Optimizer) -> tuple[str, list[tuple[str, float]]]:
    """The rule of an optimizer, and its numbers, as the native module takes them."""
    return NAMES[optimizer.name], _native_numbers(optimizer.name, optimizer.params)


def _native_numbers(name: str, params: Parameters) -> list[tuple[str, float]]:
    if name == "test":  # MXNet's cuts nothing
        return [("rescale_grad", float(params["rescale_grad"]))]
    clip = params["clip_gradient"]
    given = {**params, "clip_gradient": math.inf if clip is None or clip <= 0 else clip}
    return [(parameter, float(number)) for parameter, number in given.items()]


def _number(name: str, value: Any) -> int | float | None:
    """A parameter as Python's number."""
    if name == "clip_gradient" and value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"create_optimizer: {name} is a {type(value).__name__}, not a number")
    number = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not math.isfinite(number):
        raise ArgumentError(f"create_optimizer: {name} is {number}; pass a number that is finite")
    return number


def _span(array: Any) -> tuple[int, int]:
    """Address and bytes."""
    return array.ctypes.data, array.nbytes


def agreed(communicator: Communicator, optimizer: Optimizer) -> Optimizer:
    """Rank 0's optimizer, made anew from its name and numbers."""
    import numpy as np

    packed = described(optimizer)
    length = np.array([packed.size], np.int64)
    communicator.broadcast(length)
    packed = np.resize(packed, int(length[0]))
    communicator.broadcast(packed)
    return of_described(packed)


def described(optimizer: Optimizer) -> Any:
    """Its name and numbers as an array of bytes."""
    return pack("set_optimizer", [optimizer.name, optimizer.params])


def of_described(packed: Any) -> Optimizer:
    """The optimizer that :func:`described` tells of."""
    name, params = unpack("set_optimizer", packed)
    return create_optimizer(name, **params)


def states_of(call: str, path: pathlib.Path, optimizer: Optimizer, values: dict[Any, Any]) -> dict[str, Any]:
    """What a file of ``save_optimizer_states`` holds: states of an optimizer's kind, for values of these shapes."""
    import numpy as np

    try:
        held = unpack(call, np.frombuffer(path.read_bytes(), np.uint8))
        name, states, params = held["name"], held["states"], held["params"]
        kinds = {key: {part: array.shape for part, array in state.items() if part != "step"} for key, state in states.items()}
        steps = [operator.index(state["step"]) for state in states.values()]
    except OSError:
        raise
    except Exception as error:
        raise ArgumentError(f"{call}: {path} is no file of save_optimizer_states, or only a part of one: {error}") from None
    if name != optimizer.name:
        raise ArgumentError(f"{call}: {path} is of {name}, and the store has {optimizer.name}")
    for key, parts in kinds.items():
        for part, shape in parts.items():
            if key in values and shape != values[key].shape:
                raise ArgumentError(
                    f"{call}: {path} has a {part} of shape {shape} for key {key!r}, and its value is of {values[key].shape}"
                )
    if not all(1 <= step <= LATEST for step in steps):
        raise ArgumentError(f"{call}: {path} has states after {min(steps)} to {max(steps)} steps")
    if params is not None:
        create_optimizer(name, **params)
    return {"states": states, "params": params}
