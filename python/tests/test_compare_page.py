"""What the figures of a comparison come to: rows, tables and the page."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from herringbone.compare.architectures import ARCHITECTURES
from herringbone.compare.options import parsed
from herringbone.compare.page import page
from herringbone.compare.pictures import DARK, DASHES, LIGHT, Theme, panels, picture, spread
from herringbone.compare.report import as_csv, as_json, duration, size, table
from herringbone.compare.results import AXES, Curve, Row, Staleness, budgets_of, failed, missing, row_of, staleness_of

ROOT = Path(__file__).resolve().parents[2]


def figures_of(steps: int, *, step_seconds: float, loss: float, spans: bool = False) -> dict[str, Any]:
    """What two workers tell: the second one is half as fast."""

    def worker(times: float) -> dict[str, Any]:
        ended = [step_seconds * times * (step + 1) for step in range(steps)]
        return {
            "seconds": ended,
            "losses": [loss / (step + 1) for step in range(steps)],
            "sent": [1000 * (step + 1) for step in range(steps)],
            "received": [500 * (step + 1) for step in range(steps)],
            "slept": [0.0] * steps,
            "computing": step_seconds / 4,
            "cpu": 1.0,
            "accuracy": 0.5,
            "spans": [[end - step_seconds, end] for end in ended] if spans else [],
            "about": "a network",
        }

    return {"workers": [worker(1), worker(2)], "servers_cpu": 0.25}


def rows() -> list[Row]:
    return [
        row_of("all-reduce", figures_of(40, step_seconds=0.01, loss=2.0), 0.002, in_step=True),
        row_of("async <1>", figures_of(60, step_seconds=0.005, loss=3.0, spans=True), None, in_step=False),
        failed("shards", 'worker 1 was killed by SIGKILL & "more"'),
    ]


def test_rows_have_what_the_workers_tell() -> None:
    row, stale, _ = rows()
    figures = row.figures
    assert figures["step_s"] == pytest.approx(0.015)
    assert figures["rest_s"] == pytest.approx(0.0125)
    assert (figures["cpu_s"], figures["sent_per_step"], figures["predicted_s"]) == (2.25, 1000, 0.002)
    assert (figures["accuracy"], figures["staleness"]) == (0.5, None)
    # Each push of the slow worker sees two of the fast one while that runs, and none in its second half.
    assert stale.figures["staleness"] == pytest.approx(0.5, abs=0.2)
    budgets = budgets_of(rows())
    assert budgets is not None
    assert (budgets.steps, budgets.seconds, budgets.sent) == (40, pytest.approx(0.6), 40_000)
    # The last twentieth of 40 steps is two of them.
    assert row.curve.at("steps", 40) == pytest.approx((2 / 39 + 2 / 40) / 2)
    assert row.curve.at("steps", 0.5) is None


def test_workers_in_step_wait_for_the_one_that_sleeps() -> None:
    measured = figures_of(4, step_seconds=1.0, loss=1.0)
    measured["workers"][0]["slept"] = [0.5, 0.0, 0.5, 0.0]
    measured["workers"][1]["slept"] = [0.0, 0.5, 0.0, 0.5]
    in_step, apart = (row_of("x", measured, None, in_step=each).figures for each in (True, False))
    assert (in_step["slept_s"], apart["slept_s"]) == (0.5, 0.25)
    assert (in_step["rest_s"], apart["rest_s"]) == (1.5 - 0.25 - 0.5, 1.5 - 0.25 - 0.25)


def test_workers_apart_are_compared_at_moments() -> None:
    """After 0.3 s one has made its 60 steps, and the other one 30."""
    curve = rows()[1].curve
    assert (len(curve.losses), curve.seconds[-1], curve.steps[-1], curve.sent[-1]) == (60, pytest.approx(0.6), 60, 60_000)
    place = next(place for place, moment in enumerate(curve.seconds) if moment >= 0.3)
    assert curve.steps[place] == pytest.approx(45, abs=1)
    slow, fast = 3 * (1 / 29 + 1 / 30 + 1 / 31) / 3, 3 * (1 / 58 + 1 / 59 + 1 / 60) / 3
    assert curve.losses[place] == pytest.approx((slow + fast) / 2, rel=0.03)


def test_staleness_counts_the_pushes_of_others_between_a_pull_and_its_push() -> None:
    assert staleness_of([[(0, 10)], [(0, 1), (1, 2), (2, 11)]]) == Staleness((2 + 0 + 0 + 1) / 4, 2)
    assert staleness_of([[(0, 1)], []]) == Staleness(0, 0)
    assert staleness_of([[], []]) is None


def test_the_table_is_aligned_and_errors_follow() -> None:
    lines = table(rows()).splitlines()
    assert lines[0].startswith("architecture") and lines[0].endswith("accuracy")
    assert {len(line) for line in lines[:4]} == {len(lines[0])}
    assert lines[4] == 'shards failed: worker 1 was killed by SIGKILL & "more"'
    narrow = table(rows(), width=100).splitlines()
    assert max(map(len, narrow)) <= 100
    assert [line.split()[0] for line in narrow if line.startswith(("arch", "all"))] == ["architecture", "all-reduce"] * 2
    assert table(rows(), width=len(lines[0])) == table(rows())
    assert table([failed("shards", "no")]) == "shards failed: no"
    assert [duration(value) for value in (2e-7, 0.0123, 0.9999, 123.4)] == ["0.20 us", "12.3 ms", "1.00 s", "123 s"]
    assert [duration(value) for value in (0.0, -0.0123)] == ["0.00 us", "-12.3 ms"]
    assert [size(value) for value in (12, 999_600, 1.5e9)] == ["12 B", "1.00 MB", "1.50 GB"]


def test_what_is_missing_has_one_line_and_rows_of_its_own() -> None:
    left_out = [missing(label, "SIGTERM ended the comparison") for label in ("async", "diloco:8")]
    assert table([*rows(), *left_out]).splitlines()[5:] == ["missing: async, diloco:8 (SIGTERM ended the comparison)"]
    assert ">missing: SIGTERM ended the comparison</td>" in page(parsed([]), [*rows(), *left_out], "")


def test_a_figure_that_nothing_has_is_no_column() -> None:
    """The prediction where links are not limited, and staleness of architectures in step."""
    [alone] = [row_of("all-reduce", figures_of(40, step_seconds=0.01, loss=2.0), None, in_step=True)]
    assert {"predicted", "stale", "most"}.isdisjoint(table([alone]).splitlines()[0].split())
    assert "simulator" not in page(parsed([]), [alone], "here") and "updates of others" not in page(parsed([]), [alone], "here")
    assert {"predicted", "stale", "most"} <= set(table(rows()).splitlines()[0].split())
    assert "simulator" in page(parsed([]), rows(), "here") and "updates of others" in page(parsed([]), rows(), "here")
    assert "predicted_s" in as_csv([alone]).splitlines()[0]


def test_computing_that_takes_less_in_the_training_leaves_a_negative_rest() -> None:
    measured = figures_of(4, step_seconds=1.0, loss=1.0)
    for worker in measured["workers"]:
        worker["computing"] = 1.75
    row = row_of("async", measured, None, in_step=False)
    assert row.figures["rest_s"] == pytest.approx(-0.25) and "-250 ms" in table([row])


def test_csv_and_json_have_every_figure() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv(rows()))))
    assert [row["architecture"] for row in read] == ["all-reduce", "async <1>", "shards"]
    assert (read[0]["sent_per_step"], read[0]["staleness"], read[2]["step_s"]) == ("1000", "", "")
    assert read[2]["error"].startswith("worker 1")
    found = json.loads(as_json(parsed([]), rows(), "here"))
    assert [len(each["curve"]["losses"]) for each in found["architectures"]] == [40, 60, 0]
    # All figures are there whether they apply or not, and the same in both.
    figures = list(read[0])[1:-1]
    for line, each in zip(read, found["architectures"]):
        assert list(each) == ["architecture", "error", *figures, "curve"]
        assert [line[name] for name in figures] == ["" if each[name] is None else f"{each[name]:.6g}" for name in figures]
    assert (read[0]["at_steps"], read[0]["at_seconds"], read[0]["at_sent"]) == ("40", "0.6", "40000")


def test_the_page_of_the_documentation_has_every_column_and_key() -> None:
    columns = as_csv(rows()).splitlines()[0].split(",")
    keys = [*json.loads(as_json(parsed([]), rows(), "here")), *AXES, "losses", "curve"]
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "compare.md").read_text()))
    assert set(columns) | set(keys) <= documented, set(columns + keys) - documented


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not the last open one."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attributes if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_network() -> None:
    options = parsed(["--slow-worker", "random:3x", "--architecture", "all-reduce,async,shards"])
    text = page(options, rows(), "each on <its> own")
    read = Balanced()
    read.feed(text)
    assert (read.open, read.links) == ([], [])
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|<script", text)
    assert "async &lt;1&gt;" in text and "async <1>" not in text and "each on &lt;its&gt; own" in text
    assert "killed by SIGKILL &amp; &quot;more&quot;" in text
    assert text.count("prefers-color-scheme: dark") == 2


SVG = "{http://www.w3.org/2000/svg}"


def test_each_line_is_drawn_and_has_its_label() -> None:
    drawn = [*panels(rows()), picture(parsed([]), rows(), "here")]
    for text, count in zip(drawn, (1, 1, 1, 3)):
        found = xml.etree.ElementTree.fromstring(text)
        curves = [line for line in found.iter(f"{SVG}polyline") if line.find(f"{SVG}title") is not None]
        assert len(curves) == 2 * count
        width, height = map(float, found.attrib["viewBox"].split()[2:])
        for line in curves:
            for x, y in (point.split(",") for point in line.attrib["points"].split()):
                assert 0 <= float(x) <= width and 0 <= float(y) <= height
        labels = [each for each in found.iter(f"{SVG}text") if each.text in ("all-reduce", "async <1>")]
        assert len(labels) == 2 * count
        titles = [each for each in found.iter(f"{SVG}text") if str(each.text).startswith("loss against")]
        panel = width / count
        for each, letter in [*((label, 7) for label in labels), *((title, 8) for title in titles)]:
            assert float(each.attrib["x"]) + letter * len(str(each.text)) < panel, each.text
    assert "no architecture has a curve" in panels([failed("shards", "no")])[0]


def test_bytes_have_a_logarithmic_axis_without_zero() -> None:
    """One worker alone sends nothing, and local-sgd nothing before its first average."""
    silent = Curve([1, 2], [0.1, 0.2], [0, 0], [2.0, 1.0])
    assert ["no architecture has a curve" in panel for panel in panels([Row("all-reduce", silent)])] == [False, False, True]
    seldom = Curve([1, 2, 3], [0.1, 0.2, 0.3], [0, 5e3, 5e6], [2.0, 1.0, 0.5])
    last = panels([Row("local-sgd:2", seldom)])[2]
    assert ">10 kB<" in last and ">1 MB<" in last
    [line] = re.findall("points='([^']*)' class='s0' stroke-width='2.0'", last)
    assert len(line.split()) == 2


def test_labels_keep_apart_and_within() -> None:
    places = spread([50, 50, 51, 10, 99, 100], 10, 0, 100)
    ordered = sorted(places)
    assert all(after - before >= 10 - 1e-9 for before, after in zip(ordered, ordered[1:]))
    assert min(places) >= 0 and max(places) <= 100
    assert sorted(range(6), key=lambda number: places[number]) == [3, 0, 1, 2, 4, 5]
    assert spread([20, 80], 10, 0, 100) == [20, 80]


VISION = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Machado et al., "A Physiologically-based Model for Simulation of Color Vision Deficiency" (2009): of linear RGB, severity 1."""
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
"""Ottosson, "A perceptual color space for image processing" (2020): Oklab."""


def linear(colour: str) -> Any:
    """The light of ``#rrggbb``."""
    part = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_can_be_told_apart_by_everybody(theme: Theme) -> None:
    for name, vision in VISION.items():
        seen = [np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ np.clip(vision @ linear(each), 0, 1)) for each in theme.series]
        for one, other in itertools.combinations(range(len(seen)), 2):
            # Two grey tones whose Oklab lightness differs by a tenth are easily told apart.
            assert np.linalg.norm(seen[one] - seen[other]) > 0.1, f"{name}: {theme.series[one]} and {theme.series[other]}"
    paper = luminance(theme.paper)
    for colours, least in ((theme.series, 3), ((theme.ink, theme.grey), 4.5)):  # WCAG 2.1, 1.4.11 and 1.4.3
        for each in colours:
            dark, bright = sorted((paper, luminance(each)))
            assert (bright + 0.05) / (dark + 0.05) >= least, each


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def test_all_architectures_at_once_have_looks_of_their_own() -> None:
    looks = {(place % len(LIGHT.series), DASHES[place // len(LIGHT.series)]) for place in range(len(ARCHITECTURES))}
    assert len(looks) == len(ARCHITECTURES) and len(LIGHT.series) == len(DARK.series)
