"""Checks of a saved state before anything of it is loaded: plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ArgumentError

__all__ = ["check_groups", "check_state", "count_of", "list_of", "needed_of"]

_PARTS = ("rounds", "step", "averages")


def check_state(call: str, state: Any, parameters: Sequence[Sequence[str]]) -> None:
    """Check what all classes that average save; ``parameters`` describe those of each fragment.

    Raises:
        TypeError: no class has saved it.
        ArgumentError: a part is missing or makes no sense, or it is of other parameters.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{call}: the state is a {type(state).__name__}; pass what state_dict() gave")
    if _part(call, state, "version") != 1:
        raise ArgumentError(f"{call}: the state is of version {state['version']}, and this knows version 1")
    for name in _PARTS:
        _part(call, state, name)
    for name in ("rounds", "step"):
        count_of(call, state, name)
    if "parameters" in state:  # earlier versions have saved none
        _check_parameters(call, list_of(call, state, "parameters"), parameters)


def _check_parameters(call: str, given: Sequence[Sequence[str]], own: Sequence[Sequence[str]]) -> None:
    if len(given) != len(own):
        raise ArgumentError(f"{call}: the state has {len(given)} fragments, and the model {len(own)}; cut it alike")
    for fragment, sides in enumerate(zip(given, own)):
        for number in range(max(map(len, sides))):
            one, other = (side[number] if number < len(side) else "none" for side in sides)
            if one != other:
                where = f"parameter {number} of fragment {fragment}"
                raise ArgumentError(f"{call}: {where} is {one} in the state and {other} in the model; make the same model")


def check_groups(call: str, state: Any, groups: Sequence[Mapping[str, Any]], needed: Iterable[str]) -> None:
    """Check what every optimizer of torch saves; ``groups`` are its own of parameters, each of which has the settings ``needed``.

    Raises:
        TypeError: no optimizer has saved it.
        ArgumentError: a part or a setting is missing, or it is of other groups.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"{call}: the state is a {type(state).__name__}; pass what state_dict() gave")
    if not isinstance(_part(call, state, "state"), Mapping):
        raise ArgumentError(f"{call}: the state's 'state' is a {type(state['state']).__name__}; pass what state_dict() gave")
    saved = list_of(call, state, "param_groups")
    for number, group in enumerate(saved):
        missing = [name for name in ("params", *needed) if not isinstance(group, Mapping) or name not in group]
        if missing:
            names = ", ".join(map(repr, missing))
            raise ArgumentError(
                f"{call}: group {number} of the state lacks {names}; pass what state_dict() of the same class gave"
            )
        list_of(call, group, "params")
    found, own = ([len(group["params"]) for group in side] for side in (saved, groups))
    if found != own:
        raise ArgumentError(f"{call}: the state has groups of {found} parameters, and this has {own}; load the same model's")


def needed_of(defaults: Mapping[str, Any]) -> list[str]:
    """Of an optimizer's defaults the settings that each of its states has: flags come and go with torch's versions."""
    return [name for name, value in defaults.items() if value is not None and not isinstance(value, bool)]


def count_of(call: str, state: Mapping[str, Any], name: str) -> int:
    """A part that counts something.

    Raises:
        ArgumentError: it is missing, or not a number from 0.
    """
    value = _part(call, state, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentError(f"{call}: the state's {name!r} is {value!r}, not a whole number from 0: the state is damaged")
    return value


def list_of(call: str, state: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A part that is a list.

    Raises:
        ArgumentError: it is missing, or something else.
    """
    value = _part(call, state, name)
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(f"{call}: the state's {name!r} is a {type(value).__name__}, not a list; pass what state_dict() gave")
    return value


def _part(call: str, state: Mapping[str, Any], name: str) -> Any:
    if name not in state:
        raise ArgumentError(f"{call}: the state lacks {name!r}; pass what state_dict() of the same class gave")
    return state[name]
