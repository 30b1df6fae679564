"""How the values of a store lie in tables: which rows, and which numbers. Nothing here has a connection."""

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
"""The longest row of a dense value: a message takes about sixty of them."""
WIDEST_BYTES = 1 << 16
"""The longest row that a table can have, ``WIDTH_MOST`` of ``crates/core/src/table/spec.rs``."""
WORD_BYTES = 4
"""So many bytes of a message are an element, a whole number that float64 has."""


@dataclass(frozen=True)
class Layout:
    """The table of a value."""

    shape: tuple[int, ...]
    rows: int
    width: int

    @classmethod
    def of(cls, call: str, key: Any, like: Any, servers: int, rule: Rule) -> Layout:
        """That of a key's value, for a rule.

        Raises:
            ArgumentError: the rule needs the value in one row, which it does not fit.
        """
        is_sparse = isinstance(like, RowSparse)
        if not rule.needs_whole:
            return cls.sparse(like.shape) if is_sparse else cls.dense(like.shape, servers)
        elements, most = math.prod(like.shape), WIDEST_BYTES // like.dtype.itemsize
        if is_sparse or elements > most:
            what = "is row-sparse" if is_sparse else f"has {elements} elements of {like.dtype}"
            raise ArgumentError(
                f"{call}: key {key!r} {what}; on servers {rule.name} needs the norm of a whole key, which is in one row, dense and of "
                f"at most {most} elements: use another optimizer, or a store of type 'dist_sync'"
            )
        return cls(like.shape, 1, max(1, elements))

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
    has_velocity: bool = False

    @classmethod
    def of(cls, optimizer: Optimizer | None, call: str, key: Any) -> Rule:
        """That of a key. Without an optimizer nothing is pushed but a first value.

        Raises:
            ArgumentError: the optimizer cannot have one of its numbers.
        """
        if optimizer is None:
            return cls("assign", (), ())
        return cls.with_numbers(optimizer, optimizer._numbers_of(call, key))

    @classmethod
    def with_numbers(cls, optimizer: Optimizer, given: Parameters) -> Rule:
        """That of an optimizer, with numbers of a key."""
        numbers = native_numbers(optimizer.name, given)
        if optimizer.name not in WITH_VELOCITY:
            return cls(NAMES[optimizer.name], (), tuple(numbers))
        # Whether there is a momentum is fixed when the table is made; which one is not.
        has_velocity = given["momentum"] != 0
        return cls(NAMES[optimizer.name], (("momentum", 0.5 if has_velocity else 0.0),), tuple(numbers), has_velocity)

    @property
    def suffix(self) -> str:
        """What tables are called by that keep the same for each row."""
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
    """The array of bytes in a row; it is empty if nobody has written any."""
    import numpy as np

    size = int(row[0])
    return np.frombuffer(row[1:].astype("<u4").tobytes()[:size], np.uint8)
