"""``herringbone compare``: its command line, what figures come to, its page, and trainings."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from herringbone.compare.__main__ import main
from herringbone.compare.architectures import ARCHITECTURES, chosen
from herringbone.compare.digits import drawn
from herringbone.compare.files import refusal
from herringbone.compare.namespaces import Namespaces, NoNamespaces
from herringbone.compare.options import Slow, parsed, rate_of, slow_of
from herringbone.compare.slowness import Slowness, next_look
from herringbone.compare.page import page
from herringbone.compare.pictures import curves
from herringbone.compare.prediction import simulation_of
from herringbone.compare.report import as_csv, as_json, duration, size, table
from herringbone.compare.results import Row, Staleness, budgets_of, failed, row_of, staleness_of
from lab.job import environment

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
"""For a comparison; a busy machine takes far less."""


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herringbone.compare", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--architecture", "all-reduce,ring"], "there is no architecture 'ring'; there are all-reduce, reduction-server, "),
        (["--architecture", "async:3"], "async takes no number: write async, not async:3"),
        (
            ["--architecture", "local-sgd:0"],
            "local-sgd:0: behind local-sgd: comes H, the steps, a whole number from 1 to 1000000",
        ),
        (["--architecture", "bounded:x"], "bounded:x: behind bounded: comes N, the steps, a whole number from 0 to 1000000"),
        (
            ["--architecture", "bounded:99999999999"],
            "bounded:99999999999: behind bounded: comes N, the steps, a whole number from 0",
        ),
        (["--architecture", f"diloco:{'9' * 5000}"], f"diloco:{'9' * 33}...: behind diloco: comes H, the steps, a whole number"),
        (["--architecture", "shards:129"], "shards:129: a step has 128 samples; write at most shards:128, or take more workers"),
        (["--architecture", "async,async"], "--architecture names async twice"),
        (["--architecture", ","], "--architecture names none; there are all-reduce"),
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
        (["--slow-worker", "1"], "--slow-worker 1 names no slow worker: pass a worker's rank or random"),
        (["--slow-worker", "1:101x"], "a colon and a factor from 1 to 100: 1:3x, or random:3x"),
        (["--slow-worker", "4:3x"], "--slow-worker 4:3x: there is no worker 4; the 4 workers have the ranks 0 to 3"),
        (["--slow-worker", f"{'4' * 5000}:3x"], f"there is no worker {'4' * 40}...; the 4 workers have the ranks 0 to 3"),
        (
            ["--html", "/no/such/folder/page.html"],
            "--html /no/such/folder/page.html cannot be written: there is no folder /no/such/fo",
        ),
        (["--svg", "/"], "--svg / cannot be written: it is a folder"),
        (["--html", f"/tmp/{'x' * 300}"], "xxx cannot be written: File name too long"),
        (["--html", "/tmp/a", "--svg", "/tmp/../tmp/a"], "--html and --svg name the same file"),
        (["--csv", "out.csv"], "--csv takes no file, and prints: write --csv > out.csv"),
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
    assert refusal(there / "page.html") == f"there is no folder {there}"

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
    page_rows = re.findall(r"^\| `([a-z][a-z-]*)", (ROOT / "docs" / "compare.md").read_text(), re.MULTILINE)
    assert page_rows == [each.name for each in ARCHITECTURES]
    for each in ARCHITECTURES:
        assert importlib.util.find_spec(f"herringbone.compare.architectures.{each.module}") is not None, each.name


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
    assert [size(value) for value in (12, 999_600, 1.5e9)] == ["12 B", "1.00 MB", "1.50 GB"]


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


def test_a_python_without_torch_is_told_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else found(name, *more))
    assert main([]) == 3
    hint = f"training needs torch, and {sys.executable} has none: {sys.executable} -m pip install torch numpy"
    assert capsys.readouterr().err == f"herringbone compare: {hint}\n"


def test_what_the_simulator_is_asked() -> None:
    options = parsed(["--rate", "100Mbit", "--servers", "2"])

    def words(name: str, limited: bool = True) -> str:
        return " ".join(simulation_of(options, chosen(name), limited, 1000) or [])

    assert "--ranks 4" in words("all-reduce") and "--per-host 1 --gbps 0.1" in words("all-reduce")
    assert "--per-host 4" in words("all-reduce", limited=False) and "--gbps" not in words("all-reduce", limited=False)
    assert words("reduction-server").endswith("--reducers 2 --algorithm reduction_server")
    assert words("async") == ""


def test_drawn_digits_can_be_told_apart() -> None:
    images, labels = drawn()
    assert (images.shape, images.dtype, labels.shape, labels.dtype) == ((1797, 64), np.float32, (1797,), np.int64)
    assert math.isclose(images.min(), -0.5) and images.max() <= 0.5
    apart = ((images[1400:, None] - images[:1400]) ** 2).sum(axis=2)
    assert (labels[:1400][apart.argmin(axis=1)] == labels[1400:]).mean() > 0.7, "the label of the most similar other image"


@pytest.mark.parametrize("as_user", [False, True])
def test_a_process_enters_a_host(as_user: bool) -> None:
    """As root, and as a user, who enters the user namespace of the hosts first."""
    program = "import sys; from herringbone.compare.namespaces import enter; enter(int(sys.argv[1])); print(open('/proc/net/dev').read())"
    spaces = Namespaces(1)
    spaces.user = spaces.user or as_user
    try:
        with spaces:
            command = [sys.executable, "-c", program, str(spaces.hosts[0])]
            outcome = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")
    assert outcome.returncode == 0, outcome.stderr
    assert re.findall(r"^ *(\w+):", outcome.stdout, re.MULTILINE) == ["lo", spaces.interface]


def test_digits_under_three_architectures(tmp_path: Path) -> None:
    """The two that sum in each step come to the same loss, and a page is written."""
    pytest.importorskip("torch")
    written = tmp_path / "page.html"
    outcome = compare(
        *("--workers", "2", "--servers", "1", "--steps", "25", "--slow-worker", "1:1.5x"),
        *("--architecture", "all-reduce,parameter-server,async", "--json", "--html", str(written)),
    )
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    summed, served, apart = found["architectures"]
    assert [each["error"] for each in found["architectures"]] == [None] * 3, outcome.stderr
    assert summed["curve"]["losses"] == pytest.approx(served["curve"]["losses"], rel=1e-4)
    assert apart["curve"]["losses"][-1] < apart["curve"]["losses"][0]
    assert summed["curve"]["losses"][-1] < 0.7 * summed["curve"]["losses"][0]
    gradients = 301_066 * 4
    for each in found["architectures"]:
        assert gradients <= each["sent_per_step"] < 1.1 * gradients, each["architecture"]
        assert each["steps"] == 25 and each["cpu_s"] > 0 and each["accuracy"] > 0.3
    assert summed["predicted_s"] > 0 and served["predicted_s"] is None
    assert apart["staleness"] > 0 and summed["staleness"] is None
    assert "2 workers, all on this host" in outcome.stderr
    assert "async" in written.read_text()


def processes_with(word: str) -> list[int]:
    """The processes in whose environment a word is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def workers_of(comparison: int) -> list[int]:
    """The processes that the server of workers has forked for a comparison."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    return [worker for server in children.get(comparison, []) for worker in children.get(server, [])]


def until(done: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what}: not within {SECONDS} s"
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def comparison(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A comparison under way, whose processes have a mark in their environment; none of them may be left."""
    pytest.importorskip("torch")
    mark = f"COMPARISON_OF_TEST={tmp_path}"
    command = [sys.executable, "-m", "herringbone.compare", "--workers", "2", "--servers", "1", *words]
    settings = environment(dict([mark.split("=")]))
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            until(lambda: not processes_with(mark), "its processes have ended")
        finally:
            process.kill()


@pytest.mark.full
def test_a_killed_worker_costs_its_row_alone(tmp_path: Path) -> None:
    words = ("--seconds", "3", "--architecture", "parameter-server,async,all-reduce", "--csv")
    with comparison(tmp_path, *words) as process:
        os.kill(until(lambda: workers_of(process.pid), "workers")[-1], signal.SIGKILL)
        output, said = process.communicate(timeout=SECONDS)
        read = list(csv.DictReader(io.StringIO(output)))
        assert re.fullmatch("worker [01] was killed by SIGKILL", read[0]["error"]), said
        assert [row["error"] for row in read[1:]] == ["", ""], said
        assert float(read[2]["steps"]) > 10
        assert process.returncode == 1


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_takes_all_processes_along(number: signal.Signals, tmp_path: Path) -> None:
    with comparison(tmp_path, "--seconds", "600", "--architecture", "parameter-server", "--rate", "500Mbit") as process:
        until(lambda: len(workers_of(process.pid)) >= 2, "workers")
        process.send_signal(number)
        _, said = process.communicate(timeout=SECONDS)
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert said.endswith("interrupted; all that it started has ended\n"), said


@pytest.mark.full
def test_a_time_ends_all_workers_however_far_they_are(tmp_path: Path) -> None:
    """The fast worker waits for the slow one when the time is over, and is let go."""
    words = ("--seconds", "2", "--slow-worker", "0:8x", "--architecture", "bounded:1,all-reduce,shards:65", "--json")
    with comparison(tmp_path, *words) as process:
        output, said = process.communicate(timeout=SECONDS)
    bounded, summed, shards = json.loads(output)["architectures"]
    for each in (bounded, summed):
        assert each["error"] is None and each["seconds"] > 1.5, said
    reason = "the 64 samples of a step cannot be cut into 65 shards: take at most 64"
    assert re.fullmatch(f"worker [01]: ValueError: {reason}", shards["error"])
    assert process.returncode == 1


@pytest.mark.full
def test_slow_links_and_a_slow_worker() -> None:
    """Where each step waits for a slow link, sums take about as long as is predicted, and averages take less."""
    pytest.importorskip("torch")
    words = ("--workers", "2", "--servers", "2", "--steps", "16", "--rate", "100Mbit", "--slow-worker", "random:2x")
    outcome = compare(*words, "--architecture", "all-reduce,reduction-server,bounded:1,shards:4", "--json")
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    if "has no effect" in found["links"]:
        pytest.skip(found["links"])
    summed, reduced, bounded, shards = found["architectures"]
    for each in (summed, reduced, shards):
        # 1.2 MB take 96 ms at least, whatever else the machine does.
        assert each["step_s"] > 0.09 and each["predicted_s"] > 0.09, each["architecture"]
    assert summed["curve"]["losses"] == pytest.approx(reduced["curve"]["losses"], rel=1e-4)
    assert summed["curve"]["losses"] == pytest.approx(shards["curve"]["losses"], rel=1e-4)
    # From one push behind to two ahead; and clocks are read after the calls.
    assert 0 < bounded["most_staleness"] <= 4


@pytest.mark.full
def test_averages_and_updates_of_optim() -> None:
    """Those of ``herringbone.optim``, beside sums of all gradients."""
    pytest.importorskip("torch")
    names = "all-reduce,local-sgd:4,post-local-sgd:4,diloco:4,threshold,async-scaled"
    outcome = compare("--workers", "2", "--servers", "1", "--steps", "60", "--architecture", names, "--json")
    assert outcome.returncode == 0, outcome.stderr
    found = {each["architecture"]: each for each in json.loads(outcome.stdout)["architectures"]}
    parts = {name: each["sent_per_step"] / found["all-reduce"]["sent_per_step"] for name, each in found.items()}
    assert parts["local-sgd:4"] == parts["diloco:4"] == pytest.approx(1 / 4, abs=0.03)
    assert parts["post-local-sgd:4"] == pytest.approx(1 / 4 + 3 / 4 / 4, abs=0.05)
    assert parts["threshold"] < 1 / 50
    for name, each in found.items():
        assert each["curve"]["losses"][-1] < each["curve"]["losses"][0], name
        assert each["accuracy"] > 0.4, name


@pytest.mark.full
def test_a_transformer() -> None:
    pytest.importorskip("torch")
    outcome = compare("--workers", "2", "--model", "transformer", "--steps", "20", "--architecture", "all-reduce", "--json")
    assert outcome.returncode == 0, outcome.stderr
    [row] = json.loads(outcome.stdout)["architectures"]
    assert row["sent_per_step"] == pytest.approx(470_912 * 4, rel=0.05)
    assert row["curve"]["losses"][-1] < row["curve"]["losses"][0] - 1
