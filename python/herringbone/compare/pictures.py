"""Curves as SVG: loss against time, steps and bytes, for light and dark surroundings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .options import Options
from .results import Curve, Row

__all__ = ["curves", "picture"]

WIDTH, MARGIN = 1200.0, 24.0
PANEL_WIDTH, PANEL_HEIGHT = 320.0, 260.0
LEFT, TOP = 44.0, 64.0
"""Room for the labels of a panel, and for the legend above all of them."""
LEGEND_COLUMNS, LEGEND_LINE = 5, 22
MOST_POINTS = 240
LIGHT = ("#2f6fde", "#c2571a", "#2b8a3e", "#8a3ffc", "#b5179e", "#0b7285", "#8d6e00", "#5c677d", "#c92a2a", "#37474f")
DARK = ("#7aa7ff", "#ffa657", "#69db7c", "#c29bff", "#ff7edb", "#3bc9db", "#e6c84a", "#a9b4c6", "#ff8787", "#cfd8dc")
DASHES = ("", "7 4")
PANELS = (("steps", "steps of a worker"), ("seconds", "seconds"), ("sent", "bytes that a worker has sent"))
NAMES = {
    "steps": lambda value: f"{value:g}",
    "seconds": lambda value: f"{value:g} s" if value else "0",
    "sent": lambda value: _bytes(value),
}
"""How marks of an axis are written."""


def _style() -> str:
    """Colours by class, so that one picture serves both."""
    rules = []
    for theme, (ink, grey, faint, series) in (
        ("{}", ("#1f2933", "#5b6673", "#e4e7ec", LIGHT)),
        ("@media (prefers-color-scheme: dark) {{{}}}", ("#e6e9ee", "#a3adba", "#39414d", DARK)),
    ):
        own = [f".ink{{fill:{ink}}}.grey{{fill:{grey}}}.grid{{stroke:{faint}}}"]
        own += [f".s{place}{{stroke:{colour};fill:none}}" for place, colour in enumerate(series)]
        rules.append(theme.format("".join(own)))
    return f"<style>{''.join(rules)}</style>"


@dataclass(frozen=True)
class Frame:
    """Where values lie in a panel: linear across, logarithmic upwards."""

    x: float
    y: float
    most: float
    low: float
    high: float

    def at(self, value: float, loss: float) -> str:
        """A point of a polyline."""
        across = value / self.most
        up = (math.log(loss) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return f"{self.x + PANEL_WIDTH * across:.1f},{self.y + PANEL_HEIGHT * (1 - up):.1f}"


def curves(rows: Sequence[Row]) -> str:
    """The three panels and their legend, as one ``<svg>`` element; only words if there is no curve."""
    drawn = [(place, row) for place, row in enumerate(rows) if any(_points(row.curve, "steps"))]
    lines = max(1, -(-len(drawn) // LEGEND_COLUMNS))
    top = TOP + LEGEND_LINE * (lines - 1)
    height = top + PANEL_HEIGHT + 48
    parts = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH:.0f} {height:.0f}' role='img'"]
    parts[0] += " font-family='system-ui, sans-serif'><title>Loss against steps, time and bytes</title>"
    parts += [_style(), *_legend(drawn)]
    if not drawn:
        parts.append(_text(MARGIN, 40, "no architecture has a curve", "ink", 15))
    for number, (axis, words) in enumerate(PANELS if drawn else ()):
        x = MARGIN + LEFT + number * (PANEL_WIDTH + LEFT + 20)
        parts += _panel(drawn, axis, words, x, top)
    return "\n".join([*parts, "</svg>"])


def picture(options: Options, rows: Sequence[Row], place: str) -> str:
    """The same as a file."""
    return f"{curves(rows)}\n"


def _points(curve: Curve, axis: str) -> list[tuple[float, float]]:
    """Some of a curve's points, the last one included, without those that a logarithm does not take."""
    every = max(1, len(curve.losses) // MOST_POINTS)
    chosen = [place for place in range(len(curve.losses)) if place % every == 0 or place == len(curve.losses) - 1]
    points = [(getattr(curve, axis)[place], curve.losses[place]) for place in chosen]
    return [(value, loss) for value, loss in points if math.isfinite(loss) and loss > 0]


def _panel(drawn: Sequence[tuple[int, Row]], axis: str, words: str, x: float, y: float) -> Iterator[str]:
    found = {place: _points(row.curve, axis) for place, row in drawn}
    losses = [loss for points in found.values() for _, loss in points]
    low, high = min(losses) / 1.1, max(losses) * 1.1
    most = max(value for points in found.values() for value, _ in points) or 1.0
    frame = Frame(x, y, most, low, high)
    yield _text(x, y - 10, f"loss against {words}", "ink", 14, weight=600)
    for loss in _marks(low, high):
        yield _line([frame.at(0, loss), frame.at(most, loss)], "grid")
        height = float(frame.at(0, loss).split(",")[1])
        yield _text(x - 6, height + 4, f"{loss:g}", "grey", 11, "end")
    apart = _apart(most)
    for part in range(int(most / apart + 1e-9) + 1):
        value = apart * part
        yield _line([frame.at(value, low), frame.at(value, high)], "grid")
        yield _text(x + PANEL_WIDTH * value / most, y + PANEL_HEIGHT + 18, NAMES[axis](value), "grey", 11, "middle")
    for place, row in drawn:
        yield _line([frame.at(*point) for point in found[place]], _series(place), 2.0, row.label, _dash(place))


def _apart(most: float) -> float:
    """A round distance of at most six marks from 0 to ``most``."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if most / (step * power) <= 5)


def _marks(low: float, high: float) -> list[float]:
    """Round losses between two."""
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8), tuple(part / 10 for part in range(10, 100))):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [step * 10.0**exponent for exponent in exponents for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            break
    return found[:8]


def _legend(drawn: Sequence[tuple[int, Row]]) -> Iterator[str]:
    apart = (WIDTH - 2 * MARGIN) / LEGEND_COLUMNS
    for number, (place, row) in enumerate(drawn):
        down, across = divmod(number, LEGEND_COLUMNS)
        x, y = MARGIN + across * apart, 20.0 + LEGEND_LINE * down
        yield _line([f"{x:.1f},{y - 4:.1f}", f"{x + 28:.1f},{y - 4:.1f}"], _series(place), 3.0, dash=_dash(place))
        yield _text(x + 36, y, row.label, "ink", 13)


def _bytes(value: float) -> str:
    """A round number of bytes: ``20 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B" if value else "0"


def _series(place: int) -> str:
    return f"s{place % len(LIGHT)}"


def _dash(place: int) -> str:
    return DASHES[place // len(LIGHT) % len(DASHES)]


def _text(x: float, y: float, content: str, kind: str, height: int, anchor: str = "start", weight: int = 400) -> str:
    style = f"font-size='{height}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' class='{kind}' {style}>{escape(content)}</text>"


def _line(points: Sequence[str], kind: str, width: float = 1.0, tip: str = "", dash: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    shape = f"points='{' '.join(points)}' class='{kind}' stroke-width='{width}' fill='none' stroke-linejoin='round'{dashes}"
    return f"<polyline {shape}>{inside}</polyline>"
