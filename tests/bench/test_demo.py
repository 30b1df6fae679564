"""The demo, cut short: what `make demo` says, the picture that it draws, and that it leaves nothing behind."""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

import numpy
import picture_rules
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORT = ["--workers", "2", "--reducers", "1", "--rounds", "1", "--steps", "1", "--rate", "1000"]
MACHINE = {"CPU": "a CPU", "cores": "2 of 2", "load before": "0.10"}
RUN_SECONDS, END_SECONDS = 600, 60


@pytest.fixture
def demo(monkeypatch):
    """The demo's modules, under names that `bench` has, too."""
    for folder in ("bench", "demo"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    for name in ("run", "picture", "results"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import picture
    import results
    import run

    yield argparse.Namespace(run=run, results=results, picture=picture)
    for name in ("run", "picture", "results"):
        sys.modules.pop(name, None)


@pytest.fixture
def start(tmp_path):
    """Starts the demo, cut short, with its temporary files in `tmp_path`; ends it with the test."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    started = []

    def begin(*words):
        process = subprocess.Popen(
            [sys.executable, ROOT / "demo" / "run.py", *SHORT, *words],
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.terminate()
        process.communicate()


@pytest.mark.full
def test_a_short_demo_gives_the_same_bits_everywhere_and_draws_them(start, tmp_path):
    report = tmp_path / "report.svg"
    said, progress = start("--report", report).communicate(timeout=RUN_SECONDS)
    assert "Herringbone: the same bits in all" in said, said + progress
    assert "Herringbone equals Gloo" in said
    assert "inside host  round 1 of 1" in progress
    assert said.rstrip().endswith(str(report))
    assert xml.parse(report).getroot().tag.endswith("svg")
    if "left out" not in said:
        assert "2 hosts with 1000 Mbit/s links" in said
        assert "over links  round 1 of 1" in progress


@pytest.mark.full
def test_an_interrupted_demo_ends_what_it_has_started(start, tmp_path):
    process = start()
    while "meet" not in (line := process.stderr.readline()):
        assert line, "the demo ended before its workers began"
    process.send_signal(signal.SIGINT)  # while it starts them
    _, progress = process.communicate(timeout=END_SECONDS)
    assert (process.returncode, progress.splitlines()[-1][:17]) == (1, "demo: interrupted"), progress
    assert not [line for line in command_lines() if str(tmp_path) in line]
    assert not list(tmp_path.glob("herringbone-demo-*"))


def command_lines():
    """Of all processes that run."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_text()
        except OSError:
            pass


def test_namespaces_end_with_the_process_that_made_them(demo):
    script = "import sys, time\nfrom lab.hosts import Namespaces\nwith Namespaces(1, 100) as hosts:\n"
    script += "  print(*hosts.hosts, hosts.router, flush=True)\n  time.sleep(600)\n"
    maker = subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    firsts = [pathlib.Path("/proc", number, "ns/net") for number in maker.stdout.readline().split()]
    spaces = [os.readlink(first) for first in firsts]
    maker.kill()
    _, progress = maker.communicate()
    if not firsts:
        pytest.skip(progress.splitlines()[-1])
    deadline = time.monotonic() + END_SECONDS
    while left := [first for first, space in zip(firsts, spaces) if runs_in(first, space)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def runs_in(first, space):
    """Whether a process is still there, in the namespace that it had."""
    try:
        return os.readlink(first) == space
    except OSError:
        return False


def test_a_machine_without_namespaces_is_told_why(demo, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    options = argparse.Namespace(workers=2, reducers=1, rounds=1, steps=1, rate=500)
    monkeypatch.setattr(demo.run, "inside", lambda *_: "inside")
    settings, left_out = demo.run.both(options, tmp_path)
    assert settings == ["inside"]
    assert left_out == "The part over links is left out, because the program unshare is missing (package util-linux)."
    assert capsys.readouterr().err == left_out + "\n"


def setting(demo, folder, words, sent, digest="a" * 64, **seconds):
    """A setting of two workers, as they leave it: two rounds of two steps, half of each waiting."""
    folder.mkdir()
    each = {
        name: {
            "rounds": [[[took, took / 2]] * 2, [[took * 2, took]] * 2],
            "sent": sent,
            "steps": 6,
            "digest": "b" * 64 if name == "gloo" else digest,
            "accuracy": 0.9,
            "algorithm": None if name == "gloo" else "radix",
        }
        for name, took in seconds.items()
    }
    for rank in range(2):
        (folder / f"rank{rank}.json").write_text(json.dumps(each))
    for name in seconds:
        numpy.save(folder / f"{name}.npy", numpy.full(10, 1 if name == "gloo" else 1 + 1e-6, numpy.float32))
    made = demo.results.Setting(words, words, folder, list(seconds), 4)
    made.read(2)
    return made


def test_the_table_has_medians_and_speeds_beside_gloo(demo, tmp_path):
    settings = [
        setting(demo, tmp_path / "a", "here", None, gloo=0.1, herringbone=0.05),
        setting(demo, tmp_path / "b", "there", 2.5e6, gloo=0.1, herringbone=0.1, reducers=0.08),
    ]
    head, *lines = demo.results.table(settings)
    assert lines[:7] == [
        "here",
        "  Gloo                      150.0     75.0                              bbbbbbbb",
        "  Herringbone                75.0     37.5  2.00 (2.00..2.00)           aaaaaaaa",
        "there",
        "  Gloo                      150.0     75.0                         2.5  bbbbbbbb",
        "  Herringbone               150.0     75.0  1.00 (1.00..1.00)      2.5  aaaaaaaa",
        "  Herringbone, 4 reducers   120.0     60.0  1.25 (1.25..1.25)      2.5  aaaaaaaa",
    ]
    assert max(map(len, [head, *lines])) <= 80
    said, agree = demo.results.facts(settings)
    assert agree and said[0].startswith("Herringbone: the same bits in all 6 copies of 10 parameters after 6 steps")
    assert said[2].endswith("has the same bits.")
    drawn = demo.picture.picture(settings, said, None, MACHINE)
    picture_rules.check(drawn)
    assert "1.25 × Gloo" in "".join(xml.fromstring(drawn).itertext())


def test_bits_that_differ_are_said_and_shown(demo, tmp_path):
    settings = [
        setting(demo, tmp_path / "a", "here", None, gloo=0.1, herringbone=0.1),
        setting(demo, tmp_path / "b", "there", 1e6, "c" * 64, gloo=0.1, herringbone=0.1),
    ]
    said, agree = demo.results.facts(settings)
    assert not agree
    assert "DIFFERENT BITS" in said[0]


def test_a_sum_that_is_not_gloos_is_said(demo, tmp_path):
    one = setting(demo, tmp_path / "a", "here", None, gloo=0.1, herringbone=0.1)
    one.parameters["herringbone"] += 0.1
    said, agree = demo.results.facts([one])
    assert not agree
    assert "DIFFERS FROM Gloo" in said[1]
    assert xml.fromstring(demo.picture.picture([one], said, "Left out.", MACHINE)) is not None
