"""The demo's result as one SVG picture: who moved how many bytes, how accuracy rose, where the time went."""

from html import escape

INK, GREY, FAINT, PAPER = "#1f2933", "#697586", "#e4e7ec", "#ffffff"
UP, DOWN = "#2f6fde", "#e08a1e"
SANS = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
UNITS = "KB", "MB", "GB", "TB"
SIZE = 1200, 760
TOP, HEIGHT = 178, 440  # of the flow of bytes


def human(count):
    """A number of bytes with three significant digits: 7.52 GB."""
    if count < 1000:
        return f"{count:.0f} B"
    unit = 0
    while count >= 999.5 and unit < len(UNITS):
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {UNITS[unit - 1]}"


def text(x, y, content, size=14, fill=INK, anchor="start", weight=400):
    """One line of text; (x, y) is its baseline."""
    style = f"font-size='{size}' fill='{fill}' text-anchor='{anchor}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(content)}</text>"


def box(x, y, width, height, fill, radius=0, stroke="none"):
    """A rectangle."""
    shape = f"x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='{radius}'"
    return f"<rect {shape} fill='{fill}' stroke='{stroke}'/>"


def dot(x, y):
    """Our run at one epoch."""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{UP}'/>"


def ring(x, y):
    """Gloo's run at one epoch."""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='8' fill='none' stroke='{GREY}' stroke-width='1.5'/>"


def ribbon(left, top_left, right, top_right, thickness, fill):
    """A band from (left, top_left) to (right, top_right), level at both ends."""
    middle = (left + right) / 2
    low_left, low_right = top_left + thickness, top_right + thickness
    edge = f"M{left},{top_left:.1f} C{middle},{top_left:.1f} {middle},{top_right:.1f} {right},{top_right:.1f}"
    back = f"L{right},{low_right:.1f} C{middle},{low_right:.1f} {middle},{low_left:.1f} {left},{low_left:.1f}"
    return f"<path d='{edge} {back} Z' fill='{fill}' fill-opacity='0.5'/>"


class Column:
    """Boxes of one role, one above the other, each as tall as the bytes that pass its edge."""

    def __init__(self, x, names, sent, received, bytes_per_pixel):
        self.x, self.names, self.sent, self.received = x, names, sent, received
        self.heights = [(s + r) / bytes_per_pixel for s, r in zip(sent, received)]
        gap = (HEIGHT - sum(self.heights)) / max(1, len(names) - 1) if len(names) > 1 else 0
        self.tops, y = [], TOP if len(names) > 1 else TOP + (HEIGHT - self.heights[0]) / 2
        for height in self.heights:
            self.tops.append(y)
            y += height + gap
        self.next = list(self.tops)

    def take(self, index, thickness):
        """The next free stretch of a box's edge."""
        self.next[index] += thickness
        return self.next[index] - thickness

    def draw(self, width):
        for name, sent, received, top, height in zip(
            self.names, self.sent, self.received, self.tops, self.heights
        ):
            middle, x = top + height / 2, self.x + width / 2
            yield box(self.x, top, width, height, PAPER, 8, GREY)
            yield text(x, middle - 10, name, 15, anchor="middle", weight=600)
            yield text(x, middle + 10, f"sent {human(sent)}", 12.5, GREY, "middle")
            yield text(x, middle + 27, f"received {human(received)}", 12.5, GREY, "middle")


def flow(run):
    """Workers on the left, reducers on the right, a ribbon for each direction of each pair."""
    workers, reducers = len(run["to_reducers"]), run["reducers"]
    up, down = sum(run["to_reducers"]), sum(run["from_reducers"])
    scale = (up + down) / (HEIGHT * 0.84) or 1
    left = Column(
        40, [f"worker {i}" for i in range(workers)], run["to_reducers"], run["from_reducers"], scale
    )
    names = [f"reducer {i}" for i in range(reducers)]
    right = Column(470, names, run["reducers_sent"], run["reducers_received"], scale)
    for counted, fill in ((run["to_reducers"], UP), (run["from_reducers"], DOWN)):
        for worker, count in enumerate(counted):
            for reducer in range(reducers):
                thick = count / reducers / scale
                ends = left.take(worker, thick), right.take(reducer, thick)
                yield ribbon(190, ends[0], 470, ends[1], thick, fill)
    yield from left.draw(150)
    yield from right.draw(150)
    for y, fill, what in (
        (TOP - 34, UP, f"gradients, workers to reducers: {human(up)}"),
        (TOP - 14, DOWN, f"sums, reducers to workers: {human(down)}"),
    ):
        yield box(40, y - 10, 12, 12, fill, 2)
        yield text(60, y, what, 13.5)


def curve(run, gloo):
    """Accuracy after each epoch: our run as a line, Gloo's as rings around the same points."""
    x0, y0, width, height = 740, 166, 400, 210
    lowest = min(run["accuracy"] + gloo["accuracy"])
    floor = max(0.0, int((lowest - 0.01) * 20) / 20)

    def at(epoch, value):
        return (
            x0 + width * (epoch + 0.5) / len(run["accuracy"]),
            y0 + height * (1 - (value - floor) / (1 - floor)),
        )

    yield text(x0 - 40, 140, "Accuracy on unseen digits, after each epoch", 15, weight=600)
    for part in range(5):
        value = floor + (1 - floor) * part / 4
        _, y = at(0, value)
        yield f"<line x1='{x0}' y1='{y:.1f}' x2='{x0 + width}' y2='{y:.1f}' stroke='{FAINT}'/>"
        yield text(x0 - 8, y + 4, f"{100 * value:g}%", 12, GREY, "end")
    points = [at(epoch, value) for epoch, value in enumerate(run["accuracy"])]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f"<polyline points='{line}' fill='none' stroke='{UP}' stroke-width='2.5' stroke-linejoin='round'/>"
    for epoch, (x, y) in enumerate(points):
        yield dot(x, y)
        yield ring(*at(epoch, gloo["accuracy"][epoch]))
        yield text(x, y0 + height + 20, str(epoch + 1), 12, GREY, "middle")
    x, y = points[-1]
    yield text(x, y + 28, f"{run['accuracy'][-1]:.1%}", 14, UP, "middle", 600)
    legend = y0 + height + 40
    yield dot(x0 + 6, legend)
    yield text(x0 + 18, legend + 5, "Herringbone", 12.5)
    yield ring(x0 + 122, legend)
    yield text(x0 + 136, legend + 5, "Gloo, the same training", 12.5)


def times(run, gloo):
    """Seconds per step: how long a worker computed, and how long it waited after its last gradient."""
    x0, width = 700, 400
    pixels = width / max(run["step_seconds"], gloo["step_seconds"])
    yield text(x0, 482, "Where a step's time went, mean over the workers", 15, weight=600)
    for y, name, one in ((510, "Herringbone, with reducers", run), (568, "Gloo, without", gloo)):
        computing = one["step_seconds"] - one["wait_seconds"]
        yield text(x0, y, name, 12.5)
        yield box(x0, y + 8, computing * pixels, 26, UP)
        yield box(x0 + computing * pixels, y + 8, one["wait_seconds"] * pixels, 26, DOWN)
        yield text(x0 + 8, y + 26, f"{computing:.2f} s", 12.5, PAPER)
        yield text(x0 + one["step_seconds"] * pixels + 8, y + 26, f"{one['step_seconds']:.2f} s", 13)
    yield box(x0, 617, 12, 12, UP, 2)
    yield text(x0 + 18, 627, "computing", 12.5)
    yield box(x0 + 110, 617, 12, 12, DOWN, 2)
    yield text(x0 + 128, 627, "waiting for sums", 12.5)


def picture(run, gloo):
    """The whole picture; see `report` in run.py for the fields of the two runs."""
    width, height = SIZE
    workers = len(run["to_reducers"])
    millions = f"{run['parameters'] / 1e6:.1f} million parameters"
    title = f"{workers} workers and {run['reducers']} reducers train {millions}"
    facts = f"handwritten digits, {run['steps']} steps, {run['all_reduces']} all-reduces per worker, "
    facts += f"algorithm {run['algorithm']}"
    parts = [
        box(0, 0, width, height, PAPER),
        text(40, 56, title, 26, weight=700),
        text(40, 84, facts, 15, GREY),
    ]
    for panel in (flow(run), curve(run, gloo), times(run, gloo)):
        parts.extend(panel)
    parts.append(f"<line x1='40' y1='672' x2='{width - 40}' y2='672' stroke='{FAINT}'/>")
    parts.extend(text(40, 700 + 24 * line, fact, 14) for line, fact in enumerate(run["facts"]))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' {SANS} role='img'>"
    return "\n".join([head, f"<title>{escape(title)}</title>", *parts, "</svg>\n"])
