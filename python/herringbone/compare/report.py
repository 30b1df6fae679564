"""The rows as an aligned table, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from .options import Options
from .results import AXES, Row, budgets_of, failed

__all__ = ["COLUMNS", "as_csv", "as_json", "cells_of", "duration", "headings", "shown", "size", "table"]


def duration(seconds: float) -> str:
    """Seconds with three digits: ``12.3 ms``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 0.9995 or unit == "us":
            break
    return f"{_three(seconds * factor)} {unit}"


def size(count: float) -> str:
    """Bytes with three digits: ``1.2 MB``, by powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor * 0.9995:
            return f"{_three(count / factor)} {unit}"
    return f"{count:.0f} B"


def _three(number: float) -> str:
    """A number with three digits, without a power of ten."""
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps": ("steps", lambda value: f"{value:.0f}"),
    "seconds": ("time", duration),
    "step_s": ("step", duration),
    "computing_s": ("computing", duration),
    "slept_s": ("sleeping", duration),
    "rest_s": ("rest", duration),
    "predicted_s": ("predicted", duration),
    "cpu_s": ("CPU", duration),
    "servers_cpu_s": ("servers' CPU", duration),
    "sent_per_step": ("sent/step", size),
    "received_per_step": ("received/step", size),
    "staleness": ("stale", lambda value: f"{value:.1f}"),
    "most_staleness": ("most", lambda value: f"{value:.0f}"),
    "accuracy": ("accuracy", lambda value: f"{100 * value:.1f} %"),
}
"""A row's figures: their headings and formats."""
SHOWN = ("steps", "seconds", "step_s", "rest_s", "predicted_s", "cpu_s", "sent_per_step", "staleness", "most_staleness")
"""The figures of the table, before losses and accuracy; a figure that no architecture has is left out."""


def _budget(axis: str, budget: float) -> str:
    return {"steps": f"{budget:.0f} steps", "seconds": duration(budget), "sent": size(budget)}[axis]


def shown(rows: Sequence[Row]) -> list[str]:
    """The figures of a table of these rows, before losses and accuracy."""
    return [name for name in SHOWN if any(row.figures.get(name) is not None for row in rows)]


def headings(rows: Sequence[Row]) -> list[str]:
    """The headings of the table's columns."""
    budgets = budgets_of(rows)
    losses = [f"loss, {_budget(axis, getattr(budgets, axis))}" for axis in AXES] if budgets else []
    return ["architecture", *(COLUMNS[name][0] for name in shown(rows)), *losses, COLUMNS["accuracy"][0]]


def cells_of(row: Row, rows: Sequence[Row]) -> list[str]:
    """A row's cells under :func:`headings`; for a failed architecture only the name."""
    budgets = budgets_of(rows)
    if row.error or budgets is None:
        return [row.label]
    losses = [row.curve.at(axis, getattr(budgets, axis)) for axis in AXES]
    fallen = ["-" if loss is None or math.isnan(loss) else f"{loss:.3f}" for loss in losses]
    return [row.label, *(_cell(row, name) for name in shown(rows)), *fallen, _cell(row, "accuracy")]


def _cell(row: Row, name: str) -> str:
    value = row.figures.get(name)
    return "-" if value is None else COLUMNS[name][1](value)


def table(rows: Sequence[Row], width: int | None = None) -> str:
    """The aligned table, with figures at the right of their columns, then errors and missing architectures.

    If the terminal is narrower (``width``) than the table, losses and accuracy have their own table.
    """
    lines = [headings(rows), *(cells_of(row, rows) for row in rows if not row.error)]
    errors = [f"{row.label} failed: {row.error}" for row in rows if row.error and not row.missing]
    if left_out := [row for row in rows if row.missing]:
        errors.append(f"missing: {', '.join(row.label for row in left_out)} ({left_out[0].error})")
    if len(lines) == 1:
        return "\n".join(errors)
    whole, costs = _aligned(lines), 1 + len(shown(rows))
    if width is not None and len(whole[0]) > width:
        whole = [*_aligned([line[:costs] for line in lines]), "", *_aligned([[line[0], *line[costs:]] for line in lines])]
    return "\n".join([*whole, *errors])


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; the first one is underlined."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = [
        "  ".join(cell.rjust(width) if place else cell.ljust(width) for place, (cell, width) in enumerate(zip(line, widths)))
        for line in lines
    ]
    return [text[0], "  ".join("-" * width for width in widths), *text[1:]]


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each architecture, with all figures in seconds and bytes. A figure that does not apply is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["architecture", *COLUMNS, *_losses(failed("", ""), rows), "error"])
    for row in rows:
        values = [*(row.figures.get(name) for name in COLUMNS), *_losses(row, rows).values()]
        writer.writerow([row.label, *("" if value is None else f"{value:.6g}" for value in values), row.remark])
    return out.getvalue()


def as_json(options: Options, rows: Sequence[Row], place: str) -> str:
    """All results, including curves. ``place`` describes the links."""
    object_of: dict[str, Any] = {
        "model": options.model,
        "about": next((row.about for row in rows if row.about), None),
        "workers": options.workers,
        "servers": options.servers,
        "wanted_steps": options.steps if options.seconds is None else None,
        "wanted_seconds": options.seconds,
        "seed": options.seed,
        "slow_worker": str(options.slow) if options.slow else None,
        "wanted_rate_mbit_s": options.rate,
        "links": place,
        "architectures": [
            {
                "architecture": row.label,
                "error": row.remark or None,
                **{name: row.figures.get(name) for name in COLUMNS},
                **_losses(row, rows),
                "curve": {name: _finite(getattr(row.curve, name)) for name in (*AXES, "losses")},
            }
            for row in rows
        ],
    }
    return json.dumps(object_of)


def _losses(row: Row, rows: Sequence[Row]) -> dict[str, float | None]:
    """For each axis the budget at which losses are compared, and the row's loss there: ``at_steps``, ``loss_at_steps``."""
    budgets, found = budgets_of(rows), dict[str, float | None]()
    for axis in AXES:
        budget = getattr(budgets, axis) if budgets else None
        loss = None if budget is None else row.curve.at(axis, budget)
        found |= {f"at_{axis}": budget, f"loss_at_{axis}": None if loss is None or math.isnan(loss) else loss}
    return found


def _finite(numbers: Sequence[float]) -> list[float | None]:
    """JSON has no infinities and no not-a-number."""
    return [number if math.isfinite(number) else None for number in numbers]
