"""How the values of a store lie in tables: which rows, and which numbers. Nothing here has a connection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .optimizer import Optimizer, native_of

__all__ = ["Layout", "Rule", "bytes_of", "row_of"]

WIDTH = 1024
"""The longest row of a dense value: a message takes about sixty of them."""
WORD_BYTES = 4
"""So many bytes of a message are an element, a whole number that float64 has."""


@dataclass(frozen=True)
class Layout:
    """The table of a value."""

    shape: tuple[int, ...]
    rows: int
    width: int

    @classmethod
    def dense(cls, shape: tuple[int, ...], servers: int) -> Layout:
        """Rows that all servers have some of, of an array of any shape. The end of the last one may be empty."""
        elements = math.prod(shape)
        width = max(1, min(WIDTH, -(-elements // servers)))
        return cls(shape, max(1, -(-elements // width)), width)

    @classmethod
    def sparse(cls, shape: tuple[int, ...]) -> Layout:
        """A row for each row."""
        return cls(shape, max(1, shape[0]), max(1, math.prod(shape[1:])))

    @property
    def elements(self) -> int:
        """How many elements the value has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Rule:
    """What a push does to a table: what the table is made with, and what is tuned then."""

    name: str
    made_with: tuple[tuple[str, float], ...]
    numbers: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, optimizer: Optimizer | None) -> Rule:
        """Without an optimizer nothing is pushed but a first value."""
        if optimizer is None:
            return cls("assign", (), ())
        name, numbers = native_of(optimizer)
        # Whether there is a momentum is fixed when the table is made; which one is not.
        has_velocity = name == "sgd" and dict(numbers)["momentum"] != 0
        return cls(name, (("momentum", 0.5),) if has_velocity else (), tuple(numbers))

    @property
    def suffix(self) -> str:
        """What tables are called by that keep the same for each row."""
        return f"{self.name} with velocity" if self.made_with else self.name


def row_of(message: Any, width: int) -> Any:
    """An array of bytes as a row: its length, and four bytes in each element."""
    import numpy as np

    words = np.frombuffer(message.tobytes() + b"\0" * (-message.size % WORD_BYTES), "<u4")
    if words.size >= width:
        raise ValueError(f"{message.size} bytes do not fit a row")
    row = np.zeros(width)
    row[0], row[1 : 1 + words.size] = message.size, words
    return row


def bytes_of(row: Any) -> Any:
    """The array of bytes in a row; it is empty if nobody has written any."""
    import numpy as np

    size = int(row[0])
    return np.frombuffer(row[1:].astype("<u4").tobytes()[:size], np.uint8)
