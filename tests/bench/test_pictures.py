"""Rules for every picture that is kept or drawn by Python: readable on light and dark pages, labels apart, colours that differ."""

import itertools
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import figures
import lab_record
import picture_rules
import plot
import redraw
import rigs
import svg

FOLDERS = [ROOT / "record", ROOT / "docs" / "pictures", ROOT / "docs" / "figures"]
KEPT = sorted(path for folder in FOLDERS for path in folder.glob("*.svg"))
REDRAWN = [path for path in KEPT if re.search("rigs|autogroup|lab-links", path.name)]
PAPERS = ("#ffffff", "#0d1117")
"""White, and GitHub's dark page."""
NAMES = ("BLUE", "ORANGE", "GREEN", "RED", "PURPLE", "OLIVE", "PINK", "CYAN")


def sample():
    """The picture of a small record."""
    return plot.plot(json.loads((ROOT / "testdata" / "rigs" / "record.json").read_text()))


def kept(path):
    return path.name, path.read_text()


PICTURES = dict([("sample", sample()), *map(kept, KEPT)])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_keeps_the_rules(name):
    picture_rules.check(PICTURES[name])


BROKEN = {
    "a rectangle behind everything": svg.box(0, 0, 100, 50, svg.FAINT),
    "#ffffff": svg.box(10, 10, 20, 20, "#ffffff"),
    "leaves the picture": svg.text(70, 20, "much too long"),
    "covers": svg.text(5, 20, "one") + svg.text(10, 22, "two"),
    "has many digits": svg.text(5, 20, "14.8049 ms", 8),
}


@pytest.mark.parametrize("said", BROKEN)
def test_the_rules_find_what_breaks_them(said):
    with pytest.raises(AssertionError, match=said):
        picture_rules.check(svg.picture(100, 50, "a title", [BROKEN[said]]))
    with pytest.raises(AssertionError, match="dark pages"):
        picture_rules.check(svg.picture(100, 50, "a title", []).replace("prefers-color-scheme", "other"))


@pytest.mark.parametrize("path", REDRAWN, ids=lambda path: path.name)
def test_a_kept_picture_shows_its_pages_table(path):
    drawn = redraw.drawn(path.with_suffix(".md").read_text())
    assert drawn == path.read_text(), f"python bench/redraw.py record/{path.stem}.md draws it again"


def test_a_page_gives_back_the_record_that_it_was_made_of():
    page = (ROOT / "record" / "2026-11-24-rigs.md").read_text()
    record = redraw.record_of(page)
    inside, cluster = record["panels"][0], record["panels"][-1]
    assert (inside["rig"], inside["n"], inside["sizes"][2]) == ("local", 2, 65536)
    assert inside["programs"]["openmpi"]["4"]["seconds"] == [pytest.approx(0.35e-6)]
    assert (cluster["rig"], cluster["n"], cluster["rate"], cluster["reducers"]) == ("cluster", 8, 500, 8)
    assert set(cluster["programs"]) == {"gloo", "herringbone", "herringbone-reducers", "herringbone-torch"}
    assert record["floor"]["2"]["65536"] == pytest.approx(7.21e-6 / 6.86)


def light(colour):
    """Red, green and blue, linear, from 0 to 1."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one, other):
    """As WCAG 2 defines it, from 1 to 21."""
    shades = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in map(light, (one, other)))
    return (shades[1] + 0.05) / (shades[0] + 0.05)


def test_colours_are_seen_on_white_and_on_dark_pages():
    for name, paper in itertools.product(NAMES, PAPERS):
        assert contrast(getattr(svg, name), paper) >= 3, (name, paper)
    for shade in (svg.INK, svg.GREY):
        assert contrast(shade, PAPERS[0]) >= 4.5 and contrast(svg.DARK[shade], PAPERS[1]) >= 4.5


def test_no_two_curves_look_alike_without_colours():
    """A reader who tells no colours apart has marks, dashes and widths."""
    styles = [style[1:] for name, style in plot.STYLES.items() if name != "floor"]
    assert len(set(styles)) == len(styles), "a floor and a ring bound are never in one panel"
    assert {*rigs.PEERS, *figures.OURS} <= set(plot.STYLES)
    looks = [(name in lab_record.BLIND, shape) for name, (_, shape) in lab_record.LOOKS.items()]
    assert len(set(looks)) == len(looks)
