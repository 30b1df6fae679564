"""Features of torch.distributed on Herringbone, with several versions of torch and one wheel; `make matrix` calls it.

It makes an environment for each version below target/matrix, with the wheel that `make setup` has built; the newest
torch is that of this Python. Every feature is a job of two ranks that checks its values. The outcomes go to a table:
ok, not in torch (that version lacks what the feature needs), not here (this machine does), refused (an error says that
it cannot be had), failed, hung. The exit code is 0 if every outcome is the one that EXPECTED says.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "bench"))

from text_tables import aligned as table

FOLDER = ROOT / "target" / "matrix"
OLDER = ("2.10.0", "2.13.0", "2.14.1")
"""The oldest that Herringbone takes, the last whose groups cannot have a backend of Python, and the one before the newest."""
UNUSED = re.compile(r"triton|cuda-bindings|nvidia-cuda-nvrtc|nvidia-nvtx")
"""What torch for GPUs asks for and does not need to be imported; the other libraries it does need."""
EXPECTED = {
    "monitored_barrier": ("2.14", "refused", "only implemented for GLOO"),
    "new_group: sort_ranks=False": ("2.12", "not in torch", "sort_ranks"),
    "split_group": ("2.15", "refused", "No device associated"),
    "cpu:herringbone,cuda:gloo": ("2.14", "not in torch", "no backend"),
    'get_backend in Gloo\'s place says "gloo"': ("2.14", "not in torch", "herringbone"),
}
"""What is not ok with versions of torch before one: the outcome, and a part of its reason. docs/torch-versions.md
explains each of them."""
OUTCOMES = ("ok", "not in torch", "not here", "refused", "failed", "hung")


class NoEnvironment(Exception):
    """A version cannot be tried; the text says why, and what to do."""


def run(*command: object, why: str) -> str:
    """What a command says; its failure is an error that begins with `why`."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        last = " ".join((done.stderr or done.stdout).split()[-60:])
        raise NoEnvironment(f"{why}: {last}")
    return done.stdout


def wheel() -> pathlib.Path:
    """The one wheel that all versions get."""
    found = sorted((ROOT / "target" / "wheels").glob("herringbone-*-abi3-*.whl"))
    if len(found) != 1:
        raise NoEnvironment(f"target/wheels has {len(found)} abi3 wheels of Herringbone and not one: run `make setup`")
    return found[0]


def environment(version: str) -> pathlib.Path:
    """The Python with this torch, made where it is not there yet, and with the wheel of now."""
    folder = FOLDER / f"torch-{version}"
    python, stamp = folder / "bin" / "python", folder / "complete"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        tell(f"torch {version}: downloading about 3 GB to {folder.relative_to(ROOT)}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        run(sys.executable, ROOT / "tools" / "environment.py", folder, why="no virtual environment")
        pip = [python, "-m", "pip", "install", "--quiet"]
        why = f"torch {version} cannot be installed (6 GB are needed, and a package index)"
        run(*pip, "--no-deps", f"torch=={version}", why=why)
        run(*pip, "numpy", *needed(python), why=why)
        stamp.touch()
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--force-reinstall",
        "--no-deps",
        "--no-index",
        wheel(),
        why=f"the wheel cannot be installed beside torch {version}",
    )
    return python


def needed(python: pathlib.Path) -> list[str]:
    """What the installed torch has to have beside it."""
    code = "import importlib.metadata as m; print(*m.requires('torch'), sep='\\n')"
    lines = run(python, "-c", code, why="torch does not say what it needs").splitlines()
    requirements = [line for line in lines if "extra ==" not in line and not UNUSED.match(line)]
    return requirements


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Version:
    """The outcomes with one torch."""

    def __init__(self, python: pathlib.Path | str) -> None:
        self.python = str(python)
        code = "import torch, herringbone.torch; print(torch.__version__.split('+')[0])"
        self.number = run(self.python, "-c", code, why=f"{python} cannot import torch and Herringbone").strip()
        self.outcomes: dict[str, tuple[str, str]] = {}

    def features(self) -> list[tuple[str, dict[str, str]]]:
        """Titles, and the variables that each needs."""
        return json.loads(run(self.python, HERE / "worker.py", "--list", why=f"torch {self.number}: no list"))

    def run(self, wanted: str) -> None:
        """Run the features whose titles have `wanted` in them, together where their variables are the same."""
        features = [(title, variables) for title, variables in self.features() if wanted in title]
        if not features:
            raise NoEnvironment(f"no feature has {wanted!r} in its title")
        self._run(features)
        if sys.stderr.isatty():
            self._progress(len(features), "")
            tell("")
        # In the order of the table.
        self.outcomes = {title: self.outcomes[title] for title, _ in features}

    def _run(self, features: list[tuple[str, dict[str, str]]]) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in ("TORCH_DISTRIBUTED_DEBUG", "PYTHONPATH")}
        log, number = FOLDER / f"torch-{self.number}.log", len(features)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (
            log.open("a") as output,
            subprocess.Popen(
                [self.python, str(HERE / "worker.py"), json.dumps(features)],
                env=kept,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            ) as process,
        ):
            for line in process.stdout:
                title, outcome, why, _ = json.loads(line)
                if outcome == "failed" and is_expected(title, self.number, "refused", why):
                    outcome = "refused"
                self.outcomes[title] = (outcome, why)
                self._progress(number, title)
                if outcome in ("failed", "hung"):
                    tell(f"\r{title}: {outcome}: {why[:200]} (more in {log.relative_to(ROOT)})")
        missing = [title for title, _ in features if title not in self.outcomes]
        if missing:
            raise NoEnvironment(f"torch {self.number}: the worker ended before {missing[0]!r}: see {log}")

    def _progress(self, number: int, title: str) -> None:
        counts = [f"{self.count(kind)} {kind}" for kind in OUTCOMES]
        line = f"torch {self.number}: {len(self.outcomes)} of {number}: {', '.join(counts)}"
        if sys.stderr.isatty() or len(self.outcomes) in (number, number // 2):
            print(f"\r{line}  {title:50.50}", end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)

    def count(self, kind: str) -> int:
        """How many features ended so."""
        return sum(outcome == kind for outcome, _ in self.outcomes.values())


def page(versions: list[Version]) -> str:
    """The record, in Markdown."""
    titles = list(versions[-1].outcomes)
    rows = [[title, *(version.outcomes[title][0] for version in versions)] for title in titles]
    lines = table(["feature", *(version.number for version in versions)], rows)
    reasons = [
        [title, version.number, outcome, why]
        for title in titles
        for version in versions
        for outcome, why in [version.outcomes[title]]
        if outcome != "ok"
    ]
    if reasons:
        lines += ["", *table(["not ok", "torch", "outcome", "why"], reasons)]
    return "\n".join(lines) + "\n"


def is_expected(title: str, version: str, outcome: str, why: str) -> bool:
    """Whether EXPECTED says so; of what it does not name, only ok is expected, or that the machine lacks something."""
    first, expected, reason = EXPECTED.get(title, ("0", "ok", ""))
    if numbers(version) < numbers(first):
        return outcome == expected and reason in why
    return outcome in ("ok", "not here")


def numbers(version: str) -> tuple[int, ...]:
    """A version that compares as such."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def surprises(versions: list[Version]) -> list[str]:
    """The outcomes that nobody expects."""
    return [
        f"torch {version.number}: {title}: {outcome} {why}"
        for version in versions
        for title, (outcome, why) in version.outcomes.items()
        if not is_expected(title, version.number, outcome, why)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--torch", action="append", help=f"a version, or `own`, of {', '.join(OLDER)}, own; the table stays as it was"
    )
    parser.add_argument("--select", default="", help="only features whose titles have this in them; the table stays as it was")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the table")
    options = parser.parse_args()
    began, versions = time.monotonic(), []
    try:
        for name in options.torch or [*OLDER, "own"]:
            versions.append(Version(sys.executable if name == "own" else environment(name)))
            versions[-1].run(options.select)
    except NoEnvironment as error:
        sys.exit(f"matrix: {error}")
    text = page(versions)
    print(text)
    if options.record and not (options.torch or options.select):
        of = f"Herringbone {importlib.metadata.version('herringbone')}, {wheel().name}; {os.cpu_count()} cores"
        head = f"# Features and versions of torch\n{of}, {time.strftime('%Y-%m-%d')}; `make matrix` writes this page."
        options.record.write_text(f"{head} Each row is a job of two ranks that checks its values.\n\n{text}")
    unexpected = surprises(versions)
    tell("\n".join([*unexpected, f"{len(unexpected)} surprises in {time.monotonic() - began:.0f} s"]))
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
