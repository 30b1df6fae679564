"""The layout of parameters in the rows of a table: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["WIDTH", "Place", "places_of", "rows_of", "runs_of"]

WIDTH = 256
"""Elements of a row. Each parameter begins a row, so that a parameter without a gradient is not pushed."""


@dataclass(frozen=True)
class Place:
    """The place of a parameter's elements."""

    row: int
    """Its first row."""
    rows: int
    elements: int

    @property
    def first(self) -> int:
        """Its first element in the table."""
        return self.row * WIDTH

    @property
    def last(self) -> int:
        """The element of the table after its last one."""
        return self.first + self.elements


def places_of(sizes: Sequence[int]) -> list[Place]:
    """The places of parameters with these numbers of elements, one after the other. A parameter without elements has no row."""
    places, row = [], 0
    for size in sizes:
        rows = -(-size // WIDTH)
        places.append(Place(row, rows, size))
        row += rows
    return places


def rows_of(sizes: Sequence[int]) -> int:
    """The number of rows of a table for these parameters, at least one."""
    return max(1, sum(place.rows for place in places_of(sizes)))


def runs_of(places: Sequence[Place], has_gradient: Sequence[bool]) -> list[tuple[int, int]]:
    """The rows of parameters that have gradients, as runs: the first row of each run, and its length."""
    runs: list[tuple[int, int]] = []
    for place, has in zip(places, has_gradient):
        if not has or place.rows == 0:
            continue
        if runs and sum(runs[-1]) == place.row:
            runs[-1] = runs[-1][0], runs[-1][1] + place.rows
        else:
            runs.append((place.row, place.rows))
    return runs
