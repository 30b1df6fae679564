"""A Python that has the package, and really has neither torch nor numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import herringbone


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a new environment, in which the package is the one that is tested."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "herringbone").symlink_to(Path(herringbone.__file__).parent)
    return str(folder / "bin" / "python")


def run(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("HERRINGBONE_")}
    return subprocess.run([python, "-B", *words], env=settings, capture_output=True, text=True, timeout=60)


def test_doctor_says_what_to_install(bare: str) -> None:
    for python in (bare, sys.executable):  # the command works in both
        done = subprocess.run(
            [python, "-B", "-m", "herringbone", "doctor", "--json", "--python", bare], capture_output=True, text=True, timeout=60
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        (row,) = [row for row in rows if row.get("check") == "python"]
        assert row["level"] == "warning" and "has no torch, no numpy and herringbone " in row["says"], row
        assert row["command"] == f"{bare} -m pip install 'herringbone[numpy]'", row


@pytest.mark.parametrize(
    "program, extra",
    [
        ("import herringbone.torch", "torch"),
        ("import herringbone.horovod.torch", "torch"),
        ("from herringbone.optim import LocalSGD", "torch"),
        ("from herringbone.optim import factor_broadcast", "torch"),
        ("from herringbone import kvstore; kvstore.create('local')", "numpy"),
        ("import herringbone; herringbone.init(rank=0, size=1, store='127.0.0.1:0').all_reduce([1.0])", "numpy"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(bare: str, program: str, extra: str) -> None:
    done = run(bare, "-c", program)
    assert done.returncode == 1 and f"pip install 'herringbone[{extra}]'" in done.stderr, done.stderr


def test_the_package_and_its_command_need_neither(bare: str) -> None:
    done = run(bare, "-c", "import herringbone; print(herringbone.PeerLostError.__name__, herringbone.__version__)")
    assert done.stdout.split()[0] == "PeerLostError", done.stderr
    assert run(bare, "-m", "herringbone", "settings").returncode == 0
