"""The demo, cut short: what `make demo` says, and the picture that it draws."""

import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_one_epoch_gives_the_same_bits_and_draws_them(tmp_path):
    pytest.importorskip("torch")
    report = tmp_path / "report.svg"
    command = [sys.executable, ROOT / "demo" / "run.py", "--workers", "2", "--reducers", "1", "--epochs", "1"]
    done = subprocess.run([*command, "--report", report], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The same bits on all 2 ranks" in done.stdout
    assert "Equal to the same training through Gloo" in done.stdout
    assert done.stdout.rstrip().endswith(str(report))
    assert xml.parse(report).getroot().tag.endswith("svg")
