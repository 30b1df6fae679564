"""Timelines of jobs of real processes: written, merged, checked and reported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS, Group, clean_environment, free_port

from lab.job import place

pytest.importorskip("numpy")


def trace(*words: str, status: int = 0) -> str:
    """What `herringbone trace` prints."""
    command = [sys.executable, "-m", "herringbone", "trace", *words]
    ended = subprocess.run(command, env=clean_environment({}), capture_output=True, text=True, timeout=120)
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def merged(folder: Path, *more: str) -> list[dict[str, Any]]:
    """The events of a job whose files are in a folder, after all that looks for errors."""
    whole = folder.parent / "job.json"
    trace("merge", str(folder), "-o", str(whole), *more)
    trace("check", str(whole), *map(str, folder.glob("*.json")))
    events: list[dict[str, Any]] = json.loads(whole.read_text())
    return events


def figures(folder: Path) -> dict[str, Any]:
    """The report of a job that is merged."""
    page = folder.parent / "report.html"
    found: dict[str, Any] = json.loads(trace("report", str(folder.parent / "job.json"), "-o", str(page), "--json"))
    assert "<svg" in page.read_text()
    return found


def test_a_report_names_the_slow_rank_of_eight_and_by_how_much(group: Group, tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    steps, late, seconds = 8, 5, 0.04
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [str(steps), str(late), str(seconds)]
    group.start_ranks("timeline.py", 8, *words, HERRINGBONE_TIMELINE=str(folder), **store)
    for status, output in group.finish(60):
        assert status == 0, output
    names = sorted(path.name.split("-", 1)[1].split(".")[0] for path in folder.iterdir())
    assert names == [f"rank{rank}" for rank in range(8)]
    events = merged(folder)
    operations = [event for event in events if event.get("cat") == "operation" and event["name"] == "all_reduce"]
    assert len(operations) == 8 * steps and {event["args"]["bytes"] for event in operations} == {4000}
    phases = {event["name"] for event in events if event.get("cat") == "phase"}
    assert {"move", "fold"} <= phases and any(name.startswith("wait for rank ") for name in phases), phases
    assert any(event["ph"] == "s" for event in events)
    found = figures(folder)
    slowest, *_ = found["slowest"]
    assert slowest["rank"] == f"rank {late}"
    # Others wait at least as long as it sleeps, and a busy machine adds to that.
    assert 0.9 * steps * seconds < slowest["cost_s"] < 3 * steps * seconds, slowest
    assert found["has_marks"] and len(found["steps"]) >= steps
    (of_kind,) = [kind for kind in found["operations"] if kind["operation"] == "all_reduce"]
    assert of_kind["slowest"] == f"rank {late}" and of_kind["count"] == steps
    waiting = {rank["rank"]: 0.0 for rank in found["steps"][0]["ranks"]}
    for step in found["steps"]:
        for rank in step["ranks"]:
            waiting[rank["rank"]] += rank["waiting_s"]
    assert waiting[f"rank {late}"] < 0.5 * min(value for name, value in waiting.items() if name != f"rank {late}"), waiting


def in_time_namespaces(folder: Path, offsets: list[int], steps: int) -> None:
    """A job whose ranks' monotonic clocks are so many seconds ahead."""
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [sys.executable, str(WORKERS / "timeline.py"), str(steps), "1", "0.002", "100000"]
    started = []
    for rank, offset in enumerate(offsets):
        namespace = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(offset)]
        variables = clean_environment({**place(rank, len(offsets)), **store, "HERRINGBONE_TIMELINE": str(folder)})
        started.append(subprocess.Popen([*namespace, *words], env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for process in started:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output.decode()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="time namespaces need root and unshare")
def test_clocks_that_are_seconds_apart_are_aligned(tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    in_time_namespaces(folder, [5000, 5007, 4000], 20)
    events = merged(folder)
    (job,) = [event["args"] for event in events if event["name"] == "herringbone job"]
    assert 0 < job["error_ns"] < 50_000_000
    ends = {kind: {event["id"]: event["ts"] for event in events if event["ph"] == kind} for kind in "sf"}
    assert set(ends["s"]) == set(ends["f"]) and len(ends["s"]) >= 20
    early = min(ends["f"][arrow] - ends["s"][arrow] for arrow in ends["s"])
    assert early * 1000 >= -job["error_ns"] - 2
    # The whole job takes less time than lies between its clocks.
    assert max(event["ts"] for event in events if "ts" in event) < 900e6


def test_a_killed_rank_leaves_a_file_that_is_merged(tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HERRINGBONE_TIMELINE": str(folder)}
    with Group() as group:
        group.start_ranks("timeline.py", 2, "2000", "1", "0.002", forked=False, **store)
        deadline = time.monotonic() + 30
        while sum(path.stat().st_size > 20_000 for path in folder.glob("*.json")) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        (victim,) = folder.glob("*rank1.*.json")
        os.kill(int(victim.name.split(".")[1]), signal.SIGKILL)
        group.finish(60)
    said = trace("merge", str(folder), "-o", str(tmp_path / "job.json"))
    assert f"{victim.name}: its end is missing" in said
    assert "right" in trace("check", str(tmp_path / "job.json"))
    assert any("rank 1 is lost" in fault["what"] for fault in figures(folder)["faults"])


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="a small file system needs root and unshare")
def test_a_full_disk_is_one_warning_and_the_job_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "timeline"
    folder.mkdir()
    mount = 'mount -t tmpfs -o size=64k none "$HERRINGBONE_TIMELINE" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, str(WORKERS / "timeline.py"), "1500", "0", "0"]
    variables = clean_environment({**place(0, 1), "HERRINGBONE_TIMELINE": str(folder)})
    ended = subprocess.run(words, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("the timeline cannot be written, and the job continues without it") == 1, ended.stdout
