"""What ``herringbone compare`` does without a training: its command line, slow workers, the questions to the simulator."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from herringbone.compare.__main__ import main
from herringbone.compare.architectures import ARCHITECTURES, chosen
from herringbone.compare.digits import drawn, handwritten
from herringbone.compare.files import refusal
from herringbone.compare.options import Slow, parsed, rate_of, slow_of
from herringbone.compare.prediction import simulation_of
from herringbone.compare.slowness import Slowness, next_look

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--architecture", "all-reduce,ring"], "there is no architecture 'ring'; choose from all-reduce, reduction-server, "),
        (["--architecture", "async:3"], "async takes no number: write async, not async:3"),
        (
            ["--architecture", "local-sgd:0"],
            "local-sgd:0: after local-sgd: write H, the steps, a whole number from 1 to 1000000",
        ),
        (["--architecture", "bounded:x"], "bounded:x: after bounded: write N, the steps, a whole number from 0 to 1000000"),
        (
            ["--architecture", "bounded:99999999999"],
            "bounded:99999999999: after bounded: write N, the steps, a whole number from 0",
        ),
        (["--architecture", f"diloco:{'9' * 5000}"], f"diloco:{'9' * 33}...: after diloco: write H, the steps, a whole number"),
        (["--architecture", "shards:129"], "shards:129: a step has 128 samples; write at most shards:128, or use more workers"),
        (["--architecture", "async,async"], "--architecture names async twice"),
        (["--architecture", ","], "--architecture is empty; choose from all-reduce"),
        (["--workers", "0"], "--workers 0: pass a whole number from 1 to 64"),
        (["--workers", "９"], "--workers ９: pass a whole number from 1 to 64"),
        (["--servers", "65"], "--servers 65: pass a whole number from 1 to 64"),
        (["--steps", "many"], "--steps many: pass a whole number from 1 to 1000000"),
        (["--steps", "9" * 5000], f"--steps {'9' * 40}...: pass a whole number from 1 to 1000000"),
        (["--seconds", "0"], "--seconds 0: pass a number from 1 to 86400"),
        (["--seconds", "nan"], "--seconds nan: pass a number from 1 to 86400"),
        (["--seconds", "soon"], "--seconds soon: pass a number from 1 to 86400"),
        (["--seed", "4294967296"], "--seed 4294967296: pass a whole number from 0 to 4294967295"),
        (["--seed", "-1"], "--seed -1: pass a whole number from 0 to 4294967295"),
        (["--rate", "fast"], "--rate fast: pass a rate from 100kbit to 100Gbit, for example 100Mbit"),
        (["--rate", "100"], "--rate 100 has no unit: write 100Mbit for megabits per second; kbit and Gbit work, too"),
        (["--rate", "100MB"], "--rate 100MB has the unit MB: write 100Mbit for megabits per second; kbit and Gbit work, too"),
        (["--rate", "101Gbit"], "--rate 101Gbit: pass a rate from 100kbit to 100Gbit"),
        (["--slow-worker", "1"], "--slow-worker 1 is not a slow worker: pass a worker's rank or random"),
        (["--slow-worker", "1:101x"], "a colon and a factor from 1 to 100: 1:3x, or random:3x"),
        (["--slow-worker", "4:3x"], "--slow-worker 4:3x: there is no worker 4; the 4 workers have the ranks 0 to 3"),
        (["--slow-worker", f"{'4' * 5000}:3x"], f"there is no worker {'4' * 40}...; the 4 workers have the ranks 0 to 3"),
        (
            ["--html", "/no/such/folder/page.html"],
            "--html /no/such/folder/page.html cannot be written: the folder /no/such/folder d",
        ),
        (["--svg", "/"], "--svg / cannot be written: it is a folder"),
        (["--html", f"/tmp/{'x' * 300}"], "xxx cannot be written: File name too long"),
        (["--html", "/tmp/a", "--svg", "/tmp/../tmp/a"], "--html and --svg name the same file"),
        (["--csv", "out.csv"], "--csv prints and takes no file: write --csv > out.csv"),
        (["--cvs"], "there is no argument --cvs"),
        (["--csv", "--json"], "argument --json: not allowed with argument --csv"),
        (["--model", "cats"], "argument --model: invalid choice: 'cats' (choose from "),
    ],
)
def test_what_cannot_be_used_is_said_with_what_can(words: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(words)
    assert ended.value.code == 2
    usage, reason = capsys.readouterr().err.splitlines()
    assert usage == "usage: herringbone compare [FLAGS]; herringbone compare --help lists them"
    assert reason.startswith("herringbone compare: ") and said in reason


def test_a_file_is_refused_before_the_training_and_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (there := tmp_path / "there.html").write_text("before")
    os.mkfifo(pipe := tmp_path / "pipe")
    (link := tmp_path / "link.html").symlink_to(tmp_path / "target.html")
    assert [refusal(path) for path in (there, tmp_path / "new.html", link, pipe, Path("/dev/null"))] == [None] * 5
    assert there.read_text() == "before" and sorted(tmp_path.iterdir()) == [link, pipe, there] and link.is_symlink()
    assert refusal(there / "page.html") == f"the folder {there} does not exist"

    def forbidden(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    # The tests may run as root, to whom nothing is forbidden.
    monkeypatch.setattr(os, "open", forbidden)
    assert [refusal(path) for path in (there, tmp_path / "new.html")] == ["Permission denied"] * 2


def test_the_command_line() -> None:
    options = parsed(
        ["--architecture", "bounded:0,local-sgd,shards", "--workers", "3", "--rate", "2.5Gbit", "--slow-worker", "random:3x"]
    )
    assert [choice.label for choice in options.choices] == ["bounded:0", "local-sgd:8", "shards"]
    assert (options.workers, options.servers, options.rate, options.slow) == (3, 3, 2500, Slow(None, 3))
    assert (rate_of("500kbit"), rate_of("100Mbit/s"), rate_of("10 Gbit")) == (0.5, 100, 10_000)
    assert [parsed(["--seed", seed]).seed for seed in ("0", "4294967295")] == [0, 4294967295]
    assert parsed(["--steps", "0007"]).steps == 7
    assert slow_of("1:2.5", 2) == Slow(1, 2.5)
    assert [chosen(each.name).argument for each in ARCHITECTURES] == [each.default for each in ARCHITECTURES]


def test_every_architecture_has_its_module_and_its_row_of_the_page() -> None:
    section = (ROOT / "docs" / "compare.md").read_text().partition("## Architectures")[2].partition("\n## ")[0]
    page_rows = re.findall(r"^\| `([a-z][a-z-]*)", section, re.MULTILINE)
    assert page_rows == [each.name for each in ARCHITECTURES]
    for each in ARCHITECTURES:
        assert importlib.util.find_spec(f"herringbone.compare.architectures.{each.module}") is not None, each.name


def test_the_documentation_names_the_architectures_of_a_run_without_a_list() -> None:
    named = (ROOT / "docs" / "compare.md").read_text().partition("If you name no architectures")[2].partition("With the other")[0]
    assert re.findall(r"`([^`]+)`", named) == [choice.label for choice in parsed([]).choices]


def test_a_slow_worker_sleeps_longer_by_its_factor() -> None:
    workers = [Slowness(Slow(1, 3), rank, 4, seed=7) for rank in range(4)]
    assert [each.sleep(5, 0.1) for each in workers] == pytest.approx([0, 0.2, 0, 0])
    drawn_ones = [Slowness(Slow(None, 3), rank, 4, seed=7) for rank in range(4)]
    sleeping = [[each.sleep(step, 0.1) > 0 for each in drawn_ones].index(True) for step in range(100)]
    assert set(sleeping) == {0, 1, 2, 3}
    assert all(sum(each.sleep(step, 0.1) > 0 for each in drawn_ones) == 1 for step in range(100))
    assert Slowness(None, 0, 4, seed=7).sleep(0, 0.1) == 0


def test_workers_in_step_look_at_their_clocks_seldom_and_end_in_time() -> None:
    done, looks = 0, 0
    while count := next_look(done, done * 0.01, 10):
        done, looks = done + count, looks + 1
    assert done == pytest.approx(1000, rel=0.02)
    assert looks < 25


def test_a_python_without_torch_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else found(name, *more))
    assert main([]) == 3
    hint = f"training needs torch, but {sys.executable} lacks it: {sys.executable} -m pip install torch numpy"
    assert capsys.readouterr().err == f"herringbone compare: {hint}\n"


def test_what_the_simulator_is_asked() -> None:
    """Nothing where links are not limited: its machine is not this one."""
    options = parsed(["--rate", "100Mbit", "--servers", "2"])

    def words(name: str) -> str:
        return " ".join(simulation_of(options, chosen(name), 1000) or [])

    assert "--bytes 1000 --ranks 4 --per-host 1" in words("all-reduce") and words("all-reduce").endswith("--gbps 0.1")
    assert words("reduction-server").endswith("--reducers 2 --algorithm reduction_server")
    assert words("async") == ""
    for unknown in ([], ["--rate", "100Mbit", "--workers", "1"]):
        assert simulation_of(parsed(unknown), chosen("all-reduce"), 1000) is None


def test_drawn_digits_can_be_told_apart() -> None:
    images, labels = drawn()
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((1797, 64), np.float32, (1797,), np.int64)
    assert math.isclose(images.min(), -0.5) and images.max() <= 0.5
    apart = ((images[1400:1500, None] - images[:1400]) ** 2).sum(axis=2)
    assert (labels[:1400][apart.argmin(axis=1)] == labels[1400:1500]).mean() > 0.7, "the label of the most similar other image"


@pytest.mark.full
def test_handwritten_digits_are_those_of_scikit_learn() -> None:
    """The file that is read without an import of the library."""
    datasets = pytest.importorskip("sklearn.datasets")
    for read, loaded in zip(handwritten(), datasets.load_digits(return_X_y=True)):
        assert read.shape == loaded.shape and (read == loaded).all()
