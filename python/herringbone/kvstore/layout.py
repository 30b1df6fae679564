"""The layout of a store's values in tables: rows and numbers. Nothing here has a connection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError
from .optimizer import Optimizer
from .rules import NAMES, WITH_VELOCITY, Parameters, native_numbers
from .sparse import RowSparse

__all__ = ["Layout", "Rule", "bytes_of", "row_of"]

WIDTH = 1024
"""The longest row of a dense value: a message holds about sixty of them."""
WIDEST_BYTES = 1 << 16
"""The longest row that a table can have, ``WIDTH_MOST`` of ``crates/core/src/table/spec.rs``."""
WORD_BYTES = 4
"""How many bytes of a message form an element: a whole number that float64 represents exactly."""


@dataclass(frozen=True)
class Layout:
    """The table of a value."""

    shape: tuple[int, ...]
    rows: int
    width: int

    @classmethod
    def of(cls, call: str, key: Any, like: Any, servers: int, rule: Rule) -> Layout:
        """The table of a key's value, for a rule.

        Raises:
            ArgumentError: the rule needs the value in one row, but it does not fit.
        """
        is_sparse = isinstance(like, RowSparse)
        if not rule.needs_whole:
            return cls.sparse(like.shape) if is_sparse else cls.dense(like.shape, servers)
        elements, most = math.prod(like.shape), WIDEST_BYTES // like.dtype.itemsize
        if is_sparse or elements > most:
            what = "is row-sparse" if is_sparse else f"has {elements} elements of {like.dtype}"
            raise ArgumentError(
                f"{call}: key {key!r} {what}; on servers {rule.name} needs each key in one row, because it uses the key's norm: dense, "
                f"with at most {most} elements. Use another optimizer, or a store of type 'dist_sync'"
            )
        return cls(like.shape, 1, max(1, elements))

    @classmethod
    def dense(cls, shape: tuple[int, ...], servers: int) -> Layout:
        """Rows, spread over all servers, for an array of any shape. The end of the last row can be unused."""
        elements = math.prod(shape)
        width = max(1, min(WIDTH, -(-elements // servers)))
        return cls(shape, max(1, -(-elements // width)), width)

    @classmethod
    def sparse(cls, shape: tuple[int, ...]) -> Layout:
        """A row of the table for each row of the value."""
        return cls(shape, max(1, shape[0]), max(1, math.prod(shape[1:])))

    @property
    def elements(self) -> int:
        """How many elements the value has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Rule:
    """The effect of a push on a table: the settings that the table is made with, and the numbers that are tuned later."""

    name: str
    made_with: tuple[tuple[str, float], ...]
    numbers: tuple[tuple[str, float], ...]
    has_velocity: bool = False

    @classmethod
    def of(cls, optimizer: Optimizer | None, call: str, key: Any) -> Rule:
        """The rule of a key. Without an optimizer only a first value is pushed.

        Raises:
            ArgumentError: one of the optimizer's numbers is invalid.
        """
        if optimizer is None:
            return cls("assign", (), ())
        return cls.with_numbers(optimizer, optimizer._numbers_of(call, key))

    @classmethod
    def with_numbers(cls, optimizer: Optimizer, given: Parameters) -> Rule:
        """The rule of an optimizer, with a key's numbers."""
        numbers = native_numbers(optimizer.name, given)
        if optimizer.name not in WITH_VELOCITY:
            return cls(NAMES[optimizer.name], (), tuple(numbers))
        # Whether there is a momentum is fixed when the table is made; its value is not.
        has_velocity = given["momentum"] != 0
        return cls(NAMES[optimizer.name], (("momentum", 0.5 if has_velocity else 0.0),), tuple(numbers), has_velocity)

    @property
    def suffix(self) -> str:
        """The part of a table's name that is equal for rules that keep the same numbers for each row."""
        return f"{self.name} with velocity" if self.has_velocity else self.name

    @property
    def needs_whole(self) -> bool:
        """Whether a step needs all elements of a key at once, so that the key is one row of its table."""
        return self.name == "lamb"


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
    """The array of bytes in a row; it is empty if none was written."""
    import numpy as np

    size = int(row[0])
    return np.frombuffer(row[1:].astype("<u4").tobytes()[:size], np.uint8)
