"""All checks and tests, in stages; `make test` calls it.

Stages run in two lanes, one beside the other: what Rust's tools do, and the tests in Python, most of which wait for processes.
The output of a stage comes at its end, whole. Every stage runs, also after one that failed. A check that is no test (format,
lints, documentation) counts as one. The last line is the sum: "N passed, N failed, N skipped". The exit code is 0 only if
nothing failed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEXTEST = re.compile(r"Summary .*?\d+ tests? run: (.*)")
CARGO_TEST = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
WORKERS = 3
"""Of pytest: more than there are cores, as tests wait."""
PRINTING, INTERRUPTED = threading.Lock(), threading.Event()
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|timed out)")


class Stage:
    """A command, and how its output is counted (`None`: it passes or fails as a whole)."""

    def __init__(self, title, command, count=None, **environment):
        self.title, self.command, self.count = title, command.split(), count
        self.environment = os.environ | {"CARGO_TERM_COLOR": "never"} | environment

    def run(self):
        """Runs it, and shows its output; returns passed, failed, skipped."""
        say(f"... {self.title}")
        began = time.monotonic()
        done = subprocess.run(
            self.command, cwd=ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        counts = self.count(done.stdout) if self.count else (int(done.returncode == 0), 0, 0)
        if done.returncode != 0 and counts[1] == 0:
            counts = (counts[0], 1, counts[2])
        end = f"<== {self.title}: {told(counts)}, {time.monotonic() - began:.0f} s"
        say(f"\n==> {self.title}: {' '.join(self.command)}\n{done.stdout}{end}")
        return counts


def say(text):
    """Prints it in one piece."""
    with PRINTING:
        print(text, flush=True)


def told(counts):
    """The sum in words."""
    return "{} passed, {} failed, {} skipped".format(*counts)


def cargo_test_counts(output):
    """Over all binaries that cargo ran."""
    found = [tuple(map(int, match)) for match in CARGO_TEST.findall(output)]
    return tuple(map(sum, zip(*found))) if found else (0, 0, 0)


def summary_counts(line):
    """Of a summary such as "3 passed (1 slow), 1 timed out, 2 skipped"."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for number, what in COUNTED.findall(line):
        counts[what if what in counts else "failed"] += int(number)
    return tuple(counts.values())


def nextest_counts(output):
    """Of nextest's summary line."""
    found = NEXTEST.findall(output)
    return summary_counts(found[-1]) if found else (0, 0, 0)


def pytest_counts(output):
    """Of pytest's last line."""
    lines = output.strip().splitlines()
    return summary_counts(lines[-1]) if lines else (0, 0, 0)


def rust():
    """In the order of what they cost, so that a small mistake shows early."""
    yield Stage("format", "cargo fmt --all --check")
    yield Stage("lints", "cargo clippy --workspace --all-targets --quiet -- -D warnings")
    yield Stage(
        "lints of the simulator",
        "cargo clippy --workspace --features herringbone/simulator --bench simulator --quiet -- -D warnings",
    )
    if shutil.which("cargo-nextest"):
        yield Stage("Rust tests", "cargo nextest run --workspace", nextest_counts)
    else:
        yield Stage("Rust tests", "cargo test --workspace --lib --bins --tests", cargo_test_counts)
    yield Stage("Rust examples in the docs", "cargo test --workspace --doc", cargo_test_counts)
    yield Stage("Rust docs", "cargo doc --workspace --no-deps --quiet", RUSTDOCFLAGS="-Dwarnings")
    # With all packages of a release, so that its crates are compiled once for both.
    packages = "-p herringbone -p herringbone-cli -p herringbone-python"
    yield Stage("instructions per operation", f"cargo bench {packages} --bench instructions")


def python():
    """Those that take long come first, so that no worker is left alone with one of them."""
    folders = [f"tests/{name}" for name in ("bench", "faults", "leaks", "docs", "deploy", "matrix", "packages", "sanitize")]
    options = f"-q -ra --rootdir . -p tests.parallel --numprocesses {WORKERS}"
    command = f"{sys.executable} -m pytest {options} python/tests {' '.join(folders)}"
    yield Stage("Python tests", command, pytest_counts)


def lane(stages):
    """The counts of stages that run one after the other; none begins once somebody has pressed Ctrl-C."""
    return [stage.run() for stage in stages if not INTERRUPTED.is_set()]


def main():
    with ThreadPoolExecutor() as threads:
        lanes = [threads.submit(lane, stages) for stages in (rust(), python())]
        try:
            counts = [count for each in lanes for count in each.result()]
        except KeyboardInterrupt:
            INTERRUPTED.set()
            raise
    total = tuple(map(sum, zip(*counts)))
    print(f"\n{told(total)}")
    sys.exit(1 if total[1] else 0)


if __name__ == "__main__":
    main()
