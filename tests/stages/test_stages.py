"""The stages of tests/run.py: none passes with nothing checked, each test is in one, and what they leave out is named."""

import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
specification = importlib.util.spec_from_file_location("stages_run", ROOT / "tests" / "run.py")
run = importlib.util.module_from_spec(specification)
specification.loader.exec_module(run)
MAKEFILE = (ROOT / "Makefile").read_text()
NO_CHECKS = {
    "help",
    "program",
    "capi",
    "nccl-plugin",
    "check",
    "test",
    "full",
    "ci",
    "reference",
    "figures",
    "browser-setup",
    "fmt",
    "clean",
}
"""Targets that make something, or run stages themselves."""
TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
"""The targets that `make help` lists."""


def printing(text, code=0):
    """A command that prints this and ends so."""
    program = f"import sys; sys.stdout.buffer.write({text.encode(errors='surrogateescape')!r}); sys.exit({code})"
    return shlex.join([sys.executable, "-c", program])


def files(*folders):
    """All files there that belong to the tree."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    made = re.compile(r"(^|/)(__pycache__|target|\.\w+)/|\.so$")  # what git ignores
    return [path for path in found if not made.search(str(path.relative_to(ROOT)))]


def test_modules_of_tests_have_names_of_their_own():
    """One pytest runs them all, and Python knows one module of a name: the second of a name would not be run."""
    names = [path.name for path in files("tests", "python/tests") if re.fullmatch(r"test_\w+\.py|conftest\.py", path.name)]
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("command", "count", "counts", "said"),
    [
        (printing("2 passed, 1 skipped in 1s"), run.pytest_counts, (2, 0, 1), None),
        (printing("1 passed, 1 failed in 1s", 1), run.pytest_counts, (1, 1, 0), "1 passed, 1 failed"),
        (printing("3 passed in 1s", 1), run.pytest_counts, (3, 1, 0), "exit code 1"),
        (
            printing("running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored;"),
            run.cargo_test_counts,
            (0, 1, 0),
            "Nothing",
        ),
        (printing("3 skipped in 1s"), run.pytest_counts, (0, 1, 3), "Nothing has passed"),
        (printing("3 passed in 1s\na word behind the last line"), run.pytest_counts, (0, 1, 0), "Nothing has passed"),
        ("no-such-program --check", None, (0, 1, 0), "No such file or directory: 'no-such-program'"),
        (printing("\udcff 1 passed in 1s"), run.pytest_counts, (1, 0, 0), None),
    ],
)
def test_a_stage_passes_only_if_something_has(command, count, counts, said, capsys):
    stage = run.Stage("a stage", command, count)
    assert stage.run() == counts
    assert (not stage.failures) if said is None else any(said in line for line in stage.failures), stage.failures
    assert f"<== a stage: {run.summary(counts)}" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "counts"), [(0, (1, 0, 0)), (1, (0, 1, 0)), (run.MISSING, (0, 0, 1))])
def test_what_lacks_a_tool_is_skipped_and_says_which(code, counts):
    tool = run.Tool(run.rust, "deny")
    tool.command = shlex.split(printing("+ cargo\nnot checked: cargo-deny is missing", code))
    assert tool.run() == counts
    assert tool.missing == ("not checked: cargo-deny is missing" if code == run.MISSING else "")


def test_stages_can_be_named_and_chosen(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "ci", "--list", "--only", "types", "lints"])
    run.main()
    assert capsys.readouterr().out.splitlines() == ["lints", "Python's lints", "types"]
    monkeypatch.setattr(sys, "argv", ["run.py", "ci", "--only", "no such stage"])
    with pytest.raises(SystemExit, match="there are\n  format\n"):
        run.main()


@pytest.mark.parametrize("wanted", ["check", "test", "ci", "full"])
def test_stages_that_failed_can_be_named_in_the_end(wanted):
    together, after = run.stages(wanted)
    assert all([*stages] == [*stages] for stages in [*together, after])


def test_nothing_begins_after_ctrl_c(monkeypatch):
    begun, runs_beside, Stage = [], threading.Event(), run.Stage

    class Pressed(Stage):
        def run(self):
            assert runs_beside.wait(60)
            raise KeyboardInterrupt

    class Beside(Stage):
        def run(self):
            begun.append(self.title)
            runs_beside.set()
            assert run.INTERRUPTED.wait(60)
            return 1, 0, 0

    monkeypatch.setattr(run, "INTERRUPTED", threading.Event())
    monkeypatch.setattr(run, "stages", lambda _: ([[Pressed("one", "")], [Beside("another", ""), Beside("next", "")]], []))
    monkeypatch.setattr(sys, "argv", ["run.py", "test"])
    with pytest.raises(SystemExit, match="Ctrl-C"):
        run.main()
    assert begun == ["another"]


@pytest.mark.parametrize("title", ["Python tests", "more Python tests"])
def test_every_test_in_python_is_in_a_stage(title):
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    tests = [path for path in files(*folders) if path.match("test_*.py")]
    [stage] = [stage for stages in run.stages("ci")[0] for stage in stages if stage.title == title]
    collected = {ROOT / word for word in stage.command if (ROOT / word).is_dir()} - {ROOT}
    assert len(tests) > 50 and [test for test in tests if not collected & {*test.parents}] == []


def test_every_target_of_make_is_a_stage_or_named():
    stages = {target.title.split()[1] for target in run.targets()}
    named = {name for text in run.UNCHECKED for name in re.findall(r"[a-z-]+", text) if name in TARGETS}
    assert stages <= TARGETS and stages | named | NO_CHECKS == TARGETS
    [phony] = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)[:1]
    assert set(phony.split()) >= TARGETS


def test_contributing_names_every_target_of_make():
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text()))
    assert TARGETS - named - {"help", "clean"} == set() and len(TARGETS) > 50


def test_a_wheel_is_built_again_if_what_is_in_it_changes():
    ask = ["make", "--no-print-directory", "--eval", "listed:; @echo $(WHEEL_SOURCES)", "listed"]
    asked = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True)
    not_in_it = {"tests", "benches", "proptest-regressions", "capi", "nccl-plugin"}
    parts = {str(path.relative_to(ROOT)) for path in files("python", "crates") if not not_in_it & {*path.relative_to(ROOT).parts}}
    prose = {part for part in parts if part.endswith(".md") or "LICENSE" in part}
    assert len(parts) > 200 and parts - prose - {*asked.stdout.split()} == set()
