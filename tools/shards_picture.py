"""Draws docs/pictures/shards.svg: the canonical tree over eight shards, and the workers that carry it.

tools/pictures.py calls it. A test compares `runs` with those of the library.
"""

import svg
from svg import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PINK, PURPLE, box, dot, line, picture, text

SHARDS = 8
TITLE = "One tree over 8 shards, carried by 1, 3 and 5 workers"
COLOURS = (BLUE, ORANGE, GREEN, PINK, PURPLE)
"""One for each worker."""

SHARD, LEVEL, MARGIN, TOP = 68, 52, 30, 52
PANEL, PANELS = 298, (1, 3, 5)
"""The height of each panel, and how many workers carry the tree in it."""


def split(first, last):
    """Where the second half of a node of the canonical tree begins: behind the largest power of two of its shards, but not all."""
    half = 1
    while 2 * half < last - first:
        half *= 2
    return first + half


def runs(shards, workers):
    """(first, behind the last) of the shards of each worker that has any: of the longest runs the first is split, again and again."""
    found = [(0, shards)]
    while len(found) < workers:
        at = max(range(len(found)), key=lambda at: (found[at][1] - found[at][0], -at))
        first, last = found[at]
        if last - first == 1:
            break
        middle = split(first, last)
        found[at : at + 1] = [(first, middle), (middle, last)]
    return found


def place(first, last, top):
    """Where the node of these shards is in a panel that begins at `top`."""
    height = (last - first - 1).bit_length()
    return MARGIN + SHARD * ((first + last) / 2), top + TOP + LEVEL * (3 - height) + 20


def nodes(first, last):
    """All nodes below and including that of these shards, larger ones first."""
    yield first, last
    if last - first > 1:
        middle = split(first, last)
        yield from nodes(first, middle)
        yield from nodes(middle, last)


def panel(workers, top):
    """The tree, with each worker's part of it in its colour."""
    carried = runs(SHARDS, workers)
    owner = {node: worker for worker, run in enumerate(carried) for node in nodes(*run)}
    name = (
        "1 worker adds up all of it"
        if workers == 1
        else f"{workers} workers: each adds up one node, together they add up the rest"
    )
    yield text(MARGIN, top + 30, name, 15, weight=600)
    for worker, (first, last) in enumerate(carried):
        x, y = MARGIN + SHARD * first + 5, place(first, last, top)[1] - 22
        bottom = place(0, 1, top)[1] + 22
        yield box(x, y, SHARD * (last - first) - 10, bottom - y, svg.PANEL, stroke=COLOURS[worker])
        yield text(x + SHARD * (last - first) / 2 - 5, bottom + 20, f"worker {worker}", 12, COLOURS[worker], "middle", 600)
    for node in nodes(0, SHARDS):
        if node[1] - node[0] > 1:
            middle = split(*node)
            for half in ((node[0], middle), (middle, node[1])):
                yield line(
                    [place(half[0], half[1], top), place(node[0], node[1], top)],
                    COLOURS[owner[node]] if node in owner else GREY,
                    2,
                )
    for node in nodes(0, SHARDS):
        yield from sign(node, owner.get(node), top)


def sign(node, worker, top):
    """A shard's number, or that two partial sums are added here: by one worker, or by all together."""
    x, y = place(node[0], node[1], top)
    colour = GREY if worker is None else COLOURS[worker]
    if node == (0, SHARDS):
        yield dot(x, y, colour, 13)
        yield text(x, y + 5, "Σ", 15, "#ffffff", "middle", 700)
    elif node[1] - node[0] == 1:
        yield dot(x, y, colour, 13)
        yield text(x, y + 5, str(node[0]), 13, "#ffffff", "middle", 700)
    else:
        yield dot(x, y, colour, 11)
        yield dot(x, y, svg.PANEL, 9)
        yield text(x, y + 5, "+", 15, colour, "middle", 700)


def drawing():
    """The whole picture."""
    width, height = 2 * MARGIN + SHARD * SHARDS, 64 + PANEL * len(PANELS) + 12
    parts = [text(MARGIN, 34, TITLE, 16, weight=600)]
    for number, workers in enumerate(PANELS):
        top = 44 + PANEL * number
        if number:
            parts.append(line([(MARGIN, top), (width - MARGIN, top)], FAINT, 2))
        parts += panel(workers, top)
    parts.append(text(MARGIN, height - 16, "colour: within a worker", 12, INK))
    parts.append(text(MARGIN + 170, height - 16, "grey: between workers, by one all-reduce", 12, GREY))
    return picture(width, height, TITLE, parts)
