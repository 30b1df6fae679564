"""Draws the pictures of record pages again, from their tables: the rigs' and the lab's of links. Nothing is measured.

    python bench/redraw.py record/2026-11-24-rigs.md record/lab-links.md

Each picture is written beside its page, with the name of the page. A table has three digits, and so has the picture.
"""

import pathlib
import re
import sys

from lab_record import picture_of
from newest import rows_of, seconds, sections
from plot import plot

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PROGRAM = re.compile(r"[a-z]+(-reducers|-torch)?")
"""A column that is a program's, not a ratio or a spread."""


def size_of(text):
    """Bytes of what `figures.human` says."""
    number, unit = text.split()
    return round(float(number) * UNITS[unit])


def panel_of(heading, rows):
    """A panel as `figures` describes it, with one round; `rows` are of its table of times."""
    inside = re.match(r"Inside a host, N=(\d+)", heading)
    cluster = re.match(r"Cluster, (\d+) Mbit/s links, N=(\d+)(?:, (\d+) reducers?)?", heading)
    if inside:
        panel = {"rig": "local", "n": int(inside[1]), "rate": 0, "reducers": 0}
    else:
        rate, n, reducers = (int(number or 0) for number in cluster.groups())
        panel = {"rig": "cluster", "n": n, "rate": rate, "reducers": reducers}
    programs = [name for name in next(iter(rows.values())) if PROGRAM.fullmatch(name) and name not in ("size", "spread")]
    times = {name: {size_of(size): seconds(row[name]) for size, row in rows.items()} for name in programs}
    found = {
        name: {str(size): {"seconds": [time], "ok": True} for size, time in of.items() if time} for name, of in times.items()
    }
    return panel | {"sizes": [size_of(size) for size in rows], "rounds": 1, "programs": found}


def floor_of(rows):
    """{bytes: seconds}: what a column of multiples of the floor says of it."""
    multiples = {size: row.get("herringbone / floor", "-") for size, row in rows.items()}
    return {
        str(size_of(size)): seconds(rows[size]["herringbone"]) / float(multiple)
        for size, multiple in multiples.items()
        if multiple != "-"
    }


def record_of(page):
    """What a page of the rigs says, as far as a picture shows it."""
    known = dict(re.findall(r"^\* (\w+): (.*)$", page, re.MULTILINE))
    panels = [(panel_of(heading, rows_of(text)), rows_of(text)) for heading, text in sections(page) if rows_of(text)]
    floor = {str(panel["n"]): floor_of(rows) for panel, rows in panels if panel["rig"] == "local"}
    date = re.search(r"\d{4}-\d{2}-\d{2}", page)[0]
    return {"date": date, "machine": known, "floor": floor, "panels": [panel for panel, _ in panels]}


def cells_of(page):
    """The table of the lab of links, as `lab_record.medians` gives it."""
    lines = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    names = lines[0][2:]
    return {(size_of(row[0]), int(row[1])): dict(zip(names, map(seconds, row[2:]), strict=True)) for row in lines[2:]}


def drawn(page):
    """The picture of a page's text."""
    return picture_of(cells_of(page)) if "| in a row |" in page else plot(record_of(page))


def main():
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        path.with_suffix(".svg").write_text(drawn(path.read_text()))


if __name__ == "__main__":
    main()
