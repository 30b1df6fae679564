"""Reads profiles from any source. If a part does not fit the format, the error names its place in the file and what is
expected."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .document import ELEMENT_BYTES, Buckets, Layer, Measured, Parameter, Profile, Published, Run
from .writing import FORMAT, VERSION, is_control

__all__ = ["MOST_BYTES", "MOST_PARAMETERS", "FormatError", "parsed", "read"]

MOST_BYTES = 16 << 20
"""The most bytes of a file."""
MOST_PARAMETERS = 100_000
"""The most parameters of a model, and the most layers."""
MOST_CHARACTERS = 1000
"""The most characters of a text."""
MOST_LENGTHS = 16
"""The most dimensions of a shape."""
MOST_NUMBER = 1 << 53
"""Whole numbers are below this, because other readers store them as floats."""
TIMINGS = {"operations": {"sample", "published"}, "seconds": {"run", "measured", "buckets"}}
"""Keys that only profiles with one kind of timing have."""
T = TypeVar("T")


class FormatError(ValueError):
    """A file is not a model's profile, or has an invalid part. The text names the place, and what belongs there."""


def read(path: Path | str) -> Profile:
    """The profile in a file of at most 16 MiB.

    Raises:
        FormatError: it is not a profile.
        OSError: it cannot be read.
    """
    # Reading a FIFO without a writer would wait forever.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{path} is not a regular file: pass the file of a profile")
        data = file.read(MOST_BYTES + 1)
    try:
        return parsed(data)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None


def parsed(data: bytes) -> Profile:
    """The profile in these bytes of a file.

    Raises:
        FormatError: they are not a profile.
    """
    if len(data) > MOST_BYTES:
        raise FormatError(f"the file has more than {MOST_BYTES >> 20} MiB, the most for a profile")
    try:
        whole = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except FormatError:
        raise
    except (RecursionError, ValueError) as error:
        raise FormatError(f"this is not valid JSON in UTF-8: {error}") from None
    return _profile(whole)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FormatError("an object has a key twice; keep one of them")
    return found


def _no_number(name: str) -> NoReturn:
    raise FormatError(f"{name} is not valid JSON; leave out steps with such a number")


def _profile(whole: Any) -> Profile:
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise FormatError(f'this is not a profile of a model, which begins with {{"format": "{FORMAT}"')
    # True and 1.0 are equal to 1.
    if type(whole.get("version")) is not int or whole["version"] != VERSION:
        raise FormatError(f"its version is {_shown(whole.get('version'))}, but this program reads version {VERSION}")
    timing = whole.get("timing")
    if not isinstance(timing, str) or timing not in TIMINGS:
        raise FormatError(f'timing is {_shown(timing)}, not "operations" or "seconds"')
    needed = {"format", "version", "name", "source", "timing", "layers"}
    needed |= {"sample"} if timing == "operations" else {"run", "measured"}
    _keys("the profile", whole, needed, needed | TIMINGS[timing])
    layers = _layers(whole["layers"], timing)
    profile = Profile(
        _line("name", whole["name"]),
        _text("source", whole["source"]),
        layers,
        sample=_text("sample", whole["sample"]) if "sample" in whole else None,
        published=_record("published", Published, whole["published"]) if "published" in whole else None,
        run=_record("run", Run, whole["run"]) if "run" in whole else None,
        measured=_record("measured", Measured, whole["measured"]) if "measured" in whole else None,
    )
    if "buckets" not in whole:
        return profile
    return dataclasses.replace(profile, buckets=_buckets(whole["buckets"], list(profile.parameters())))


def _layers(given: Any, timing: str) -> list[Layer]:
    rows = _list("layers", given, MOST_PARAMETERS)
    if not rows:
        raise FormatError("layers is empty; a model has at least one layer with parameters")
    layers, count = [], 0
    for number, row in enumerate(rows):
        where = f"layers[{number}]"
        keys = {"name", "parameters"} | ({"multiply_adds"} if timing == "operations" else set())
        _keys(where, row, keys, keys)
        parameters = _list(f"{where}.parameters", row["parameters"], MOST_PARAMETERS - count)
        if not parameters:
            raise FormatError(f"{where} has no parameters; leave such layers out")
        count += len(parameters)
        found = [_parameter(f"{where}.parameters[{place}]", each, timing) for place, each in enumerate(parameters)]
        operations = _whole(f"{where}.multiply_adds", row["multiply_adds"]) if timing == "operations" else None
        layers.append(Layer(_text(f"{where}.name", row["name"]), found, operations))
    return layers


def _parameter(where: str, given: Any, timing: str) -> Parameter:
    needed = {"name", "shape", "dtype", "bytes"}
    _keys(where, given, needed, needed | {"trainable"} | ({"ready_seconds"} if timing == "seconds" else set()))
    trainable = _flag(f"{where}.trainable", given.get("trainable", True))
    if timing == "seconds" and trainable != ("ready_seconds" in given):
        has = "no ready_seconds; null means that no gradient came" if trainable else "ready_seconds, but is not trainable"
        raise FormatError(f"{where} has {has}")
    shape = tuple(_whole(f"{where}.shape", length) for length in _list(f"{where}.shape", given["shape"], MOST_LENGTHS))
    dtype = given["dtype"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise FormatError(f"{where}.dtype is {_shown(dtype)}; the format has {', '.join(ELEMENT_BYTES)}")
    ready = given.get("ready_seconds")
    seconds = None if ready is None else _seconds(f"{where}.ready_seconds", ready)
    found = Parameter(_text(f"{where}.name", given["name"]), shape, dtype, trainable, seconds)
    if found.bytes != _whole(f"{where}.bytes", given["bytes"]):
        raise FormatError(f"{where}.bytes is {given['bytes']}, but {list(shape)} of {dtype} has {found.bytes}")
    return found


def _buckets(given: Any, parameters: Sequence[Parameter]) -> Buckets:
    keys = {each.name for each in dataclasses.fields(Buckets)}
    _keys("buckets", given, keys, keys)

    def lists(name: str) -> list[list[int]]:
        found, seen = [], set()
        for bucket in _list(f"buckets.{name}", given[name], len(parameters)):
            found.append([_whole(f"buckets.{name}", index) for index in _list(f"buckets.{name}", bucket, len(parameters))])
            for index in found[-1]:
                if index >= len(parameters) or not parameters[index].trainable or index in seen:
                    raise FormatError(f"buckets.{name} has parameter {index}, which is not trainable, or has it twice")
                seen.add(index)
        return found

    first, cap = (_whole(f"buckets.{name}", given[name]) for name in ("first_bytes", "cap_bytes"))
    return Buckets(first, cap, lists("initial"), lists("rebuilt"))


def _record(where: str, kind: Callable[..., T], given: Any) -> T:
    """The dataclass instance of an object with texts, numbers and flags."""
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    needed = {name for name, each in fields.items() if each.default is dataclasses.MISSING}
    _keys(where, given, needed, set(fields))
    readers = {"str": _text, "int": _whole, "float": _seconds, "bool": _flag}
    kinds = {name: str(each.type).removesuffix(" | None") for name, each in fields.items()}
    return kind(**{name: readers[kinds[name]](f"{where}.{name}", value) for name, value in given.items()})


def _keys(where: str, given: Any, needed: set[str], allowed: set[str]) -> None:
    """Refuse a value that is not an object, lacks a key, or has an unknown one."""
    if not isinstance(given, dict):
        raise FormatError(f"{where} is {_shown(given)}, not an object")
    for missing in sorted(needed - given.keys()):
        raise FormatError(f"{where} lacks {_shown(missing)}")
    for unknown in sorted(given.keys() - allowed):
        raise FormatError(f"{where} has the unknown key {_shown(unknown)}; it can have {', '.join(sorted(allowed))}")


def _list(where: str, given: Any, most: int) -> list[Any]:
    if not isinstance(given, list):
        raise FormatError(f"{where} is {_shown(given)}, not a list")
    if len(given) > most:
        raise FormatError(f"{where} has {len(given)} entries, but at most {most} are allowed")
    return given


def _text(where: str, given: Any) -> str:
    if not isinstance(given, str) or len(given) > MOST_CHARACTERS:
        raise FormatError(f"{where} is {_shown(given)}, not a text of at most {MOST_CHARACTERS} characters")
    return given


def _line(where: str, given: Any) -> str:
    """A text that is printed, so it must not contain control characters of terminals."""
    if any(is_control(letter) for letter in _text(where, given)):
        raise FormatError(f"{where} is {_shown(given)}, which has a line break or another control character")
    return str(given)


def _whole(where: str, given: Any) -> int:
    if type(given) is not int or not 0 <= given < MOST_NUMBER:
        raise FormatError(f"{where} is {_shown(given)}, not a whole number from 0 to 2^53")
    return given


def _seconds(where: str, given: Any) -> float:
    if type(given) not in (int, float) or not (0 <= given < MOST_NUMBER and math.isfinite(given)):
        raise FormatError(f"{where} is {_shown(given)}, not a number of seconds of 0 or more")
    return float(given)


def _flag(where: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise FormatError(f"{where} is {_shown(given)}, not true or false")
    return given


def _shown(given: Any) -> str:
    """A value for an error, not longer than a line."""
    shown = repr(given) if not isinstance(given, (dict, list)) else ("an object" if isinstance(given, dict) else "a list")
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
