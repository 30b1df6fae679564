"""The DDP benchmark: two workers and a small model, and the pictures of a made-up trace."""

import json
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
sys.path.insert(0, str(ROOT / "bench"))

import picture_rules
import processes
import timeline


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """Both backends, with a reducer, traced: what was printed, and where the files are."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("ddp")
    command = [sys.executable, ROOT / "bench" / "ddp.py", "--workers", "2", "--reducers", "1", "--megabytes", "9"]
    command += ["--rounds", "2", "--steps", "1", "--trace", folder / "trace.json", "--json", folder / "figures.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, folder


@pytest.mark.full
def test_backends_take_turns_and_agree(outcome):
    printed, folder = outcome
    result = json.loads((folder / "figures.json").read_text())
    assert result["agree"] and result["same_on_all_ranks"] == {"herringbone": True, "gloo": True}
    assert {name: len(rounds) for name, rounds in result["seconds"].items()} == {
        "herringbone": 2,
        "gloo": 2,
        "alone": 2,
    }
    assert result["layers"] == 2 and result["parameters"] == 2 * 1024 * 1025
    assert len(result["ratios"]) == 2 and min(result["ratios"]) <= result["ratio"] <= max(result["ratios"])
    assert "herringbone / gloo: " in printed and "the same bits on all ranks" in printed


@pytest.mark.full
def test_the_trace_has_all_ranks_and_buckets(outcome):
    trace = json.loads((outcome[1] / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert names == {f"{backend}, rank {rank}" for backend in ("herringbone", "gloo") for rank in range(2)}
    for process in {event["pid"] for event in trace}:
        own = [event for event in trace if event["pid"] == process and event["ph"] == "X"]
        assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in own)
        assert sum("all-reduce" in event["name"] for event in own) >= 5, "one bucket at least in each step"
        assert sum(event["name"] == "backward of layer 0" for event in own) == 5


@pytest.mark.full
def test_the_picture_shows_both_backends(outcome):
    root = xml.parse(outcome[1] / "trace.svg").getroot()
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"herringbone", "gloo", "worker", "backward pass"} <= set(texts)


def step(**changes):
    """A step of 10 s: forward to 2, backward to 6, and two buckets, the second of which outlasts it by 3."""
    made_up = {
        "forward": 0.0,
        "backward": 2.0,
        "layers": [[1, 4.0], [0, 6.0]],
        "buckets": [{"bytes": 2**20, "began": 6.0, "ended": 9.0}, {"bytes": 2**21, "began": 4.0, "ended": 7.0}],
        "optimizer": 9.0,
        "end": 10.0,
    }
    return made_up | changes


def test_what_is_hidden_is_the_time_under_backward():
    assert timeline.hidden([step()]) == pytest.approx(2 / 5), "buckets are under way from 4 to 9"
    early = [{"bytes": 4, "began": 2.5, "ended": 3.0}, {"bytes": 4, "began": 5.0, "ended": 6.0}]
    assert timeline.hidden([step(buckets=early)]) == 1.0
    late = [{"bytes": 4, "began": 6.0, "ended": 9.0}]
    assert timeline.hidden([step(buckets=late)]) == 0.0
    assert timeline.hidden([step(buckets=[])]) == 1.0


def test_the_worker_row_covers_the_step():
    parts = timeline.computing(step())
    assert [(kind, begin, end) for _, kind, begin, end in parts] == [
        ("forward", 0.0, 2.0),
        ("backward", 2.0, 4.0),
        ("backward", 4.0, 6.0),
        ("waiting", 6.0, 9.0),
        ("optimizer", 9.0, 10.0),
    ]


def test_bars_lie_on_one_scale():
    """Blue is under backward, orange after it, red is the wait; widths are proportional to seconds."""
    drawn = timeline.timeline({"herringbone": [step()]}, "a step")
    picture_rules.check(drawn)
    root = xml.fromstring(drawn)
    widths = {}
    for bar in root.iter(f"{SVG}rect"):
        if bar.find(f"{SVG}title") is not None:
            widths.setdefault(bar.get("fill"), []).append(float(bar.get("width")))
    scale = (timeline.WIDTH - timeline.LEFT - timeline.RIGHT) / 10
    assert widths[timeline.BLUE] == pytest.approx([2 * scale], abs=0.1)
    assert widths[timeline.ORANGE] == pytest.approx([1 * scale, 3 * scale], abs=0.1)
    assert widths[timeline.RED] == pytest.approx([3 * scale], abs=0.1)


def test_a_worker_that_fails_ends_the_job():
    with processes.Processes() as job:
        workers = [job.start([sys.executable, "-c", code]) for code in ("", "raise SystemExit(3)")]
        workers.append(job.start(["sleep", "600"]))
        with pytest.raises(processes.JobFailed, match="worker 1 ended with exit code 3"):
            job.finish(workers)
    assert all(worker.poll() is not None for worker in workers)


def test_a_cluster_needs_its_rigs(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.os, "geteuid", lambda: 0)
    with pytest.raises(processes.JobFailed, match="has no cluster.sh"):
        processes.Cluster(tmp_path, 4, 500)
    monkeypatch.setattr(processes.os, "geteuid", lambda: 1000)
    with pytest.raises(processes.JobFailed, match="need root"):
        processes.Cluster(tmp_path, 4, 500)
