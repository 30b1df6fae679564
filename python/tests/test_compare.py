"""``herringbone compare``: trainings, and how they end."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from herringbone.compare import __main__ as program
from herringbone.compare.namespaces import Namespaces, NoNamespaces
from herringbone.compare.results import Curve, Row
from conftest import WORKERS, Group
from lab.job import environment

SECONDS = 120
"""For a comparison; a busy machine takes far less."""


def compare(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "herringbone.compare", *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)


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


def test_digits_under_three_architectures(tmp_path: Path, group: Group) -> None:
    """The two that sum in each step come to the same loss, and a page is written."""
    pytest.importorskip("torch")
    written = tmp_path / "page.html"
    group.start(
        *(str(WORKERS / "comparing.py"), "--workers", "2", "--servers", "1", "--steps", "25", "--slow-worker", "1:1.5x"),
        *("--architecture", "all-reduce,parameter-server,async", "--json", "--html", str(written)),
        forked=True,
    )
    [(status, output)] = group.finish()
    assert status == 0, output
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    summed, served, apart = found["architectures"]
    assert [each["error"] for each in found["architectures"]] == [None] * 3, output
    assert summed["curve"]["losses"] == pytest.approx(served["curve"]["losses"], rel=1e-4)
    assert apart["curve"]["losses"][-1] < apart["curve"]["losses"][0]
    assert summed["curve"]["losses"][-1] < 0.7 * summed["curve"]["losses"][0]
    gradients = 301_066 * 4
    for each in found["architectures"]:
        assert gradients <= each["sent_per_step"] < 1.1 * gradients, each["architecture"]
        assert each["steps"] == 25 and each["cpu_s"] > 0 and each["accuracy"] > 0.3
    assert [each["predicted_s"] for each in found["architectures"]] == [None] * 3
    assert apart["staleness"] > 0 and summed["staleness"] is None
    assert "2 workers, all on this host" in output
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
    """A comparison under way, whose processes have a mark in their environment; none of them and no file may be left."""
    pytest.importorskip("torch")
    mark = f"COMPARISON_OF_TEST={tmp_path}"
    command = [sys.executable, "-m", "herringbone.compare", "--workers", "2", "--servers", "1", *words]
    # The path of a socket in it may have 107 bytes, so it is none of pytest's long ones.
    with (
        tempfile.TemporaryDirectory(prefix="hb") as folder,
        subprocess.Popen(
            command,
            env=environment({**dict([mark.split("=")]), "TMPDIR": folder}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        try:
            yield process
            until(lambda: not processes_with(mark), "its processes have ended")
            # torch keeps what it compiles for later programs.
            until(lambda: all(name.startswith("torchinductor_") for name in os.listdir(folder)), "its folder is gone")
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


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """The program takes the signals of its process."""
    handlers = {each: signal.getsignal(each) for each in program.SIGNALS}
    # pytest may itself run without a terminal.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("form", ["--csv", "--json", ""])
def test_a_signal_leaves_the_rows_that_there_are(
    number: signal.Signals, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of three architectures is under way when it comes."""

    def trained(_: Any, choice: Any, *__: Any) -> Row:
        if choice.label == "async":
            signal.raise_signal(number)
        return Row(choice.label, Curve([1.0], [0.5], [100.0], [2.25]), figures={"steps": 1.0})

    monkeypatch.setattr(program, "_trained", trained)
    monkeypatch.setattr(program, "prepare", lambda: None)
    written = tmp_path / "page.html"
    words = ["--architecture", "all-reduce,async,shards", "--html", str(written), *filter(None, [form])]
    with handlers_kept():
        assert program.main(words) == 128 + number
    output, said = capsys.readouterr()
    reason = f"{number.name} ended the comparison"
    if form == "--csv":
        assert [(row["architecture"], row["steps"], row["error"]) for row in csv.DictReader(io.StringIO(output))] == [
            ("all-reduce", "1", ""),
            ("async", "", f"missing: {reason}"),
            ("shards", "", f"missing: {reason}"),
        ]
    elif form == "--json":
        found = json.loads(output)["architectures"]
        assert [each["error"] for each in found] == [None, f"missing: {reason}", f"missing: {reason}"]
    else:
        assert output.splitlines()[2].startswith("all-reduce  ")
        assert output.splitlines()[3:] == [f"missing: async, shards ({reason})"]
    assert "2.250" in written.read_text() and written.read_text().count(f"missing: {reason}") == 2
    assert said.endswith("interrupted; all processes that it started have ended\n")


def test_a_signal_before_the_first_row_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page of an earlier comparison stays."""
    monkeypatch.setattr(program, "prepare", lambda: signal.raise_signal(signal.SIGTERM))
    (page := tmp_path / "page.html").write_text("earlier")
    with handlers_kept():
        assert program.main(["--html", str(page)]) == 128 + signal.SIGTERM
    assert capsys.readouterr().out == "" and page.read_text() == "earlier"


def test_a_page_that_cannot_be_written_after_all_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, for one."""

    def trained(_: Any, choice: Any, *__: Any) -> Row:
        return Row(choice.label, Curve([1.0], [0.5], [100.0], [2.25]), figures={"steps": 1.0})

    monkeypatch.setattr(program, "_trained", trained)
    monkeypatch.setattr(program, "prepare", lambda: None)
    with handlers_kept():
        assert program.main(["--html", "/dev/full", "--svg", "/dev/null"]) == 1
    output, said = capsys.readouterr()
    assert "cannot write /dev/full: No space left on device" in said and "wrote /dev/null" in said
    assert "2.250" in output


@pytest.mark.full
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.3, 0.5, 0.8, 1.2])
def test_nothing_is_left_of_a_comparison_that_is_killed_while_it_starts(seconds: float, tmp_path: Path) -> None:
    """Servers and workers that have just been started have not yet told the system whose end is theirs."""
    with comparison(tmp_path, "--seconds", "600", "--architecture", "parameter-server", "--rate", "500Mbit") as process:
        time.sleep(seconds)
        process.kill()
        process.communicate(timeout=SECONDS)


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_takes_all_processes_along(number: signal.Signals, tmp_path: Path) -> None:
    with comparison(tmp_path, "--seconds", "600", "--architecture", "parameter-server", "--rate", "500Mbit") as process:
        until(lambda: len(workers_of(process.pid)) >= 2, "workers")
        process.send_signal(number)
        _, said = process.communicate(timeout=SECONDS)
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert said.endswith("interrupted; all processes that it started have ended\n"), said


@pytest.mark.full
def test_a_time_ends_all_workers_however_far_they_are(tmp_path: Path) -> None:
    """The fast worker waits for the slow one when the time is over, and is let go."""
    words = ("--seconds", "2", "--slow-worker", "0:8x", "--architecture", "bounded:1,all-reduce", "--json")
    with comparison(tmp_path, *words) as process:
        output, said = process.communicate(timeout=SECONDS)
    bounded, summed = json.loads(output)["architectures"]
    for each in (bounded, summed):
        assert each["error"] is None and each["seconds"] > 1.5, said
    assert process.returncode == 0


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


def test_under_nohup_the_end_of_a_terminal_is_no_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "_trained", lambda _, choice, *__: Row(choice.label, Curve([], [], [], []), "no training"))
    monkeypatch.setattr(program, "prepare", lambda: signal.raise_signal(signal.SIGHUP))
    with handlers_kept():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert program.main(["--architecture", "async"]) == 1
    assert capsys.readouterr().out == "async failed: no training\n"


@pytest.mark.full
def test_a_transformer() -> None:
    pytest.importorskip("torch")
    outcome = compare("--workers", "2", "--model", "transformer", "--steps", "20", "--architecture", "all-reduce", "--json")
    assert outcome.returncode == 0, outcome.stderr
    [row] = json.loads(outcome.stdout)["architectures"]
    assert row["sent_per_step"] == pytest.approx(470_912 * 4, rel=0.05)
    assert row["curve"]["losses"][-1] < row["curve"]["losses"][0] - 1
