"""Tables, plot and progress of the rigs, on a small recorded sample; no program is timed here."""

import copy
import json
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "testdata" / "rigs" / "record.json"
MEBIBYTE = 2**20
sys.path.insert(0, str(ROOT / "bench"))

import figures
import newest
import plot
import progress
import report
import rigs


@pytest.fixture
def record():
    return json.loads(SAMPLE.read_text())


@pytest.fixture
def local(record):
    return record["panels"][0]


@pytest.fixture
def cluster(record):
    return record["panels"][1]


def rows(text):
    """The cells of every Markdown row whose first cell is a size."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    return {each[0]: each[1:] for each in cells if each[0].endswith("B")}


def test_figures_of_bench_py_become_rounds():
    raw = [
        {"peer": "gloo", "bytes": 4, "mean": 2.0, "cpu": 1.0, "ok": True},
        {"peer": "gloo", "bytes": 4, "mean": 1.0, "cpu": 3.0, "ok": False},
    ]
    assert figures.gathered(raw, ["gloo", "mpich"]) == {
        "gloo": {"4": {"seconds": [2.0, 1.0], "cpu": [1.0, 3.0], "ok": False}},
        "mpich": {},
    }


def test_the_best_peer_is_right_in_every_round(local):
    assert figures.best_peer(local, 1024) == ("impi", 2e-6), "mpich lost a round"
    assert figures.best_peer(local, 65536) == ("impi", 1e-5), "mpich was wrong"
    local["programs"] = {"herringbone": local["programs"]["herringbone"]}
    assert figures.best_peer(local, 1024) == (None, None)


def test_limits_are_the_floor_and_the_bounds_of_links(record, local, cluster):
    assert figures.limits(local, 65536, record["floor"]) == {"floor": 1.4e-6}
    assert figures.limits(local, 1024, record["floor"]) == {}
    link = 25 * MEBIBYTE / 62.5e6
    bounds = figures.limits(cluster, 25 * MEBIBYTE, {})
    assert bounds == pytest.approx({"ring bound": 1.5 * link, "server bound": 2 * link}), "two reducers for four"
    cluster["reducers"] = 4
    assert figures.limits(cluster, 25 * MEBIBYTE, {})["server bound"] == pytest.approx(link)
    cluster["reducers"] = 0
    assert list(figures.limits(cluster, 25 * MEBIBYTE, {})) == ["ring bound"]


def test_what_went_wrong_is_said(record):
    assert figures.complaints(record) == [
        "mpich, inside a host, N=2, 1 KiB: failed in 1 of 3 rounds",
        "mpich, inside a host, N=2, 64 KiB: WRONG RESULT",
        "mpich, inside a host, N=2, 25 MiB: failed in every round",
    ]
    assert not figures.ours_failed(record)
    record["panels"][1]["programs"]["herringbone-reducers"][str(MEBIBYTE)]["ok"] = False
    assert figures.ours_failed(record)


def test_the_tables_hold_medians_and_multiples(record, local, cluster):
    found = rows(report.times(local, record["floor"]))
    assert found["1 KiB"] == [
        "900 us",
        "1.00 us (2/3 rounds)",
        "2.00 us",
        "3.00 us",
        "9.00 us",
        "2.00 us..4.00 us",
        "1.50 (impi)",
        "-",
        "6.00 us",
    ]
    assert found["64 KiB"][1] == "2.00 us WRONG"
    assert found["25 MiB"][1] == "failed"
    assert found["25 MiB"][-3:] == ["0.36 (impi)", "2.25", "200 us"]
    assert rows(report.times(cluster, {}))["25 MiB"][-5:] == ["0.98 (gloo)", "1.00", "1.31 (gloo)", "1.00", "-"]


def test_the_record_says_how_it_was_made(record):
    text = report.markdown(record, "plot.svg")
    for part in ("a processor, AVX2", "0123456789ab", "torch 2.15.0", "](plot.svg)", *record["notes"]):
        assert part in text
    assert "WRONG RESULT" in text
    assert "$RIGS is the folder that" in text
    assert "$RIGS/bench.py cluster --n 4 --rate 500 --extra 2" in text
    assert " \\\n    --add 'herringbone: env HERRINGBONE_TOKEN=rig" in text


def test_limits_are_explained_where_they_are_compared_with(record, local, cluster):
    def explained(panels, floor):
        text = report.markdown(record | {"panels": panels, "floor": floor}, "plot.svg")
        return [name for name in ("floor", "ring bound", "server bound") if f'"{name}" is ' in text]

    assert explained([local, cluster], record["floor"]) == ["floor", "ring bound", "server bound"]
    assert explained([local], record["floor"]) == ["floor"]
    assert explained([local], {}) == []
    assert explained([cluster | {"reducers": 0}], {}) == ["ring bound"]


@pytest.mark.parametrize(
    "value, text",
    [(4e-7, "0.40 us"), (9.996e-6, "10.0 us"), (9.996e-4, "1.00 ms"), (0.6375, "638 ms"), (2.5, "2.50 s")],
)
def test_durations_have_three_digits(value, text):
    assert figures.duration(value) == text


def test_a_page_shows_the_newest_record(tmp_path):
    for name in ("2026-11-21-rigs.md", "2027-01-02-rigs.md", "2027-02-01-ddp.md", "2027-03-01-rigs.svg"):
        (tmp_path / name).touch()
    assert newest.newest(tmp_path) == "2027-01-02-rigs"
    page = f"before\n{newest.BEGIN}\nold\n{newest.END}\nafter\n"
    shown = newest.with_plot(page, "2027-01-02-rigs", "../record")
    assert shown.startswith("before\n") and shown.endswith("\nafter\n") and "old" not in shown
    assert "](../record/2027-01-02-rigs.svg)" in shown and "](../record/2027-01-02-rigs.md)" in shown
    assert newest.with_plot(shown, "2027-01-02-rigs", "../record") == shown


def test_ratios_are_those_of_the_records_times(record):
    table = [row for row in newest.ratios(report.markdown(record, "plot.svg")).splitlines() if row[:1] == "|"]
    inside, link = (next(row for row in table if where in row) for where in ("one host", "hosts,"))
    at = record["panels"][0]["sizes"][0]
    own, gloo = (figures.seconds(record["panels"][0], name, at) for name in ("herringbone-torch", "gloo"))
    assert inside.endswith(f"| {own / gloo:.2f} | 1.50 |") and "2 reducers 1.35" in link, table


def test_a_time_that_cannot_be_compared_has_no_ratio():
    row = {"gloo": "2.00 ms", "openmpi": "failed", "impi": "4.00 us WRONG", "herringbone": "1.00 ms"}
    assert newest.ratio(row, "herringbone", ["gloo"]) == "0.50"
    assert newest.ratio(row, "herringbone", newest.MPIS) == newest.ratio(row, "ours", ["gloo"]) == "-"


def test_the_pages_are_up_to_date():
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "benchmarks.md").read_text()
    for text in (readme, page):
        assert text.count(newest.BEGIN) == text.count(newest.END) == 1
    name = newest.newest(ROOT / "record")
    if name is not None:
        record = (ROOT / "record" / f"{name}.md").read_text()
        assert newest.with_ratios(readme, name, record) == readme
        assert newest.with_plot(page, name, "../record") == page


def test_an_older_record_of_the_same_machine_is_outdated(tmp_path):
    def page(name, processor, text=""):
        (tmp_path / name).write_text(f"# The rigs\n\n* CPU: {processor}\n* cores: 2 of 2\n* load before: 1\n{text}")

    page("2027-01-01-rigs.md", "one")
    page("2027-01-02-rigs-first.md", "one")
    page("2027-01-02-rigs.md", "one")
    page("2027-01-01-rigs-other.md", "another")
    page("README.md", "none", "[all](2027-01-01-rigs.md)")
    assert report.outdated(tmp_path) == ["2027-01-01-rigs.md", "2027-01-02-rigs-first.md"]
    page("2027-01-03-goals.md", "one", "figures of [these rigs](2027-01-01-rigs.md)")
    assert report.outdated(tmp_path) == ["2027-01-02-rigs-first.md"]


def test_the_record_keeps_one_run_of_the_rigs_per_machine():
    assert report.outdated(ROOT / "record") == [], "delete these, or say in a page what they are kept for"


def test_the_record_lists_its_pages():
    listed = (ROOT / "record" / "README.md").read_text()
    pages = [path.name for path in (ROOT / "record").glob("*.md") if path.name != "README.md"]
    assert pages and [name for name in pages if f"]({name})" not in listed] == []


def test_the_plot_has_every_curve(record):
    root = xml.fromstring(plot.plot(record))
    names = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for panel in record["panels"]:
        assert figures.title(panel) in names
    everything = {*record["panels"][0]["programs"], *record["panels"][1]["programs"]}
    for name in everything | {"floor", "ring bound", "server bound"}:
        assert any(re.fullmatch(rf"{name} [\d.]+ [mu]?s", each) for each in names), f"{name} and its time at the last size"
    width, height = map(float, root.get("viewBox").split()[2:])
    for curve in root.iter("{http://www.w3.org/2000/svg}polyline"):
        for point in curve.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= height


def test_the_plot_lives_with_what_is_missing(record):
    lonely = copy.deepcopy(record["panels"][0]) | {"programs": {"herringbone": {}}}
    single = copy.deepcopy(record["panels"][0]) | {"sizes": [1024]}
    record["panels"], record["floor"] = [lonely, single], {}
    text = plot.plot(record)
    assert "no program has figures here" in text
    xml.fromstring(text)


def test_ticks_are_few_and_inside():
    for low, high in ((-6.2, -1.0), (-1.6, -0.2), (0.31, 0.55)):
        found = plot.ticks(low, high)
        assert 3 <= len(found) <= 12
        assert all(10**low <= value <= 10**high for value in found)


def test_the_floor_is_read():
    text = """measurement    median    min    max  unit
all-reduce floor, N=2, 0.0625 MiB, 2 cores           1.38       1.30       1.42  us
all-reduce floor, N=2, 25 MiB, 2 cores           1.14e+03   1.10e+03   1.2e+03  us
all-reduce floor, N=2, 25 MiB, 2 cores, streaming stores   5.72e+03   5.72e+03   5.72e+03  us
"""
    assert rigs.floor_of(text) == {"2": {"65536": pytest.approx(1.3e-6), str(25 * MEBIBYTE): pytest.approx(1.1e-3)}}


def test_progress_counts_runs_it_did_not_see(tmp_path, capsys):
    shown = progress.Progress([(["gloo", "mpich", "herringbone"], 2), (["gloo"], 1)])
    shown.panel(0, "first")
    for name in ("bench-gloo-a1", "bench-herringbone-b2", "bench-gloo-c3", "bench-unknown-d4"):
        (tmp_path / name).mkdir()
        shown.look(tmp_path)
        shown.look(tmp_path)
    shown.panel(1, "second")
    (tmp_path / "bench-gloo-e5").mkdir()
    shown.look(tmp_path / "empty")
    lines = [line.split(",")[0].strip() for line in capsys.readouterr().err.splitlines()]
    assert lines == ["first", "1 of 7  gloo", "3 of 7  herringbone", "4 of 7  gloo", "second"]


def test_rigs_that_are_missing_are_named(tmp_path):
    run = [sys.executable, ROOT / "bench" / "run.py", "--rigs", tmp_path]
    outcome = subprocess.run(run, capture_output=True, text=True)
    assert outcome.returncode == 1
    assert "has no bench.py; RIGS has to name the folder of the rigs" in outcome.stderr
    (tmp_path / "bench.py").touch()
    outcome = subprocess.run([*run, "--binary", tmp_path / "nothing"], capture_output=True, text=True)
    assert outcome.returncode == 1 and "`make program` builds it" in outcome.stderr


def test_peers_that_are_missing_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERS", str(tmp_path))
    (tmp_path / "bench.py").touch()
    (tmp_path / "bench_oneccl").touch()
    found = rigs.Rigs(tmp_path, tmp_path / "bench.py")
    runnable, missing = found.peers(["openmpi", "oneccl"])
    assert runnable == ["oneccl"]
    assert missing == ["openmpi is left out: bench_openmpi is not installed; run setup_peers.sh of the rigs"]
    with pytest.raises(rigs.RigsFailed, match="there is no peer nccl"):
        found.peers(["nccl"])
    with pytest.raises(rigs.RigsFailed, match="make limits"):
        found.floor(1)


def test_a_cluster_that_cannot_run_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "bench.py").touch()
    found = rigs.Rigs(tmp_path, tmp_path / "bench.py")
    monkeypatch.setattr(rigs.os, "geteuid", lambda: 1000)
    assert found.why_no_cluster() == "network namespaces need root: run `make bench` as root"
    monkeypatch.setattr(rigs.os, "geteuid", lambda: 0)
    monkeypatch.setattr(rigs.shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    assert found.why_no_cluster() == "tc is not installed"


def test_a_recorded_command_has_no_path_of_this_machine(tmp_path):
    (tmp_path / "bench.py").touch()
    binary = ROOT / "target" / "release" / "herringbone"
    found = rigs.Rigs(tmp_path, tmp_path / "bench.py")
    found.binary = binary
    panel = {"rig": "cluster", "n": 4, "rate": 500, "reducers": 2, "sizes": [4], "peers": ["gloo"]}
    shown = found.shown(panel | {"rounds": 5, "budget": 0.3, "timeout": 60})
    assert shown.startswith("$RIGS/bench.py cluster --n 4 --sizes 4 --peers gloo --rounds 5")
    assert "HERRINGBONE_TOKEN=rigs-of-one-machine BENCH_EXTRA_HOSTS= target/release/herringbone bench --rig" in shown
    assert "exec target/release/herringbone serve --listen $BIND_ADDR:7070" in shown
    assert str(ROOT) not in shown and sys.prefix not in shown and str(tmp_path) not in shown


def test_records_of_one_commit_merge(tmp_path, record):
    halves = []
    for number, panel in enumerate(record["panels"]):
        halves.append(tmp_path / f"{number}.json")
        halves[-1].write_text(json.dumps(record | {"panels": [panel], "floor": record["floor"] if not number else {}}))
    run = [sys.executable, ROOT / "bench" / "run.py", "--out", tmp_path / "out", "--json", tmp_path / "whole.json"]
    outcome = subprocess.run([*run, "--from", *halves], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads((tmp_path / "whole.json").read_text()) == record
    assert (tmp_path / "out" / "2026-11-21-rigs.md").read_text() == report.markdown(record, "2026-11-21-rigs.svg")
    assert (tmp_path / "out" / "2026-11-21-rigs.svg").read_text() == plot.plot(record)
    halves[1].write_text(json.dumps(record | {"machine": record["machine"] | {"commit": "another"}}))
    outcome = subprocess.run([*run, "--from", *halves], capture_output=True, text=True)
    assert outcome.returncode == 1 and "different commits" in outcome.stderr
