"""Files of optimizers' states: plain data, of which nothing is unpickled."""

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
    """What a file of ``save_optimizer_states`` holds: states of an optimizer's kind, for values of these shapes.

    It is a regular file of any size, since states are as large as a model. Nothing is allocated that the file does not have.

    Raises:
        OSError: the system refuses it.
        ArgumentError: it is no such file, or of another optimizer or other shapes.
    """
    try:
        with open(open_user_file(path), "rb") as file:
            held = unpack_file(call, file)
        name, states, params = held["name"], held["states"], held["params"]
        kinds = {key: {part: array for part, array in state.items() if part != "step"} for key, state in states.items()}
        steps = [operator.index(state["step"]) for state in states.values()]
        if not all(array.dtype.kind == "f" for parts in kinds.values() for array in parts.values()):
            raise ValueError("a state is no array of fractions")
        if params is not None:
            params = known_numbers(name) | params
    except OSError:
        raise
    except Exception as error:
        raise ArgumentError(f"{call}: {path} is no file of save_optimizer_states, or only a part of one: {error}") from None
    if name != optimizer.name:
        raise ArgumentError(f"{call}: {path} is of {name}, and the store has {optimizer.name}")
    for key, parts in kinds.items():
        for part, array in parts.items():
            if key in values and array.shape != values[key].shape:
                raise ArgumentError(
                    f"{call}: {path} has a {part} of shape {array.shape} for key {key!r}, and its value is of {values[key].shape}"
                )
    if not all(1 <= step <= LATEST for step in steps):
        raise ArgumentError(f"{call}: {path} has states after {min(steps)} to {max(steps)} steps")
    if params is not None:
        params = _checked(call, path, name, params)
    return {"states": states, "params": params}


def _checked(call: str, path: pathlib.Path, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a file that an optimizer can have.

    Raises:
        ArgumentError: it cannot.
    """
    try:
        return create_optimizer(name, **params).params
    except (TypeError, ArgumentError) as error:
        raise ArgumentError(f"{call}: {path} has a number that the optimizer cannot have: {error}") from None
