"""A record of the rigs as one picture: time and bandwidth against size, one column per group size.

Both axes are logarithmic. Peers are thin and muted, Herringbone is thick, limits are dashed.
"""

import math

from figures import limits, ours, peers, seconds, title
from svg import BLUE, FAINT, GREY, INK, ORANGE, dot, line, picture, text

WIDTH, MARGIN = 1200, 36
LATENCY, BANDWIDTH = 270, 200  # heights of the two rows of a section
LEFT, RIGHT, BETWEEN = 58, 10, 46  # room for the labels of an axis; from one row to the next
WIDEST = 552  # of a column
LABEL = 29  # the least distance of two labels of sizes
MUTED = ["#a9746e", "#7d93a8", "#8fa06a", "#a187b0", "#b39a5f", "#79a29a", "#8c8c8c", "#b0848f"]
STYLES = {
    "herringbone": (BLUE, 3.2, None),
    "herringbone-reducers": (ORANGE, 3.2, None),
    "herringbone-torch": (BLUE, 1.8, "2 4"),
}
LIMITS = {"floor": "6 4", "ring bound": "6 4", "server bound": "2 3"}


class Axes:
    """A panel's frame: where sizes and values lie on it."""

    def __init__(self, x, y, width, height, sizes, values):
        self.x, self.y, self.width, self.height, self.sizes = x, y, width, height, sizes
        self.first, self.last = math.log10(min(sizes)), math.log10(max(sizes))
        if self.first == self.last:
            self.first, self.last = self.first - 0.5, self.last + 0.5
        self.low, self.high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def at(self, size, value):
        """The point of a value at a size."""
        across = (math.log10(size) - self.first) / (self.last - self.first)
        up = (math.log10(value) - self.low) / (self.high - self.low)
        return self.x + self.width * across, self.y + self.height * (1 - up)

    def frame(self, label):
        """Grid and labels; `label` names a power of ten of the upright axis."""
        free = self.x
        for size in self.sizes:
            x, _ = self.at(size, 10**self.low)
            yield line([(x, self.y), (x, self.y + self.height)], FAINT)
            yield text(max(x, free), self.y + self.height + 15, short(size), 10.5, GREY, "middle")
            free = max(x, free) + LABEL
        for value in ticks(self.low, self.high):
            _, y = self.at(self.sizes[0], value)
            yield line([(self.x, y), (self.x + self.width, y)], FAINT)
            yield text(self.x - 7, y + 4, label(value), 10.5, GREY, "end")


def ticks(low, high):
    """Powers of ten between two exponents, with values between them where there are fewer than three."""
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)):
        found = [step * 10**exponent for exponent in exponents for step in steps]
        found = [value for value in found if low <= math.log10(value) <= high]
        if len(found) >= 3:
            break
    return found


def short(size):
    """A size as an axis has room for it: 25M."""
    for unit, bytes_of in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size >= bytes_of:
            return f"{size / bytes_of:.3g}{unit}"
    return str(size)


def time_label(value):
    """A time on an axis: 10 us."""
    for unit, factor in (("ns", 1e9), ("us", 1e6), ("ms", 1e3)):
        if value * factor < 999:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def bandwidth_label(value):
    """Bytes per second on an axis: 1 GB/s."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= factor * 0.999:
            return f"{value / factor:.3g} {unit}/s"
    return f"{value:.3g} B/s"


def curves(panel, floor):
    """(name, [(size, seconds)], colour, width, dash): limits first, ours last and so on top."""
    sizes = panel["sizes"]
    for name in dict.fromkeys(name for size in sizes for name in limits(panel, size, floor)):
        points = [(size, limits(panel, size, floor)[name]) for size in sizes if name in limits(panel, size, floor)]
        yield name, points, INK, 1.4, LIMITS[name]
    for place, program in enumerate(peers(panel)):
        yield program, measured(panel, program), MUTED[place % len(MUTED)], 1.5, None
    for program in reversed(ours(panel)):
        yield program, measured(panel, program), *STYLES[program]


def measured(panel, program):
    """A program's times where it has any."""
    points = [(size, seconds(panel, program, size)) for size in panel["sizes"]]
    return [(size, value) for size, value in points if value is not None]


def drawn(axes, all_curves, value):
    """The curves on a frame; `value` turns a size and its seconds into what the axis shows."""
    for name, points, colour, width, dash in all_curves:
        places = [axes.at(size, value(size, each)) for size, each in points]
        yield line(places, colour, width, dash)
        if name not in LIMITS:
            yield from (dot(x, y, colour, 3.4 if width > 3 else 2) for x, y in places)


def column(panel, floor, x, y, width):
    """One panel: time above, bandwidth below."""
    all_curves = [curve for curve in curves(panel, floor) if curve[1]]
    yield text(x, y - 10, title(panel), 14, weight=600)
    if not all_curves:
        yield text(x, y + 30, "no program has figures here", 13, GREY)
        return
    for top, height, value, label in (
        (y, LATENCY, lambda _, each: each, time_label),
        (y + LATENCY + BETWEEN, BANDWIDTH, lambda size, each: size / each, bandwidth_label),
    ):
        values = [value(size, each) for _, points, *_ in all_curves for size, each in points]
        axes = Axes(x + LEFT, top, width - LEFT - RIGHT, height, panel["sizes"], values)
        yield from axes.frame(label)
        yield from drawn(axes, all_curves, value)
    yield text(x + LEFT + 4, y + 14, "time of one all-reduce", 11.5, GREY)
    yield text(x + LEFT + 4, y + LATENCY + BETWEEN + 14, "bytes of the buffer / time", 11.5, GREY)


def legend(panels, floor, y):
    """Every name of a section once, ours first."""
    names = {}
    for panel in panels:
        for name, _, colour, width, dash in reversed(list(curves(panel, floor))):
            names.setdefault(name, (colour, width, dash))
    x = MARGIN
    for name, (colour, width, dash) in names.items():
        yield line([(x, y - 4), (x + 30, y - 4)], colour, width, dash)
        yield text(x + 37, y, name, 13, GREY if colour in MUTED else INK, weight=600 if name in STYLES else 400)
        x += 62 + 7.3 * len(name)


def sections(record):
    """Panels that stand side by side: at most three of one rig and rate."""
    found = {}
    for panel in record["panels"]:
        found.setdefault((panel["rig"], panel["rate"]), []).append(panel)
    for panels in found.values():
        for start in range(0, len(panels), 3):
            yield panels[start : start + 3]


def plot(record):
    """The whole picture."""
    facts = record["machine"]
    heading = f"All-reduce beside other libraries, {record['date']}"
    about = f"{facts['CPU']}, {facts['cores']} cores; commit {facts['commit']}; medians; sizes in bytes"
    parts, y = [text(MARGIN, 44, heading, 22, weight=700), text(MARGIN, 68, about, 13, GREY)], 104
    for panels in sections(record):
        parts.extend(legend(panels, record["floor"], y))
        width = min(WIDEST, (WIDTH - 2 * MARGIN - 24 * (len(panels) - 1)) / len(panels))
        for place, panel in enumerate(panels):
            parts.extend(column(panel, record["floor"], MARGIN + place * (width + 24), y + 42, width))
        y += 42 + LATENCY + BETWEEN + BANDWIDTH + 64
    return picture(WIDTH, y - 24, heading, parts)
