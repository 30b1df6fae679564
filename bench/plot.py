"""A record of the rigs as one picture: time and bandwidth against size, one row per group size.

Both axes are logarithmic. Herringbone is thick, peers are thin, limits are dashed. The names of curves stand at their ends.
"""

import math

from figures import duration, human, limits, ours, peers, seconds, title
from labels import spread
from report import BOUND_MEANINGS
from svg import BLUE, CYAN, FAINT, GREEN, GREY, INK, OLIVE, ORANGE, PINK, PURPLE, RED, line, mark, picture, text

WIDTH, HEIGHT, MARGIN = 1120, 230, 24
"""The picture's width, and the height of a panel."""
LEFT, RIGHT, BELOW = 72, 206, 86
"""Room for the labels of an upright axis, for names at ends, and from one row to the next."""
LETTER, APART = 6.8, 14
"""The width of a letter of an axis, and the least distance of two names at ends."""
STYLES = {
    "herringbone": (BLUE, 3.2, None, "circle"),
    "herringbone-reducers": (ORANGE, 3.2, None, "square"),
    "herringbone-torch": (BLUE, 1.8, "2 4", "circle"),
    "gloo": (RED, 1.5, None, "square"),
    "openmpi": (GREEN, 1.5, None, "triangle"),
    "impi": (PINK, 1.5, None, "diamond"),
    "mpich": (OLIVE, 1.5, None, "nabla"),
    "oneccl": (PURPLE, 1.5, "9 2", "square"),
    "xgboost": (CYAN, 1.5, "9 2", "triangle"),
    "floor": (INK, 1.4, "6 4", None),
    "ring bound": (INK, 1.4, "6 4", None),
    "server bound": (INK, 1.4, "2 3", None),
}
"""The colour, width, dashes and mark of each curve; no two of a panel look alike, not even without colours."""
UNKNOWN = (GREY, 1.5, None, "circle")


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
        shown = self.labelled()
        for size in self.sizes:
            x, _ = self.at(size, 10**self.low)
            yield line([(x, self.y), (x, self.y + self.height)], FAINT)
            if size in shown:
                yield text(x, self.y + self.height + 17, human(size), 12, GREY, "middle")
        for value in ticks(self.low, self.high):
            _, y = self.at(self.sizes[0], value)
            yield line([(self.x, y), (self.x + self.width, y)], FAINT)
            yield text(self.x - 7, y + 4, label(value), 12, GREY, "end")

    def labelled(self):
        """The sizes whose labels have room: the last, the first, and of the others those that touch no earlier one."""
        found = []
        for size in (self.sizes[-1], *self.sizes[:-1]):
            x, wide = self.at(size, 1)[0], LETTER * len(human(size))
            if all(abs(x - self.at(other, 1)[0]) > (wide + LETTER * len(human(other))) / 2 + 4 for other in found):
                found.append(size)
        return found

    def ends(self, named):
        """Names of curves beside their last points, with a stroke from each point to its name; `named`: [(point, colour, words)]."""
        places = spread([y for (_, y), _, _ in named], APART, self.y, self.y + self.height)
        right = self.x + self.width
        for ((x, y), colour, words), place in zip(named, places, strict=True):
            yield line([(x + 4, y), (max(x, right) + 18, place)], colour, 0.7)
            yield text(max(x, right) + 22, place + 4, words, 12, colour)


def ticks(low, high):
    """Powers of ten between two exponents, with values between them where there are fewer than three."""
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)):
        found = [step * 10**exponent for exponent in exponents for step in steps]
        found = [value for value in found if low <= math.log10(value) <= high]
        if len(found) >= 3:
            break
    return found


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
    """(name, [(size, seconds)]): limits first, ours last and so on top."""
    sizes = panel["sizes"]
    for name in dict.fromkeys(name for size in sizes for name in limits(panel, size, floor)):
        yield name, [(size, limits(panel, size, floor)[name]) for size in sizes if name in limits(panel, size, floor)]
    for program in (*peers(panel), *reversed(ours(panel))):
        yield program, measured(panel, program)


def measured(panel, program):
    """A program's times where it has any."""
    points = [(size, seconds(panel, program, size)) for size in panel["sizes"]]
    return [(size, value) for size, value in points if value is not None]


def drawn(axes, all_curves, value, label):
    """The curves on a frame, and their names; `value` turns a size and its seconds into what the axis shows, `label` into words."""
    named = []
    for name, points in all_curves:
        colour, width, dash, shape = STYLES.get(name, UNKNOWN)
        values = [value(size, each) for size, each in points]
        places = [axes.at(size, each) for (size, _), each in zip(points, values)]
        yield line(places, colour, width, dash)
        if shape:
            yield from (mark(x, y, colour, shape, 3.4 if width > 3 else 2.4) for x, y in places)
        named.append((places[-1], colour, f"{name} {label(values[-1])}"))
    yield from axes.ends(named)


def row(panel, floor, y):
    """One panel: time at the left, bandwidth at the right."""
    all_curves = [curve for curve in curves(panel, floor) if curve[1]]
    yield text(MARGIN, y - 32, title(panel), 15, weight=600)
    if not all_curves:
        yield text(MARGIN, y + 30, "no program has figures here", 13, GREY)
        return
    width = (WIDTH - 2 * MARGIN) / 2
    for left, what, value, tick, end in (
        (MARGIN, "time of one all-reduce, by the buffer's size", lambda _, each: each, time_label, duration),
        (
            MARGIN + width,
            "bandwidth: bytes of the buffer / time",
            lambda size, each: size / each,
            bandwidth_label,
            bandwidth_label,
        ),
    ):
        values = [value(size, each) for _, points in all_curves for size, each in points]
        axes = Axes(left + LEFT, y, width - LEFT - RIGHT, HEIGHT, panel["sizes"], values)
        yield text(left + LEFT, y - 9, what, 12, GREY)
        yield from axes.frame(tick)
        yield from drawn(axes, all_curves, value, end)


def bounds(panels, floor, y):
    """What the dashed lines of a section mean, in lines of text from `y` downwards."""
    names = dict.fromkeys(name for panel in panels for name, _ in curves(panel, floor) if name in BOUND_MEANINGS)
    for name in names:
        colour, width, dash, _ = STYLES[name]
        yield line([(MARGIN, y - 4), (MARGIN + 30, y - 4)], colour, width, dash)
        for words in BOUND_MEANINGS[name].splitlines():
            yield text(MARGIN + 38, y, words, 12, GREY)
            y += 17


def sections(record):
    """The panels of each rig and rate."""
    found = {}
    for panel in record["panels"]:
        found.setdefault((panel["rig"], panel["rate"]), []).append(panel)
    return found.values()


def plot(record):
    """The whole picture."""
    facts = record["machine"]
    heading = f"All-reduce beside other libraries, {record['date']}"
    about = (
        f"{facts['CPU']}, {facts['cores']} cores; commit {facts['commit']}; medians; at the right the figures of the last size"
    )
    parts, y = [text(MARGIN, 44, heading, 22, weight=700), text(MARGIN, 68, about, 13, GREY)], 104
    for panels in sections(record):
        explained = list(bounds(panels, record["floor"], y))
        parts.extend(explained)
        y += 17 * sum("<text" in part for part in explained) + 44
        for panel in panels:
            parts.extend(row(panel, record["floor"], y))
            y += HEIGHT + BELOW
    return picture(WIDTH, y - 56, heading, parts)
