"""Checks of arguments, with the same errors for users of numpy and of torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

__all__ = ["check_explained", "check_seconds", "factor", "lengths", "level", "message_tag", "several", "text", "whole"]

LEVELS = range(-(1 << 31), 1 << 31)
"""The allowed priorities."""

LONGEST = 1 << 63
"""Above every timeout, in seconds."""

MOST = 1 << 64
"""Above every number of elements."""

TAGS = range(-(1 << 63), 1 << 63)
"""The allowed tags of a message."""


def whole(call: str, argument: str, value: Any, meaning: str) -> int:
    """``value`` as an int; a TypeError if it is no whole number."""
    try:
        number: int = operator.index(value)
    except TypeError:
        raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not {meaning}") from None
    return number


def text(call: str, argument: str, value: Any, meaning: str = "a text") -> str:
    """``value``, if it is a text that can be sent: one with half of a surrogate pair has no encoding."""
    if not isinstance(value, str):
        raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not {meaning}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{call}: {argument} is {value!r}, which has half of a surrogate pair; pass a text of whole characters"
        ) from None
    return value


def factor(call: str, argument: str, value: Any) -> float:
    """``value`` as a number to multiply by."""
    try:
        math.isnan(value)  # unlike float(), it takes no texts
        return float(value)
    except (RuntimeError, TypeError, ValueError):
        raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not a number") from None


def several(call: str, argument: str, value: Any) -> list[Any]:
    """``value`` as a list. A single tensor or array is refused, because a loop would take its rows for several."""
    if not isinstance(value, Iterable) or hasattr(value, "shape"):
        raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not a list; pass a list, even of one")
    return list(value)


def level(call: str, argument: str, value: Any) -> int:
    """``value`` as a priority."""
    number = whole(call, argument, value, "a whole number; above 0 is urgent")
    if number not in LEVELS:
        raise ValueError(f"{call}: {argument} is {number}; it lies from {LEVELS[0]} to {LEVELS[-1]}, and 1 is urgent")
    return number


def message_tag(call: str, value: Any) -> int:
    """``value`` as the tag of a message."""
    number = whole(call, "tag", value, "a whole number")
    if number not in TAGS:
        raise ValueError(f"{call}: tag is {number}; pass one of 64 bits, from -2**63 to 2**63 - 1")
    return number


def lengths(call: str, argument: str, value: Any) -> tuple[int, ...]:
    """``value``, a whole number or several, as a shape."""
    meaning = "a whole number of elements or a sequence of them"
    sizes: tuple[int, ...]
    try:
        sizes = (operator.index(value),)
    except TypeError:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not {meaning}") from None
        sizes = tuple(whole(call, f"a length in {argument}", length, "a whole number") for length in value)
    if any(length < 0 for length in sizes):
        raise ValueError(f"{call}: {argument} is {sizes}; no length is below 0")
    return sizes


def check_seconds(call: str, value: Any) -> None:
    """Refuse a ``timeout`` that is no number of seconds; ``None`` means the default."""
    if value is None:
        return
    try:
        fits = math.isfinite(value) and 0 <= value < LONGEST
    except TypeError:
        raise TypeError(f"{call}: timeout is a {type(value).__name__}, not a number of seconds") from None
    except (ArithmeticError, ValueError):  # too large to be a float, or a decimal that is none
        fits = False
    if not fits:
        raise ValueError(f"{call}: timeout is {value}; pass a number of seconds from 0, or leave it out")


def check_explained(count: Any, collective: Any, compression: Any) -> int:
    """Check the arguments of ``explain``, and return the number of elements as an int."""
    text("explain", "collective", collective, "a name like 'all_reduce'")
    if compression is not None:
        text("explain", "compression", compression, "a codec's name")
    number = whole("explain", "count", count, "a number of elements: pass how many, and their type as dtype=")
    if not 0 <= number < MOST:
        raise ValueError(f"explain: count is {number}, not a number of elements")
    return number
