"""The demo's result as one SVG picture: the time of a step compared with Gloo, the bytes on links, and the bits."""

from colorsys import hls_to_rgb

from figures import duration
from svg import BLUE, FAINT, GREY, INK, ORANGE, box, line, text
from svg import picture as svg

WIDTH, MARGIN, GAP = 1200, 40, 34
NAMES, BARS = 204, 320  # of the left half: room for names, and the longest bar
RIGHT = 838  # where the right half begins
BAR, ROW = 26, 36
CELLS = 6
"""A fingerprint shows so many bytes of a digest, one coloured cell each."""


def name_of(row, y):
    """What a bar is of; ours is bold."""
    return text(MARGIN, y + 18, row.program(), 14, weight=400 if row.is_gloo else 600)


def speed(row):
    """How it compares, behind the bar."""
    return "" if row.is_gloo else f"{row.beside_gloo()[0]:.2f} × Gloo's speed"


def steps(setting, top):
    """Bars of a setting's steps, each setting to a scale of its own."""
    rows = setting.rows()
    pixels = BARS / max(row.seconds for row in rows)
    yield text(MARGIN, top, setting.words, 17, weight=700)
    for number, row in enumerate(rows):
        y = top + 14 + number * ROW
        computing = (row.seconds - row.waited) * pixels
        yield name_of(row, y)
        x = MARGIN + NAMES
        yield box(x, y, computing, BAR, BLUE, f"computing: {duration(row.seconds - row.waited)}")
        yield box(x + computing, y, row.waited * pixels, BAR, ORANGE, f"waiting: {duration(row.waited)}")
        x += row.seconds * pixels + 10
        yield text(x, y + 18, duration(row.seconds), 14)
        yield text(x + 62, y + 18, speed(row), 14, BLUE, weight=700)


def legend(y):
    """What the colours of the bars mean."""
    x = MARGIN + NAMES
    for fill, words, width in (
        (BLUE, "computing", 100),
        (ORANGE, "waiting for sums and other workers, after the last gradient", 0),
    ):
        yield box(x, y - 11, 12, 12, fill)
        yield text(x + 18, y, words, 13, GREY)
        x += width


def carried(rows, top):
    """Bars of the bytes that a worker's link carries in a step."""
    pixels = 130 / max(row.sent() for row in rows)
    yield text(RIGHT, top, "What a worker's link carries in a step", 15, weight=700)
    for number, row in enumerate(rows):
        y = top + 14 + number * 30
        yield text(RIGHT, y + 15, row.program().replace("Herringbone, ", "with "), 13)
        yield box(RIGHT + 110, y, row.sent() * pixels, 20, GREY)
        yield text(RIGHT + 118 + row.sent() * pixels, y + 15, f"{row.sent() / 1e6:.1f} MB", 13)


def fingerprint(digest, x, y):
    """The first bytes of a digest as colours: equal bits look equal."""
    for cell in range(CELLS):
        byte = int(digest[2 * cell : 2 * cell + 2], 16)
        red, green, blue = (round(255 * part) for part in hls_to_rgb(byte / 256, 0.45 + byte % 4 * 0.08, 0.65))
        yield box(x + cell * 14, y, 12, 20, f"rgb({red},{green},{blue})")


def bits(rows, top):
    """A fingerprint of each training's parameters, or one per rank where ranks differ."""
    yield text(RIGHT, top, "The bits of all parameters in the end", 15, weight=700)
    y = top + 14
    for row in sorted(rows, key=lambda row: row.is_gloo):
        for digest in sorted(row.digests()):
            yield from fingerprint(digest, RIGHT, y)
            yield text(RIGHT + CELLS * 14 + 10, y + 15, f"{row.program()}, {row.setting.title}", 13)
            y += 28


def picture(settings, facts, left_out, machine):
    """The whole picture; `facts` are sentences below it."""
    rows = [row for setting in settings for row in setting.rows()]
    workers, parameters = len(rows[0].ranks), len(settings[0].parameters["gloo"])
    title = f"{workers} workers train {parameters / 1e6:.1f} million parameters: Herringbone compared with Gloo"
    about = f"{machine['CPU']}, {machine['cores']} cores, load before {machine['load before']}; medians of"
    about += f" {sum(map(len, rows[0].rounds()))} steps, taken in turns"
    parts = [text(MARGIN, 52, title, 24, weight=700), text(MARGIN, 78, about, 14, GREY)]
    y = 126
    for setting in settings:
        parts.extend(steps(setting, y))
        y += 14 + ROW * len(setting.trainings) + GAP
    parts.extend(legend(y - GAP + 22))
    links = [row for row in rows if row.sent() is not None]
    parts.extend(bits(rows, 126))
    beside = 126 + 14 + 28 * sum(len(row.digests()) for row in rows) + GAP
    if links:
        parts.extend(carried(links, beside))
        beside += 14 + 30 * len(links) + GAP
    y = max(y + 20, beside)
    parts.append(line([(MARGIN, y), (WIDTH - MARGIN, y)], FAINT))
    sentences = [*facts, *([left_out] if left_out else [])]
    for number, sentence in enumerate(sentences):
        parts.append(text(MARGIN, y + 30 + 22 * number, sentence, 13, INK))
    return svg(WIDTH, y + 30 + 22 * len(sentences), title, parts)
