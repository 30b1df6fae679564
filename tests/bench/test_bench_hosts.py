"""The benchmark of hosts with several ranks: what it makes of what ranks leave; its runs need the rigs and root."""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import hosts
import processes


def left(folder, rank, ok=True):
    """What a rank leaves of one size."""
    line = {"bytes": 1 << 20, "med_s": 0.025 + rank, "cpu_s": 0.5, "iters": 50, "ok": ok}
    pathlib.Path(folder, f"r{rank}.jsonl").write_text(json.dumps(line) + "\n")


def test_a_layout_is_the_host_of_each_rank():
    assert hosts.layout("2x3") == [0, 0, 0, 1, 1, 1]


def test_time_is_of_rank_0_and_cpu_of_all(tmp_path):
    left(tmp_path, 0)
    left(tmp_path, 1)
    assert hosts.figures(tmp_path, 2) == {1 << 20: (0.025, 0.02)}


def test_a_wrong_result_of_any_rank_ends_it(tmp_path):
    left(tmp_path, 0)
    left(tmp_path, 1, ok=False)
    with pytest.raises(processes.JobFailed, match="a result of 1048576 bytes is wrong"):
        hosts.figures(tmp_path, 2)


def test_a_row_has_medians_and_ratios():
    times = {"herringbone": 20, "by hosts": 10, "gloo": 40}
    runs = {name: [(ms / 1e3, 1e-3), (9.0, 9.0), (0.0, 0.0)] for name, ms in times.items()}
    row = hosts.row("2x3", 1_000_000, runs)
    assert row["ms"] == times
    assert row["cpu"] == dict.fromkeys(runs, 1.0)
    assert hosts.cells(row)[1:7] == ["976.6 KiB", "20.0 ms", "10.0 ms", "40.0 ms", "0.50", "0.25"]
