"""The matrix finds what is wrong, some of its features run, and its pages say what it has found."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import worker

specification = importlib.util.spec_from_file_location("matrix_run", HERE / "run.py")
matrix = importlib.util.module_from_spec(specification)
specification.loader.exec_module(matrix)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ("ok", ""),
        ("failed", "AssertionError: tensor([11., 12., 13.]) is not tensor([1., 2., 3.])"),
        ("not in torch", "no torch.distributed.no_such_call"),
        ("not here", "no compiler"),
        ("refused", "not now"),
    ],
)
def test_an_outcome_says_why(outcome, why) -> None:
    assert worker.run(outcome, module="planted") == (outcome, why)


def test_a_rank_that_ends_has_failed() -> None:
    assert worker.run("an end", module="planted") == ("failed", "rank 0 ended with exit code 3")


def test_a_rank_that_hangs_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(worker, "SECONDS", 1)
    assert worker.run("hung", module="planted") == ("hung", "rank 0 was still running after 1 s")


def test_the_expected_holds_before_its_version_only() -> None:
    why = "ValueError: monitored_barrier is only implemented for GLOO backend."
    assert matrix.is_expected("monitored_barrier", "2.13.0", "refused", why)
    assert not matrix.is_expected("monitored_barrier", "2.13.0", "refused", "another error")
    assert not matrix.is_expected("monitored_barrier", "2.13.0", "ok", ""), "the page would be out of date"
    assert not matrix.is_expected("monitored_barrier", "2.14.1", "refused", why)
    assert matrix.is_expected("barrier", "2.9.1", "ok", "") and not matrix.is_expected("barrier", "2.9.1", "hung", "")


def test_without_a_wheel_it_says_what_to_do(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(matrix, "ROOT", tmp_path)
    with pytest.raises(matrix.NoEnvironment, match="0 abi3 wheels .* run `make setup`"):
        matrix.wheel()


@pytest.mark.full
def test_features_run_on_the_torch_that_is_here() -> None:
    titles = ["all_reduce: bool", "split_group", "DDP", "checkpoints: async_save"]
    command = [sys.executable, str(HERE / "worker.py"), json.dumps([[title, {}] for title in titles])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    outcomes = [json.loads(line)[:3] for line in done.stdout.splitlines()]
    assert outcomes == [[title, "ok", ""] for title in titles], done.stderr[-3000:]


def cells(page: pathlib.Path) -> list[list[str]]:
    """The rows of all tables of a page."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_record_has_all_features_and_only_what_is_expected() -> None:
    from features import FEATURES

    header, *rows = cells(ROOT / "record" / "matrix.md")
    versions = header[1:]
    end = [row[0] for row in rows].index("not ok")
    assert versions[:-1] == list(matrix.OLDER)
    assert {row[0] for row in rows[:end]} == set(FEATURES)
    reasons = {(title, version): why for title, version, _, why in rows[end + 1 :]}
    for title, *outcomes in rows[:end]:
        for version, outcome in zip(versions, outcomes):
            why = reasons.get((title, version), "")
            assert matrix.is_expected(title, version, outcome, why), (title, version, outcome, why)


def test_the_page_explains_what_is_not_ok() -> None:
    explained = [row[0] for row in cells(ROOT / "docs" / "torch-versions.md")[1:]]
    assert len(explained) == len(matrix.EXPECTED)
    for title in matrix.EXPECTED:
        words = [
            word for word in ("monitored_barrier", "sort_ranks", "split_group", "cpu:herringbone", "get_backend") if word in title
        ]
        assert words and any(words[0] in row for row in explained), title


def test_a_table_is_aligned() -> None:
    lines = matrix.table(["a", "bb"], [["long cell", "x|y"]])
    assert lines == ["| a         | bb   |", "|-----------|------|", "| long cell | x\\|y |"]
