"""A run of a part writes no record: that would say less than the whole one's."""

import importlib.util
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program(path):
    """A module of a program, by itself."""
    specification = importlib.util.spec_from_file_location(path.replace("/", "_"), ROOT / path / "run.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def conformance(patch, folder):
    run = program("tests/conformance")
    patch.setattr("importlib.metadata.version", lambda _: "2.15.0")
    patch.setattr(run.Run, "start", lambda *_: None)
    patch.setattr(run, "all_names", lambda: ["test_send"])
    patch.setattr(run, "gloos", lambda *_: {2: set(), 3: set(), 4: set()})
    return run, []


def horovod(patch, folder):
    run = program("tests/conformance_horovod")
    patch.setattr(run, "version", lambda _: "2.15.0")
    patch.setattr(run.Run, "start", lambda *_: None)
    for file in run.FILES:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    return run, [str(folder)]


def matrix(patch, folder):
    run = program("tests/matrix")

    class Version:
        number, outcomes = "2.15.0", {}

        def __init__(self, python):
            pass

        def run(self, wanted):
            pass

    patch.setattr(run, "Version", Version)
    patch.setattr(run, "environment", lambda version: version)
    patch.setattr(run, "wheel", lambda: pathlib.Path("herringbone.whl"))
    patch.setattr(run.importlib.metadata, "version", lambda _: "0.1.0")
    return run, []


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        (conformance, ["--select=test_s*", "--world-size=2", "--backend=replaced", "--checks=on"]),
        (horovod, ["--np=2", "--only=test_timeline"]),
        (matrix, ["--select=DDP", "--torch=own"]),
    ],
)
def test_only_a_whole_run_writes_the_record(program, parts, monkeypatch, tmp_path, capsys):
    run, words = program(monkeypatch, tmp_path)
    record = tmp_path / "record.md"
    for part in [*parts, None]:
        monkeypatch.setattr(sys, "argv", ["run.py", *words, "--record", str(record), *([part] if part else [])])
        try:
            run.main()
        except SystemExit as ended:
            assert ended.code == 0
        assert record.exists() == (part is None), part
