"""The stages of `make sanitize`: what runs under which tool, and what its output says."""

from __future__ import annotations

import os
import pathlib
import platform
import re
import subprocess
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]

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


SYS = "-p herringbone-sys --lib --test ring --test kernels --test refused_folds --test fork"
SUITE = "-p herringbone --test suite"
MODULES = "region span plain"

STAGES = [
    sanitized("address sanitizer", "address", "`sys`: kernels, rings, sockets, memory, forks", SYS),
    sanitized("address sanitizer", "address", "`herringbone`: ranks as threads, all transports", SUITE),
    sanitized("thread sanitizer", "thread", "`sys`: kernels, rings, sockets, memory", "-p herringbone-sys --lib --test ring"),
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
            done = subprocess.run(stage.command.split(), cwd=ROOT, env=environment, stdout=log, stderr=log, timeout=LIMIT_SECONDS)
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
