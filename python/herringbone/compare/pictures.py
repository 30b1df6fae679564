"""Curves as SVG: loss against steps, time and bytes, for light and dark themes.

A line is identified by the label at its end, and by its colour and dashes. Colour-blind people can distinguish all colours; a
test checks their distances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from .options import Options
from .results import Curve, Row

__all__ = ["DARK", "DASHES", "LIGHT", "Theme", "panels", "picture", "spread", "style"]

PLOT_WIDTH, PLOT_HEIGHT = 240.0, 270.0
LEFT, TOP, BOTTOM = 46.0, 34.0, 28.0
"""Room for the marks of the axes, and for the title."""
LEADER, SAMPLE, LETTER, LABEL_HEIGHT = 22.0, 26.0, 7.2, 15.0
"""Sizes of a label in a picture's units: its distance from the line's end, a piece of the line, a letter's width, the
height."""
MARK_APART = 46.0
MOST_POINTS = 240


@dataclass(frozen=True)
class Theme:
    """Colours as ``#rrggbb``."""

    paper: str
    ink: str
    grey: str
    faint: str
    series: tuple[str, ...]


LIGHT = Theme("#ffffff", "#1f2933", "#5b6673", "#e4e7ec", ("#4a7bff", "#f06a00", "#005c38", "#a0159c", "#111111"))
DARK = Theme("#14181f", "#e6e9ee", "#a3adba", "#39414d", ("#4d80ff", "#f2591a", "#2fdc6a", "#ff9ee0", "#ffffff"))
DASHES = ("", "9 4", "2 3")
"""The dashes of further lines when all colours are used."""
AXES = (
    ("steps", "steps", False),
    ("seconds", "time", False),
    ("sent", "bytes sent, logarithmic", True),
)
"""The horizontal axes of losses, and whether each is logarithmic: architectures differ in bytes by factors of hundreds."""
NAMES = {
    "steps": lambda value: f"{value:g}",
    "seconds": lambda value: f"{value:g} s" if value else "0",
    "sent": lambda value: _bytes(value),
}
"""The format of an axis's marks."""


def style() -> str:
    """The rules of all pictures: colours by class, so that one picture serves both themes."""
    rules = []
    for around, theme in (("{}", LIGHT), ("@media (prefers-color-scheme: dark) {{{}}}", DARK)):
        own = [f".ink{{fill:{theme.ink}}}.grey{{fill:{theme.grey}}}.paper{{fill:{theme.paper}}}.grid{{stroke:{theme.faint}}}"]
        own += [f".s{place}{{stroke:{colour};fill:none}}.e{place}{{fill:{colour}}}" for place, colour in enumerate(theme.series)]
        rules.append(around.format("".join(own)))
    return "\n".join(rules)


@dataclass(frozen=True)
class Axis:
    """The values of an axis, and their positions along it."""

    low: float
    high: float
    logarithmic: bool

    def part(self, value: float) -> float:
        """From 0 at ``low`` to 1 at ``high``."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        """Round values."""
        if self.logarithmic:
            return _marks(self.low, self.high)
        apart = _apart(self.high)
        return [apart * part for part in range(int(self.high / apart + 1e-9) + 1)]


@dataclass(frozen=True)
class Line:
    """A row's curve in a panel."""

    place: int
    """The row's place among all rows, which determines colour and dashes."""
    label: str
    points: list[tuple[float, float]]
    """The horizontal values, and the losses."""


@dataclass(frozen=True)
class Plot:
    """The positions of values in a panel."""

    across: Axis
    upwards: Axis
    height: float

    def at(self, value: float, loss: float) -> tuple[float, float]:
        """The place of a point."""
        return LEFT + PLOT_WIDTH * self.across.part(value), TOP + self.height * (1 - self.upwards.part(loss))


def panels(rows: Sequence[Row]) -> list[str]:
    """An ``<svg>`` element for each axis; with words only if there is no curve. :func:`style` defines their colours."""
    width, height = _size(rows)
    parts = (_panel(rows, *axis) for axis in AXES)
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' role='img'"
        f" font-family='system-ui, sans-serif'><title>Loss against {words}</title>\n{inside}\n</svg>"
        for (_, words, _), inside in zip(AXES, map("\n".join, parts))
    ]


def picture(options: Options, rows: Sequence[Row], place: str) -> str:
    """All panels side by side, as a file."""
    width, height = _size(rows)
    shape = f"viewBox='0 0 {3 * width:.0f} {height + 10:.0f}'"
    inside = [
        panel.replace("<svg ", f"<svg x='{number * width:.0f}' y='0' width='{width:.0f}' height='{height:.0f}' ", 1)
        for number, panel in enumerate(panels(rows))
    ]
    lines = [f"<style>{style()}</style>", "<rect class='paper' width='100%' height='100%'/>", *inside]
    return "\n".join([f"<svg xmlns='http://www.w3.org/2000/svg' {shape} role='img'>", *lines, "</svg>\n"])


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Positions of labels near the wanted ones: at least ``apart`` from each other, from ``low`` to ``high`` if there is
    room."""
    order = sorted(range(len(wanted)), key=lambda number: wanted[number])
    places = [0.0] * len(wanted)
    before = low - apart
    for number in order:
        places[number] = before = max(wanted[number], before + apart)
    after = high + apart
    for number in reversed(order):
        places[number] = after = min(places[number], after - apart)
    return places


def _size(rows: Sequence[Row]) -> tuple[float, float]:
    """Width and height of a panel: there is room for all labels."""
    letters = max((len(row.label) for row in rows if row.curve.losses), default=0)
    return LEFT + PLOT_WIDTH + LEADER + SAMPLE + LETTER * letters + 12, TOP + _height(rows) + BOTTOM


def _height(rows: Sequence[Row]) -> float:
    return max(PLOT_HEIGHT, LABEL_HEIGHT * sum(1 for row in rows if row.curve.losses))


def _points(curve: Curve, axis: str, logarithmic: bool) -> list[tuple[float, float]]:
    """Some of a curve's points, including the last one, without points that have no logarithm."""
    every = max(1, len(curve.losses) // MOST_POINTS)
    chosen = [place for place in range(len(curve.losses)) if place % every == 0 or place == len(curve.losses) - 1]
    points = [(getattr(curve, axis)[place], curve.losses[place]) for place in chosen]
    return [(value, loss) for value, loss in points if math.isfinite(loss) and loss > 0 and (value > 0 or not logarithmic)]


def _panel(rows: Sequence[Row], axis: str, words: str, logarithmic: bool) -> Iterator[str]:
    lines = [Line(place, row.label, _points(row.curve, axis, logarithmic)) for place, row in enumerate(rows)]
    lines = [line for line in lines if line.points]
    yield _text(LEFT, TOP - 16, f"loss against {words}", "ink", 14, weight=600)
    if not lines:
        yield _text(LEFT, TOP + 20, "no architecture has a curve", "grey", 14)
        return
    values, losses = zip(*(point for line in lines for point in line.points))
    across = Axis(min(values) / 1.1, max(values) * 1.0001, True) if logarithmic else Axis(0.0, max(values) or 1.0, False)
    plot = Plot(across, Axis(min(losses) / 1.1, max(losses) * 1.1, True), _height(rows))
    yield from _grid(plot, axis)
    for line in lines:
        at = [plot.at(*point) for point in line.points]
        yield _line(at, _series(line.place), 2.0, line.label, _dash(line.place))
    yield from _labels(plot, lines)


def _grid(plot: Plot, axis: str) -> Iterator[str]:
    bottom, right = TOP + plot.height, LEFT + PLOT_WIDTH
    for loss in plot.upwards.marks():
        y = TOP + plot.height * (1 - plot.upwards.part(loss))
        yield _line([(LEFT, y), (right, y)], "grid")
        yield _text(LEFT - 6, y + 4, f"{loss:g}", "grey", 12, "end")
    last = -math.inf
    for value in plot.across.marks():
        x = LEFT + PLOT_WIDTH * plot.across.part(value)
        yield _line([(x, TOP), (x, bottom)], "grid")
        if x - last >= MARK_APART:
            yield _text(x, bottom + 18, NAMES[axis](value), "grey", 12, "middle")
            last = x


def _labels(plot: Plot, lines: Sequence[Line]) -> Iterator[str]:
    """Right of the plot: a thin line from a curve's end to a piece of it and its name."""
    ends = [plot.at(*line.points[-1]) for line in lines]
    half = LABEL_HEIGHT / 2
    places = spread([y for _, y in ends], LABEL_HEIGHT, TOP + half, TOP + plot.height - half)
    start = LEFT + PLOT_WIDTH + LEADER
    for line, end, y in zip(lines, ends, places):
        colour = line.place % len(LIGHT.series)
        yield _line([end, (start, y)], f"s{colour}", 0.7)
        yield f"<circle cx='{end[0]:.1f}' cy='{end[1]:.1f}' r='3' class='e{colour}'/>"
        yield _line([(start, y), (start + SAMPLE - 6, y)], _series(line.place), 2.5, dash=_dash(line.place))
        yield _text(start + SAMPLE, y + 4, line.label, "ink", 13)


def _apart(most: float) -> float:
    """A round distance of at most six marks from 0 to ``most``."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if most / (step * power) <= 5)


def _marks(low: float, high: float) -> list[float]:
    """Round values between two."""
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8), tuple(part / 10 for part in range(10, 100))):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [step * 10.0**exponent for exponent in exponents for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) >= 3:
            break
    return found[:8]


def _bytes(value: float) -> str:
    """A round number of bytes: ``20 MB``."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor * 0.9995:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B" if value else "0"


def _series(place: int) -> str:
    return f"s{place % len(LIGHT.series)}"


def _dash(place: int) -> str:
    return DASHES[place // len(LIGHT.series) % len(DASHES)]


def _text(x: float, y: float, content: str, kind: str, height: int, anchor: str = "start", weight: int = 400) -> str:
    style = f"font-size='{height}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' class='{kind}' {style}>{escape(content)}</text>"


def _line(points: Sequence[tuple[float, float]], kind: str, width: float = 1.0, tip: str = "", dash: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    shape = f"points='{places}' class='{kind}' stroke-width='{width}' fill='none' stroke-linejoin='round'{dashes}"
    return f"<polyline {shape}>{inside}</polyline>"
