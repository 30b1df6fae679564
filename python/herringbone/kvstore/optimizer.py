"""Optimizers by name: what a store applies to a pushed gradient. They are plain numbers and arrays, and nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError

__all__ = ["Optimizer", "create_optimizer"]

COMMON = {"learning_rate": 0.01, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": None}
Step = Callable[[dict[str, Any], Any, Any, dict[str, Any]], None]


class Optimizer:
    """An optimizer and its state of each key; :func:`create_optimizer` makes one."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        """For :func:`create_optimizer`."""
        self.name = name
        self.params = params
        self.states: dict[Any, dict[str, Any]] = {}

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
        state = self.states.setdefault(key, {"step": 0})
        state["step"] += 1
        OPTIMIZERS[self.name][1](params, gradient.astype(weight.dtype, copy=False), weight, state)

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
    for given, value in params.items():
        if not isinstance(value, (int, float)) and not (given == "clip_gradient" and value is None):
            raise TypeError(f"create_optimizer: {given} is a {type(value).__name__}, not a number")
    return Optimizer(name, known | params)


def _of(state: dict[str, Any], name: str, weight: Any) -> Any:
    """An array of the state, zero at first."""
    import numpy as np

    if name not in state:
        state[name] = np.zeros_like(weight)
    return state[name]


def _sgd(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    if params["momentum"]:
        velocity = _of(state, "velocity", weight)
        velocity *= params["momentum"]
        velocity -= params["learning_rate"] * gradient
        weight += velocity
    else:
        weight -= params["learning_rate"] * gradient


def _nag(params: dict[str, Any], gradient: Any, weight: Any, state: dict[str, Any]) -> None:
    velocity = _of(state, "velocity", weight)
    velocity *= params["momentum"]
    velocity -= params["learning_rate"] * gradient
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
