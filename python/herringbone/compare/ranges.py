"""The numbers of the command line, and the ranges that they lie in. Nothing here makes a number of a text before its length is known."""

from __future__ import annotations

import math

__all__ = ["number", "shown", "whole", "whole_within"]

LONGEST = 40
"""Of a longer word an error shows the beginning."""


def whole_within(text: str, least: int, most: int) -> int | None:
    """The whole number that a text of digits is; None if it is none, or not from ``least`` to ``most``."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(most)) and least <= int(digits) <= most else None


def whole(flag: str, text: str, least: int, most: int) -> int:
    """The whole number behind a flag.

    Raises:
        ValueError: it is none, or not from ``least`` to ``most``; the text has both.
    """
    found = whole_within(text, least, most)
    if found is None:
        raise ValueError(f"{flag} {shown(text)}: pass a whole number from {least} to {most}")
    return found


def number(flag: str, text: str, least: float, most: float) -> float:
    """The number behind a flag, which may have a fraction.

    Raises:
        ValueError: it is none, or not from ``least`` to ``most``; the text has both.
    """
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= most:
        raise ValueError(f"{flag} {shown(text)}: pass a number from {least:g} to {most:g}")
    return found


def shown(text: str) -> str:
    """A word of the user's, as an error repeats it."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
