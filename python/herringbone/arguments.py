"""What is said about arguments of a wrong type, to users of numpy and of torch alike."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["check_explained", "whole"]


def whole(call: str, argument: str, value: Any, meaning: str) -> int:
    """``value`` as an int; refuses what is no whole number."""
    try:
        number: int = operator.index(value)
    except TypeError:
        raise TypeError(f"{call}: {argument} is a {type(value).__name__}, not {meaning}") from None
    return number


def check_explained(count: Any, collective: Any) -> int:
    """What ``explain`` is asked about: the number of elements as an int."""
    if not isinstance(collective, str):
        raise TypeError(f"explain: collective is a {type(collective).__name__}, not a name like 'all_reduce'")
    number = whole("explain", "count", count, "a number of elements: say how many, and dtype= of which type")
    if number < 0:
        raise ValueError(f"explain: count is {number}, not a number of elements")
    return number
