"""Kinds of values in addition to the plain ones: each is split into simpler values, from which another rank rebuilds it.

Classes of the program are sent by name, and only named tuples, dataclasses and enumerations: the receiver makes their instances
without running their code. It never imports a module because another rank names it.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

from .errors import HerringboneError

__all__ = ["KINDS", "joined", "taken_apart"]

FACTORIES = {kind.__name__: kind for kind in (list, dict, set, int, float, str, bool)}
"""The factories that a ``defaultdict`` can have."""


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Values of exactly one type, without derived types."""

    apart: Callable[[Any], Any]
    """Splits a value into values of other kinds."""
    together: Callable[[Any], Any]


def _own_attributes(value: Any) -> dict[str, Any]:
    return dict(vars(value))


def _namespace(kind: Any) -> _Kind:
    return _Kind(_own_attributes, lambda held: kind(**held))


def _apart_default(value: collections.defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if factory is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise TypeError(f"is a defaultdict of {factory!r}, which is code; pass dict(...) of it")
    return [None if factory is None else factory.__name__, dict(value)]


def _default(held: list[Any]) -> collections.defaultdict[Any, Any]:
    name, pairs = held
    return collections.defaultdict(FACTORIES.get(name), pairs)


def _apart_ordered(value: collections.OrderedDict[Any, Any]) -> Any:
    # The attribute of a module's state: the versions of its parts.
    return [dict(value), getattr(value, "_metadata", None)]


def _ordered(held: list[Any]) -> collections.OrderedDict[Any, Any]:
    pairs, metadata = held
    value = collections.OrderedDict(pairs)
    if metadata is not None:
        value._metadata = metadata  # type: ignore[attr-defined]
    return value


def _apart_moment(value: Any) -> list[Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        raise TypeError(f"is a {type(value).__name__} with the zone {value.tzinfo}; pass value.astimezone(datetime.timezone.utc)")
    return [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo]


def _moment(kind: Any) -> Callable[[Any], Any]:
    def together(held: list[Any]) -> Any:
        text, fold, zone = held
        return kind.fromisoformat(text).replace(fold=fold, tzinfo=zone)

    return together


KINDS: dict[type, tuple[str, _Kind]] = {
    complex: ("complex", _Kind(lambda it: [it.real, it.imag], lambda held: complex(*held))),
    range: ("range", _Kind(lambda it: [it.start, it.stop, it.step], lambda held: range(*held))),
    slice: ("slice", _Kind(lambda it: [it.start, it.stop, it.step], lambda held: slice(*held))),
    bytearray: ("bytearray", _Kind(bytes, bytearray)),
    collections.OrderedDict: ("ordered", _Kind(_apart_ordered, _ordered)),
    collections.Counter: ("counter", _Kind(dict, collections.Counter)),
    collections.defaultdict: ("default", _Kind(_apart_default, _default)),
    collections.deque: ("deque", _Kind(lambda it: [list(it), it.maxlen], lambda held: collections.deque(*held))),
    argparse.Namespace: ("namespace", _namespace(argparse.Namespace)),
    types.SimpleNamespace: ("simple namespace", _namespace(types.SimpleNamespace)),
    pathlib.PosixPath: ("path", _Kind(str, pathlib.PosixPath)),
    pathlib.PurePosixPath: ("pure path", _Kind(str, pathlib.PurePosixPath)),
    datetime.date: ("date", _Kind(datetime.date.isoformat, datetime.date.fromisoformat)),
    datetime.time: ("time", _Kind(_apart_moment, _moment(datetime.time))),
    datetime.datetime: ("datetime", _Kind(_apart_moment, _moment(datetime.datetime))),
    datetime.timedelta: (
        "timedelta",
        _Kind(lambda it: [it.days, it.seconds, it.microseconds], lambda held: datetime.timedelta(*held)),
    ),
    datetime.timezone: (
        "timezone",
        _Kind(lambda it: list(it.__getinitargs__()), lambda held: datetime.timezone(*held)),
    ),
}
"""By type: the name under which values are sent, and how."""

OF_TORCH: dict[str, _Kind] = {
    "dtype": _Kind(lambda it: str(it).removeprefix("torch."), lambda held: _of_torch("dtype", held)),
    "device": _Kind(str, lambda held: _torch().device(held)),
    "Size": _Kind(list, lambda held: _torch().Size(held)),
}
"""Types of torch, by their names there."""


def taken_apart(value: Any) -> tuple[str, Any] | None:
    """The name of a value's kind, and the simpler values that describe it; ``None`` if it is of none of these kinds.

    Raises:
        TypeError: it is of such a kind but cannot be sent; the text continues a sentence that begins with the value's name.
    """
    kind = type(value)
    if kind in KINDS:
        name, known = KINDS[kind]
        return name, known.apart(value)
    torch = sys.modules.get("torch")
    for name, known in OF_TORCH.items() if torch is not None else ():
        if kind is getattr(torch, name):
            return f"torch.{name}", known.apart(value)
    if issubclass(kind, enum.Enum):
        # A member that has a name is sent by it, because a value such as NaN can differ from itself.
        named = value.name in kind.__members__
        return "enum", [*_name_of(kind), [value.name] if named else value.value]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        if getattr(value, "__dict__", None):
            raise TypeError(
                f"is a {kind.__name__}, a named tuple with attributes of its own: {', '.join(vars(value))}; pass them separately"
            )
        return "named", [*_name_of(kind), list(value)]
    if dataclasses.is_dataclass(kind):
        if _base(kind) is not object:
            raise TypeError(
                f"is a {kind.__name__}, a dataclass that is also a {_base(kind).__name__}; pass its fields in a dictionary"
            )
        return "dataclass", [*_name_of(kind), _state(value)]
    return None


def joined(call: str, name: str, held: Any) -> Any:
    """The value whose kind has this name, from the result of :func:`taken_apart`.

    Raises:
        HerringboneError: this rank does not have its class, or does not know the kind.
    """
    if name in TOGETHER:
        return TOGETHER[name](held)
    if name in ("enum", "named", "dataclass"):
        module, qualified, content = held
        return _instance(_class(call, name, module, qualified), name, content)
    raise HerringboneError(f"{call}: a value of the kind {name!r}, which this rank does not know; all ranks need one version")


TOGETHER: dict[str, Callable[[Any], Any]] = {
    **{name: known.together for name, known in KINDS.values()},
    **{f"torch.{name}": known.together for name, known in OF_TORCH.items()},
}


def _instance(kind: Any, name: str, content: Any) -> Any:
    """A value of a class, made without calling the class's code."""
    if name == "enum":
        return kind[content[0]] if isinstance(content, list) else kind(content)
    if name == "named":
        return tuple.__new__(kind, content)
    value = object.__new__(kind)
    for attribute, each in content.items():
        object.__setattr__(value, attribute, each)
    return value


def _state(value: Any) -> dict[str, Any]:
    """All attributes of a dataclass's value: its fields, and attributes that were added to it."""
    slots = [getattr(kind, "__slots__", ()) for kind in type(value).__mro__]
    names = [
        name for each in slots for name in ([each] if isinstance(each, str) else each) if name not in ("__dict__", "__weakref__")
    ]
    names = [name for name in (*names, *(each.name for each in dataclasses.fields(value))) if hasattr(value, name)]
    return {name: getattr(value, name) for name in names} | dict(getattr(value, "__dict__", {}))


def _base(kind: type) -> type:
    """The built-in class that a class is derived from."""
    return next(each for each in kind.__mro__ if not each.__flags__ & 1 << 9)


def _name_of(kind: type) -> tuple[str, str]:
    """The module and name by which every rank finds a class.

    Raises:
        TypeError: no name leads to it.
    """
    if _found(kind.__module__, kind.__qualname__) is not kind:
        raise TypeError(
            f"is a {kind.__name__}, a class that other ranks cannot find by its name; define it at the top of a module"
        )
    return kind.__module__, kind.__qualname__


def _found(module: str, qualified: str) -> Any:
    """The object that an imported module has under a name."""
    place: Any = sys.modules.get(module)
    for part in qualified.split("."):
        place = getattr(place, "__dict__", {}).get(part)
    return place


def _class(call: str, name: str, module: str, qualified: str) -> type:
    kind = _found(module, qualified)
    fits = {
        "enum": lambda: issubclass(kind, enum.Enum),
        "named": lambda: issubclass(kind, tuple) and hasattr(kind, "_fields"),
        "dataclass": lambda: _base(kind) is object and dataclasses.is_dataclass(kind),
    }
    if not isinstance(kind, type) or not fits[name]():
        raise HerringboneError(
            f"{call}: the object holds a {module}.{qualified}, which this rank has not imported; import {module} on all ranks"
        )
    return kind


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise HerringboneError("the object holds a value of torch; import torch on this rank")
    return torch


def _of_torch(kind: str, name: str) -> Any:
    found = getattr(_torch(), name, None)
    if not isinstance(found, getattr(_torch(), kind)):
        raise HerringboneError(f"the object holds torch.{name}, which the torch of this rank does not have")
    return found
