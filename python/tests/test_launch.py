"""``herringbone launch``, as the wheel installs it, with real programs."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from conftest import START_SECONDS, WORKERS, Group, clean_environment

from lab.job import python


def launch(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herringbone", "launch", *arguments]
    environment = {**clean_environment(), **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS)


def test_an_unchanged_script_for_gloo_runs_on_herringbone() -> None:
    pytest.importorskip("torch")
    done = launch("-n", "3", "--replace", "gloo", "--", python(), str(WORKERS / "unchanged.py"))
    assert done.returncode == 0, done.stderr
    said = "gloo ProcessGroupHerringbone ProcessGroupHerringbone ProcessGroupGloo 2.0 3.0 3.0"
    assert sorted(done.stdout.splitlines()) == [f"[rank {rank}] {said}" for rank in range(3)], done.stderr


def test_arrays_go_through_reducers() -> None:
    pytest.importorskip("numpy")
    code = """import herringbone, numpy
with herringbone.init() as group:
    print(group.all_reduce(numpy.full(1000, group.rank, dtype="float32"))[0], group.explain(1000))"""
    done = launch("-n", "2", "--reducers", "2", "--", sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[: len("[rank 0] 1.0 ")] for line in lines] == ["[rank 0] 1.0 ", "[rank 1] 1.0 "], done.stdout
    assert all("reduction_server" in line for line in lines), done.stdout


def test_a_rank_without_a_share_folds_nothing() -> None:
    pytest.importorskip("numpy")
    code = """import herringbone, numpy
count = 300_000
with herringbone.init() as group:
    result = group.all_reduce(numpy.arange(count, dtype="float32") * (group.rank + 1))
    assert (result == numpy.arange(count, dtype="float32") * 10).all()
    sent = group.stats()["workers_tcp"]["sent"] / (4 * count)
    print(round(sent, 1), group.explain(count), list(group.stats()["operations"]["all_reduce"]))"""
    settings = {"HERRINGBONE_ALGORITHM": "weighted(radix,16x3,0)", "HERRINGBONE_TRANSPORT": "tcp"}
    done = launch("-n", "4", "--", sys.executable, "-c", code, **settings)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    # A rank with a third of the buffer sends the rest once, and its part to the three other ranks; the last rank sends all of it once.
    sent = [line.split()[2] for line in lines]
    assert sent == ["1.7", "1.7", "1.7", "1.0"], done.stdout
    assert all("weighted(radix,16x3,0)" in line and "['weighted(radix,16x3,0)']" in line for line in lines), done.stdout


def test_ctrl_c_reaches_python_on_every_rank(group: Group) -> None:
    code = """import sys, time
try:
    print("ready", flush=True)
    time.sleep(1000)
except KeyboardInterrupt:
    print("saved")
    sys.exit(5)"""
    launcher = group.start("-m", "herringbone", "launch", "-n", "2", "--", sys.executable, "-c", code)
    assert launcher.stdout is not None
    assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[rank 0] ready\n", "[rank 1] ready\n"]
    launcher.send_signal(signal.SIGINT)
    [(status, output)] = group.finish()
    assert status == 5, output
    assert sorted(output.splitlines()) == ["[rank 0] saved", "[rank 1] saved", "herringbone: ended by SIGINT"]


def test_killed_ranks_start_again_and_are_taken_in_by_the_others() -> None:
    pytest.importorskip("numpy")
    done = launch("-n", "3", "--max-attempts", "2", "--", sys.executable, str(WORKERS / "killed_ranks.py"))
    assert done.returncode == 0, done.stderr
    said = [[line.split() for line in done.stdout.splitlines() if line.startswith(f"[rank {rank}]")] for rank in range(3)]
    starts = [[words[3] for words in lines if words[2] == "starts"] for lines in said]
    assert starts == [["0", "1"], ["0", "1"], ["0"]], done.stdout
    # Each rank ends in the process that it started last; that of rank 2 has lived through both losses.
    assert [lines[-1][2:] for lines in said] == [["sum", "6", lines[-2][-1]] for lines in said], done.stdout
