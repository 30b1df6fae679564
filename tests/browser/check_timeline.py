"""A real job's timeline: speedscope opens the merged file, and the report can be read, in light and dark and on a phone."""

import contextlib
import os
import pathlib
import subprocess

import pytest
import rig

WORKER = rig.ROOT / "python" / "tests" / "workers" / "timeline.py"
SPEEDSCOPE = rig.PACKAGES / "speedscope" / "dist" / "release" / "index.html"
AXE = rig.PACKAGES / "axe-core" / "axe.min.js"
WINDOWS = {"light": {}, "dark": {"dark": True}, "phone": {"width": 360, "height": 740, "dark": True}}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder with the merged file and the report of four ranks, of which rank 2 is slow."""
    folder = tmp_path_factory.mktemp("timeline")
    python = [os.environ["JOB_PYTHON"], "-m", "herringbone"]
    environment = os.environ | {"HERRINGBONE_TIMELINE": str(folder / "files")}
    launch = [*python, "launch", "-n", "4", "--", os.environ["JOB_PYTHON"], str(WORKER), "12", "2", "0.02", "100000"]
    subprocess.run(launch, env=environment, check=True, timeout=60)
    merged = str(folder / "job.json")
    subprocess.run([*python, "trace", "merge", str(folder / "files"), "-o", merged], env=environment, check=True, timeout=60)
    report = [*python, "trace", "report", merged, "-o", str(folder / "report.html")]
    subprocess.run(report, env=environment, check=True, timeout=60)
    return folder


@contextlib.contextmanager
def sheet_of(browser, **window):
    """A page of which Chromium may complain of nothing."""
    sheet = rig.Sheet(browser, **window)
    yield sheet
    assert sheet.close() == []


@pytest.mark.parametrize("name", WINDOWS)
def test_the_report_names_the_slow_rank_and_fits_its_window(browser, job, name):
    with sheet_of(browser, **WINDOWS[name]) as sheet:
        sheet.page.goto((job / "report.html").as_uri())
        sheet.picture(f"report-{name}")
        assert "for rank 2" in sheet.text(".finding")
        assert sheet.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert sheet.page.evaluate("document.querySelectorAll('.strip svg rect').length") > 30
        # A click sorts by a column.
        sheet.page.click("table >> nth=0 >> th >> nth=0")
        first = sheet.page.inner_text("table >> nth=0 >> tbody tr >> nth=0 >> td >> nth=0")
        sheet.page.click("table >> nth=0 >> th >> nth=0")
        assert first >= sheet.page.inner_text("table >> nth=0 >> tbody tr >> nth=0 >> td >> nth=0")
        if AXE.exists():
            sheet.page.evaluate(AXE.read_text())
            found = sheet.page.evaluate("axe.run().then(found => found.violations)")
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []


@pytest.mark.skipif(not SPEEDSCOPE.exists(), reason="speedscope is missing: `make browser-setup` installs it")
def test_speedscope_opens_a_merged_timeline(browser, job):
    sheet = rig.Sheet(browser)
    sheet.page.goto(pathlib.Path(SPEEDSCOPE).as_uri())
    sheet.page.set_input_files("input[type=file]", str(job / "job.json"))
    sheet.page.wait_for_selector("canvas", timeout=20_000)
    sheet.page.wait_for_timeout(500)
    sheet.picture("speedscope")
    # It shows one row at a time, by its name, and complains of events that overlap or do not end.
    assert "operations 1" in sheet.page.inner_text("body") or "rank" in sheet.page.inner_text("body")
    strange = ("net::ERR", "CORS", "GL Driver Message")
    assert {text for text in sheet.close() if not any(word in text for word in strange)} == set()
