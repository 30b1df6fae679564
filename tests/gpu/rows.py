"""What the checks on a GPU have found: rows with their goals, as a table and as a page."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from text_tables import aligned

__all__ = ["Row", "bound_of", "checked", "judged", "page", "ratio", "table", "wrong"]

HEADS = ["check", "what", "result", "goal", "met"]


@dataclass(frozen=True)
class Row:
    """One result."""

    check: str
    what: str
    result: str
    goal: str = ""
    """Empty where there is nothing to meet."""

    is_met: bool | None = None
    """``None``: it was not judged, as figures of a stand-in are not."""


def checked(check: str, what: str) -> Row:
    """A check that has not failed."""
    return Row(check, what, "right", "right", True)


def judged(check: str, what: str, value: float, unit: str, most: float, is_real: bool) -> Row:
    """A figure that may be at most ``most`` on a GPU."""
    return Row(check, what, f"{value:.3g} {unit}", f"<= {most:.3g} {unit}", value <= most if is_real else None)


def bound_of(host: float, out: float, back: float) -> float:
    """Seconds that an all-reduce through the host takes at best where only the copies overlap: that of mapped memory, and the
    longer one of the copies out and back.
    """
    return host + max(out, back)


def ratio(times: Iterable[float], others: Iterable[float]) -> float:
    """The median of the ratios of pairs that were measured in turns."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))


def wrong(rows: Iterable[Row]) -> list[Row]:
    """The rows whose goal was missed."""
    return [row for row in rows if row.is_met is False]


def cells(row: Row) -> list[str]:
    met = "not judged" if row.is_met is None and row.goal else {True: "yes", False: "no"}.get(row.is_met, "")  # type: ignore[call-overload]
    return [row.check, row.what, row.result, row.goal, met]


def table(rows: Iterable[Row]) -> str:
    """The rows, aligned."""
    return "\n".join(aligned(HEADS, [cells(row) for row in rows]))


def page(rows: Iterable[Row], facts: dict[str, str]) -> str:
    """The record."""
    lines = [f"* {name}: {value}" for name, value in facts.items()]
    how = (
        "Two processes share one GPU, over shared memory unless a row says otherwise. Times are medians of rounds in turns. "
        "`make gpu` writes this page."
    )
    return "\n".join(["# Tensors on a GPU", *lines, "", how, "", table(rows)]) + "\n"


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    """The same for programs."""
    return [asdict(row) for row in rows]
