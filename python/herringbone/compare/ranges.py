"""The numbers of the command line, and their ranges. Nothing here converts a text to a number before its length is checked."""

from __future__ import annotations

import math

__all__ = ["number", "shown", "whole", "whole_within"]

LONGEST = 40
"""An error shows only the beginning of a longer word."""


def whole_within(text: str, least: int, most: int) -> int | None:
    """The whole number in a text of digits; None if the text has other characters, or the number is not from ``least`` to
    ``most``."""
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(most)) and least <= int(digits) <= most else None


def whole(flag: str, text: str, least: int, most: int) -> int:
    """The whole number behind a flag.

    Raises:
        ValueError: it is not a number, or not from ``least`` to ``most``; the text has both limits.
    """
    found = whole_within(text, least, most)
    if found is None:
        raise ValueError(f"{flag} {shown(text)}: pass a whole number from {least} to {most}")
    return found


def number(flag: str, text: str, least: float, most: float) -> float:
    """The number behind a flag, which can have a fraction.

    Raises:
        ValueError: it is not a number, or not from ``least`` to ``most``; the text has both limits.
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
