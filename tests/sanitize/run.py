"""Runs tests under the address sanitizer, the thread sanitizer and Miri, and writes what they found; `make sanitize` calls it.

It needs the nightly toolchain: rustup toolchain install nightly --component miri --component rust-src. The exit code is 0 if
every stage passed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from machine import machine

LOG = ROOT / "target" / "sanitize.log"
TARGET = f"{platform.machine()}-unknown-linux-gnu"
LIMIT_SECONDS = 3600
FINDINGS = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|error: Undefined Behavior|panicked at")


@dataclass(frozen=True)
class Stage:
    """Tests that run under one tool."""

    tool: str
    what: str
    command: str
    environment: dict[str, str] = field(default_factory=dict)


def sanitized(tool: str, kind: str, what: str, tests: str, **options: str) -> Stage:
    # The standard library is compiled as well, where its own accesses count.
    more = "-Zbuild-std " if kind == "thread" else ""
    command = f"cargo +nightly test {more}--target {TARGET} {tests}"
    return Stage(tool, what, command, {"RUSTFLAGS": f"-Zsanitizer={kind} -Cforce-frame-pointers=yes", **options})


def miri(what: str, tests: str) -> Stage:
    # The tests ask for numbers of processes and for files of the system.
    flags = {"MIRIFLAGS": "-Zmiri-disable-isolation", "PROPTEST_CASES": "2"}
    return Stage("Miri", what, f"cargo +nightly miri test {tests}", flags)


SYS = "-p herringbone-sys --lib --test kernels --test refused_folds --test fork"
SUITE = "-p herringbone --test suite"
MODULES = "region span plain heap"

STAGES = [
    sanitized("address sanitizer", "address", "`sys`: kernels, rings, sockets, memory, forks", SYS),
    sanitized("address sanitizer", "address", "`herringbone`: ranks as threads, all transports", SUITE),
    sanitized("thread sanitizer", "thread", "`sys`: kernels, rings, sockets, memory", "-p herringbone-sys --lib"),
    sanitized("thread sanitizer", "thread", "`herringbone`: ranks as threads, all transports", SUITE),
    miri("`core`: the formats and state machines of sessions", "-p herringbone-core --lib -- session::"),
    miri(f"`sys`: {', '.join(MODULES.split())}", f"-p herringbone-sys --lib -- {MODULES}"),
    miri("`sys`: the kernels beside their definition", "-p herringbone-sys --test kernels"),
]


@dataclass(frozen=True)
class Outcome:
    """What a stage came to."""

    stage: Stage
    passed: int
    failed: int
    findings: int
    seconds: float
    note: str

    def is_right(self) -> bool:
        return self.passed > 0 and not (self.failed or self.findings or self.note)

    def row(self) -> str:
        found = self.note or ("nothing" if not self.findings else f"{self.findings} reports")
        return f"| {self.stage.tool} | {self.stage.what} | {self.passed} | {self.failed} | {found} | {self.seconds:.0f} |"


def run(stage: Stage) -> Outcome:
    environment = {**os.environ, **stage.environment, "CARGO_TARGET_DIR": str(ROOT / "target" / "sanitize")}
    began, note = time.monotonic(), ""
    with LOG.open("a+") as log:
        start = log.tell()
        log.write(f"\n== {stage.tool}: {stage.command}\n")
        log.flush()
        try:
            done = subprocess.run(
                stage.command.split(), cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=LIMIT_SECONDS
            )
            note = "" if done.returncode == 0 else f"exit code {done.returncode}, see {LOG.relative_to(ROOT)}"
        except subprocess.TimeoutExpired:
            note = f"not over after {LIMIT_SECONDS} s"
        log.seek(start)
        return judged(stage, log.read(), time.monotonic() - began, note)


def judged(stage: Stage, text: str, seconds: float, note: str) -> Outcome:
    """What a stage's output says."""
    results = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", text)
    passed, failed = (sum(int(result[at]) for result in results) for at in (0, 1))
    return Outcome(stage, passed, failed, len(FINDINGS.findall(text)), seconds, note)


def table(outcomes: list[Outcome]) -> list[str]:
    head = "| tool | tests | passed | failed | found | seconds |"
    return [head, "|---|---|---|---|---|---|", *(outcome.row() for outcome in outcomes)]


def page(outcomes: list[Outcome]) -> str:
    nightly = subprocess.run(["rustc", "+nightly", "--version"], capture_output=True, text=True).stdout.strip()
    facts = {"date": time.strftime("%Y-%m-%d"), "toolchain": nightly, **machine()}
    lines = [
        "# Sanitizers and Miri",
        "What the tests find if each access to memory is looked at. Seconds include the building. Shared memory that two ranks",
        "map at two addresses is two memories to the thread sanitizer: the models of `crates/sys/tests/loom.rs` check that.",
        "",
        "`make sanitize` writes this page.",
        "",
        *table(outcomes),
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--select", metavar="TEXT", default="", help="only stages with this in their tool or tests")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the table, if all stages were run")
    options = parser.parse_args()
    if subprocess.run(["cargo", "+nightly", "miri", "--version"], capture_output=True).returncode:
        sys.exit("nightly is needed: rustup toolchain install nightly --component miri --component rust-src")
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    chosen = [stage for stage in STAGES if options.select in f"{stage.tool} {stage.what} {stage.command}"]
    outcomes = []
    for stage in chosen:
        outcomes.append(run(stage))
        print(outcomes[-1].row(), flush=True)
    if options.record and len(chosen) == len(STAGES):
        options.record.write_text(page(outcomes))
    sys.exit(0 if outcomes and all(outcome.is_right() for outcome in outcomes) else 1)


if __name__ == "__main__":
    main()
