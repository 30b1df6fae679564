"""All checks and tests, in stages; `make test` calls it.

Every stage runs, also after one that failed. A check that is no test (format, lints, documentation) counts
as one. The last line is the sum: "N passed, N failed, N skipped". The exit code is 0 only if nothing
failed.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEXTEST = re.compile(r"Summary .*?\d+ tests? run: (.*)")
CARGO_TEST = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|timed out)")


class Stage:
    """A command, and how its output is counted (`None`: it passes or fails as a whole)."""

    def __init__(self, title, command, count=None, **environment):
        self.title, self.command, self.count = title, command.split(), count
        self.environment = os.environ | {"CARGO_TERM_COLOR": "never"} | environment

    def run(self):
        """Runs it, showing its output; returns passed, failed, skipped."""
        print(f"\n==> {self.title}: {' '.join(self.command)}", flush=True)
        began, output = time.monotonic(), []
        process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
        passed = process.wait() == 0
        counts = self.count("".join(output)) if self.count else (int(passed), 0, 0)
        if not passed and counts[1] == 0:
            counts = (counts[0], 1, counts[2])
        print(f"<== {self.title}: {told(counts)}, {time.monotonic() - began:.0f} s", flush=True)
        return counts


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


def stages():
    """In the order of what they cost, so that a small mistake shows early."""
    yield Stage("format", "cargo fmt --all --check")
    yield Stage("lints", "cargo clippy --workspace --all-targets --quiet -- -D warnings")
    yield Stage(
        "lints of the simulator",
        "cargo clippy -p herringbone --features simulator --bench simulator --quiet -- -D warnings",
    )
    if shutil.which("cargo-nextest"):
        yield Stage("Rust tests", "cargo nextest run --workspace", nextest_counts)
    else:
        yield Stage("Rust tests", "cargo test --workspace --lib --bins --tests", cargo_test_counts)
    yield Stage("Rust examples in the docs", "cargo test --workspace --doc", cargo_test_counts)
    yield Stage("Rust docs", "cargo doc --workspace --no-deps --quiet", RUSTDOCFLAGS="-Dwarnings")
    loom = {"RUSTFLAGS": "--cfg loom", "CARGO_TARGET_DIR": str(ROOT / "target" / "loom")}
    yield Stage(
        "models of shared memory",
        "cargo test -p herringbone-sys --test loom --release",
        cargo_test_counts,
        **loom,
    )
    yield Stage("instructions per operation", "cargo bench -p herringbone --bench instructions")
    yield Stage("Python tests", f"{sys.executable} -m pytest -q -ra python/tests tests/bench tests/deploy tests/docs tests/faults tests/leaks tests/matrix tests/packages tests/sanitize", pytest_counts)


def main():
    counts = [stage.run() for stage in stages()]
    total = tuple(map(sum, zip(*counts)))
    print(f"\n{told(total)}")
    sys.exit(1 if total[1] else 0)


if __name__ == "__main__":
    main()
