"""Optimizers by name: what a store applies to a pushed gradient. They are plain numbers and arrays, and nothing is unpickled."""

from __future__ import annotations

import math
import numbers
import operator
import pathlib
from collections.abc import Callable
from typing import Any

from ..communicator import Communicator
from ..errors import ArgumentError
from ..plain import pack, unpack

__all__ = ["Optimizer", "agreed", "create_optimizer", "states_of"]

COMMON = {"learning_rate": 0.01, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": None}
Step = Callable[[dict[str, Any], Any, Any, dict[str, Any]], None]


class Optimizer:
    """An optimizer and its state of each key; :func:`create_optimizer` makes one."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        """For :func:`create_optimizer`."""
        self.name = name
        self.params = params
        self.states: dict[Any, dict[str, Any]] = {}

    def check(self, call: str, key: Any, weight: Any) -> None:
        """Refuse a weight that steps of fractions cannot change."""
        if weight.dtype.kind in "iu":
            raise ArgumentError(
                f"{call}: key {key!r} is {weight.dtype}, and the optimizer {self.name} needs a type with fractions, like float32"
            )

    def update(self, key: Any, gradient: Any, weight: Any) -> None:
        """Change ``weight``, a numpy array, by a gradient; the state of ``key`` goes on."""
        import numpy as np

        params = self.params
        if self.name == "test":
            weight += np.asarray(gradient) * params["rescale_grad"]
            return
        gradient = np.asarray(gradient) * np.asarray(params["rescale_grad"], weight.dtype)
        if params["clip_gradient"] is not None:
            gradient = np.clip(gradient, -params["clip_gradient"], params["clip_gradient"])
        gradient = gradient + params["wd"] * weight
        # The state is taken when the step is done.
        state = {name: held if name == "step" else held.copy() for name, held in self.states.get(key, {"step": 0}).items()}
        state["step"] += 1
        OPTIMIZERS[self.name][1](params, gradient.astype(weight.dtype, copy=False), weight, state)
        self.states[key] = state

    def __repr__(self) -> str:
        return f"<Optimizer {self.name} {self.params}>"


def create_optimizer(name: str, **params: Any) -> Optimizer:
    """An optimizer by MXNet's name: ``sgd``, ``nag``, ``adam``, ``adagrad``, ``rmsprop``, or ``test``, which adds the gradient.

    All take ``learning_rate``, ``wd``, ``rescale_grad`` and ``clip_gradient``; ``sgd`` and ``nag`` take ``momentum``, ``adam`` takes
    ``beta1``, ``beta2`` and ``epsilon``, ``adagrad`` takes ``epsilon``, ``rmsprop`` takes ``rho`` and ``epsilon``.
    """
    if not isinstance(name, str) or name.lower() not in OPTIMIZERS:
        raise ArgumentError(f"create_optimizer: no optimizer is called {name!r}; use one of {', '.join(OPTIMIZERS)}")
    name = name.lower()
    known = COMMON | OPTIMIZERS[name][0]
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ArgumentError(f"create_optimizer: {name} takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    return Optimizer(name, known | {given: _number(given, value) for given, value in params.items()})


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


def agreed(communicator: Communicator, optimizer: Optimizer) -> Optimizer:
    """Rank 0's optimizer, made anew from its name and numbers."""
    import numpy as np

    packed = pack("set_optimizer", [optimizer.name, optimizer.params])
    length = np.array([packed.size], np.int64)
    communicator.broadcast(length)
    packed = np.resize(packed, int(length[0]))
    communicator.broadcast(packed)
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
    if min(steps, default=1) < 1:
        raise ArgumentError(f"{call}: {path} has states after {min(steps)} steps")
    if params is not None:
        create_optimizer(name, **params)
    return {"states": states, "params": params}


def _of(state: dict[str, Any], name: str, weight: Any) -> Any:
    """An array of the state, zero at first."""
    import numpy as np

    if name not in state:
        state[name] = np.zeros_like(weight)
    return state[name]


def _velocity(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> Any:
    velocity = _of(state, "velocity", weight)
    velocity *= params["momentum"]
    velocity -= params["learning_rate"] * gradient
    return velocity


def _sgd(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    if params["momentum"]:
        weight += _velocity(params, gradient, weight, state)
    else:
        weight -= params["learning_rate"] * gradient


def _nag(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    velocity = _velocity(params, gradient, weight, state)
    weight += params["momentum"] * velocity - params["learning_rate"] * gradient


def _adam(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    import numpy as np

    mean, variance, step = _of(state, "mean", weight), _of(state, "variance", weight), state["step"]
    mean *= params["beta1"]
    mean += (1 - params["beta1"]) * gradient
    variance *= params["beta2"]
    variance += (1 - params["beta2"]) * gradient * gradient
    rate = params["learning_rate"] * (1 - params["beta2"] ** step) ** 0.5 / (1 - params["beta1"] ** step)
    weight -= rate * mean / (np.sqrt(variance) + params["epsilon"])


def _adagrad(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    import numpy as np

    history = _of(state, "history", weight)
    history += gradient * gradient
    weight -= params["learning_rate"] * gradient / (np.sqrt(history) + params["epsilon"])


def _rmsprop(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    import numpy as np

    square = _of(state, "square", weight)
    square *= params["rho"]
    square += (1 - params["rho"]) * gradient * gradient
    weight -= params["learning_rate"] * gradient / (np.sqrt(square) + params["epsilon"])


OPTIMIZERS: dict[str, tuple[dict[str, Any], Step]] = {
    "sgd": ({"momentum": 0.0}, _sgd),
    "nag": ({"momentum": 0.9}, _nag),
    "adam": ({"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}, _adam),
    "adagrad": ({"epsilon": 1e-7}, _adagrad),
    "rmsprop": ({"learning_rate": 0.001, "rho": 0.9, "epsilon": 1e-8}, _rmsprop),
    "test": ({}, _sgd),
}
"""Each one's own parameters, and its step."""
