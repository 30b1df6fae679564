"""Checks of a saved state before any part of it is loaded: plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError

__all__ = ["check_groups", "check_state", "count_of", "list_of", "needed_of"]

_PARTS = ("rounds", "step", "averages")


def check_state(call: str, state: Any, parameters: Sequence[Sequence[str]]) -> None:
    """Check the parts that all averaging classes save; ``parameters`` describes each fragment's parameters.

    Raises:
        TypeError: it is not a saved state.
        ArgumentError: a part is missing or makes no sense, or it belongs to other parameters.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{call}: the state is a {type(state).__name__}; pass the result of state_dict()")
    if _part(call, state, "version") != 1:
        raise ArgumentError(f"{call}: the state has version {state['version']}, but this release reads version 1")
    for name in _PARTS:
        _part(call, state, name)
    for name in ("rounds", "step"):
        count_of(call, state, name)
    if "parameters" in state:  # earlier versions have saved none
        _check_parameters(call, list_of(call, state, "parameters"), parameters)


def _check_parameters(call: str, given: Sequence[Sequence[str]], own: Sequence[Sequence[str]]) -> None:
    if len(given) != len(own):
        raise ArgumentError(
            f"{call}: the state has {len(given)} fragments, and the model {len(own)}; cut the model in the same way"
        )
    for fragment, sides in enumerate(zip(given, own)):
        for number in range(max(map(len, sides))):
            one, other = (side[number] if number < len(side) else "none" for side in sides)
            if one != other:
                where = f"parameter {number} of fragment {fragment}"
                raise ArgumentError(f"{call}: {where} is {one} in the state and {other} in the model; make the same model")


def check_groups(call: str, state: Any, groups: Sequence[Mapping[str, Any]], needed: Iterable[str]) -> None:
    """Check the parts that every optimizer of torch saves; ``groups`` are its groups of parameters, with the settings
    ``needed``.

    Raises:
        TypeError: it is not the state of an optimizer.
        ArgumentError: a part or a setting is missing, or it belongs to other groups.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{call}: the state is a {type(state).__name__}; pass the result of state_dict()")
    if not isinstance(_part(call, state, "state"), Mapping):
        raise ArgumentError(f"{call}: the state's 'state' is a {type(state['state']).__name__}; pass the result of state_dict()")
    saved = list_of(call, state, "param_groups")
    for number, group in enumerate(saved):
        missing = [name for name in ("params", *needed) if not isinstance(group, Mapping) or name not in group]
        if missing:
            names = ", ".join(map(repr, missing))
            raise ArgumentError(
                f"{call}: group {number} of the state lacks {names}; pass the result of state_dict() of the same class"
            )
        list_of(call, group, "params")
    found, own = ([len(group["params"]) for group in side] for side in (saved, groups))
    if found != own:
        raise ArgumentError(
            f"{call}: the state has groups of {found} parameters, and this optimizer {own}; load a state of the same model"
        )


def needed_of(defaults: Mapping[str, Any]) -> list[str]:
    """The defaults that every saved state of an optimizer has; flags are left out, because they differ between torch's
    versions."""
    return [name for name, value in defaults.items() if value is not None and not isinstance(value, bool)]


def count_of(call: str, state: Mapping[str, Any], name: str) -> int:
    """A part that is a number from 0.

    Raises:
        ArgumentError: it is missing, or not such a number.
    """
    value = _part(call, state, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{call}: the state's {name!r} is {value!r}, not a whole number from 0: the state is damaged")
    return value


def list_of(call: str, state: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A part that is a list.

    Raises:
        ArgumentError: it is missing, or not a list.
    """
    value = _part(call, state, name)
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(
            f"{call}: the state's {name!r} is a {type(value).__name__}, not a list; pass the result of state_dict()"
        )
    return value


def _part(call: str, state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise ArgumentError(f"{call}: the state lacks {name!r}; pass the result of state_dict() of the same class")
    return state[name]
