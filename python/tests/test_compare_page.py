"""What the figures of a comparison come to: rows, tables and the page."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from herringbone.compare.options import parsed
from herringbone.compare.page import page
from herringbone.compare.pictures import curves
from herringbone.compare.report import as_csv, as_json, duration, size, table
from herringbone.compare.results import Row, Staleness, budgets_of, failed, missing, row_of, staleness_of


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
    picture = xml.etree.ElementTree.fromstring(curves(rows()))
    lines = [line for line in picture.iter("{http://www.w3.org/2000/svg}polyline") if line.get("class", "").startswith("s")]
    assert len(lines) == 2 * (3 + 1), "each of two curves is in three panels and the legend"
    for line in lines:
        for point in str(line.get("points")).split():
            assert all(0 <= float(number) <= 1200 for number in point.split(","))
    xml.etree.ElementTree.fromstring(curves([failed("shards", "no")]))
