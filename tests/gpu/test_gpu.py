"""The script for a machine with a GPU runs without one, judges what it should, and says what is missing."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE))

import plugin
from rows import Row, bound_of, checked, judged, page, ratio, table, wrong

specification = importlib.util.spec_from_file_location("gpu_run", HERE / "run.py")
run = importlib.util.module_from_spec(specification)
specification.loader.exec_module(run)


def started(*words: str) -> subprocess.CompletedProcess[str]:
    """The script, run to its end."""
    return subprocess.run([sys.executable, str(HERE / "run.py"), *words], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("names", [run.CHECKS[:4], pytest.param(run.CHECKS[4:], marks=pytest.mark.full)])
def test_all_checks_run_on_the_stand_in(names: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    record = tmp_path / "record.md"
    done = started("--stand-in", "--json", "--record", str(record), "--only", *names, run.PLUGIN)
    assert done.returncode == 0, done.stderr[-6000:]
    rows = json.loads(done.stdout)["rows"]
    assert {row["check"] for row in rows} == {*names, run.PLUGIN}
    figures = [row for row in rows if row["goal"].startswith("<=") and row["check"] != "training"]
    assert all(row["is_met"] is None for row in figures), "a stand-in's times say nothing"
    assert not record.exists(), "nor do they belong into a record"


def test_a_machine_without_a_gpu_says_what_is_missing() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = started()
    assert done.returncode == run.MISSING
    assert done.stderr.splitlines()[-1].startswith("a GPU is missing"), done.stderr


def test_a_check_that_fails_takes_no_other_with_it(monkeypatch, tmp_path: pathlib.Path) -> None:
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import json, os, pathlib, sys, time\n"
        "folder, *names = [word for word in sys.argv[1:] if word != '--stand-in']\n"
        "for name in names:\n"
        "    found = {'rows': [{'check': name, 'what': 'a', 'result': 'right', 'goal': 'right', 'is_met': True}]}\n"
        "    if name == 'streams': found = {'error': 'AssertionError: wrong'}\n"
        "    if name == 'late': time.sleep(60)\n"
        "    if os.environ['RANK'] == '0': pathlib.Path(folder, name + '.0.json').write_text(json.dumps(found))\n"
        "    if 'error' in found: sys.exit(1)\n"
    )
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "LIMIT_SECONDS", 2)
    monkeypatch.setattr(sys, "argv", ["run.py", "--stand-in"])
    rows = run.all_of(["values", "streams", "capture", "late", "times"], run.arguments(), float("inf"))
    assert [(row.check, row.result) for row in rows] == [
        ("values", "right"),
        ("streams", "failed"),
        ("capture", "right"),
        ("late", "failed"),
        ("times", "right"),
    ]
    assert rows[1].what == "AssertionError: wrong" and rows[3].what == "rank 0 hung"
    [left] = run.all_of(["values"], run.arguments(), 0.0)
    assert left.result == "left out" and left.is_met is False


def test_rows_judge_and_tables_are_aligned() -> None:
    rows = [
        checked("values", "a"),
        judged("times", "slow", 1.2, "x", 1.15, is_real=True),
        judged("times", "fast", 1.1, "x", 1.15, is_real=True),
        judged("times", "simulated", 9.0, "x", 1.15, is_real=False),
        Row("plugin", "b", "left out"),
    ]
    assert [row.what for row in wrong(rows)] == ["slow"]
    lines = table(rows).splitlines()
    assert len({len(line) for line in lines}) == 1 and "not judged" in lines[5] and lines[3].rstrip("| ").endswith("no")
    assert "* GPU: one" in page(rows, {"GPU": "one"})
    assert bound_of(3.0, 1.0, 2.0) == 5.0 and ratio([2.0, 3.0, 9.0], [1.0, 3.0, 3.0]) == 2.0


def test_the_plug_in_is_compared_in_turns_with_as_many_sockets(monkeypatch) -> None:
    asked = []

    def processes(words, variables, seconds):
        asked.append(variables)
        ours = variables[0]["NCCL_NET"] == "Herringbone"
        said = f"{plugin.FOUND}\n" if ours else ""
        return [(0, f'{said}{{"25": {0.9 if ours else 1.0}}}\n'), (0, "")]

    rows = plugin.compared(pathlib.Path("/a/lib.so"), processes)
    assert [ranks[0]["NCCL_NET"] for ranks in asked] == ["Socket", "Herringbone"] * plugin.ROUNDS
    for ranks in asked:
        assert len({rank["NCCL_HOSTID"] for rank in ranks}) == 2, "else NCCL refuses two ranks on one GPU"
        own = ranks[0]
        sockets = own.get("HERRINGBONE_NCCL_STREAMS") or int(own["NCCL_SOCKET_NTHREADS"]) * int(own["NCCL_NSOCKS_PERTHREAD"])
        assert int(sockets) == plugin.SOCKETS
    assert not wrong(rows) and rows[1].result == "0.9 x"
    silent = plugin.compared(pathlib.Path("/a/lib.so"), lambda *_: [(0, '{"25": 1.0}\n'), (0, "")])
    assert [row.is_met for row in silent] == [False] and plugin.FOUND in silent[0].what
    lost = plugin.compared(pathlib.Path("/a/lib.so"), lambda *_: [(1, "a\nRuntimeError: NCCL Error 3\n"), (1, "")])
    assert "NCCL Error 3" in lost[0].what
