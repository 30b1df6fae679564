"""Files of optimizers' states: plain data, without pickles."""

from __future__ import annotations

import operator
import pathlib
from typing import Any

from .._herringbone import open_user_file
from ..errors import ArgumentError
from ..plain import pack, unpack_file
from .optimizer import Optimizer, create_optimizer
from .rules import LATEST, known_numbers

__all__ = ["save_states", "states_of"]


def save_states(call: str, path: pathlib.Path, optimizer: Optimizer, with_numbers: bool) -> None:
    """Write an optimizer's states to a file, and ``with_numbers`` its numbers."""
    held = {"states": optimizer.states, "name": optimizer.name, "params": optimizer.params if with_numbers else None}
    path.write_bytes(pack(call, held).tobytes())


def states_of(call: str, path: pathlib.Path, optimizer: Optimizer, values: dict[Any, Any]) -> dict[str, Any]:
    """The contents of a file from ``save_optimizer_states``: states of this optimizer, for values of these shapes.

    It must be a regular file, of any size, because states are as large as a model. Nothing is allocated for bytes that the file
    lacks.

    Raises:
        OSError: the system refuses it.
        ArgumentError: it is not such a file, or is for another optimizer or other shapes.
    """
    try:
        with open(open_user_file(path), "rb") as file:
            held = unpack_file(call, file)
        name, states, params = held["name"], held["states"], held["params"]
        kinds = {key: {part: array for part, array in state.items() if part != "step"} for key, state in states.items()}
        steps = [operator.index(state["step"]) for state in states.values()]
        if not all(array.dtype.kind == "f" for parts in kinds.values() for array in parts.values()):
            raise ValueError("a state is not an array of a floating type")
        if params is not None:
            params = known_numbers(name) | params
    except OSError:
        raise
    except Exception as error:
        raise ArgumentError(f"{call}: {path} is not a file from save_optimizer_states, or only a part of one: {error}") from None
    if name != optimizer.name:
        raise ArgumentError(f"{call}: {path} is for {name}, but the store has {optimizer.name}")
    for key, parts in kinds.items():
        for part, array in parts.items():
            if key in values and array.shape != values[key].shape:
                raise ArgumentError(
                    f"{call}: {path} has a {part} of shape {array.shape} for key {key!r}, but its value has {values[key].shape}"
                )
    if not all(1 <= step <= LATEST for step in steps):
        raise ArgumentError(f"{call}: {path} has states after {min(steps)} to {max(steps)} steps")
    if params is not None:
        params = _checked(call, path, name, params)
    return {"states": states, "params": params}


def _checked(call: str, path: pathlib.Path, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The numbers in a file, after a check for an optimizer.

    Raises:
        ArgumentError: a number is invalid.
    """
    try:
        return create_optimizer(name, **params).params
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(f"{call}: {path} has a number that is invalid for the optimizer: {error}") from None
