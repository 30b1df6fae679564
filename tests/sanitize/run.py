"""Runs tests under the address sanitizer, the thread sanitizer and Miri, and writes what they found; `make sanitize` calls it.

It needs the nightly toolchain: rustup toolchain install nightly --component miri --component rust-src. The exit code is 0 if
every stage passed.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from machine import machine
from stages import LOG, STAGES, Outcome, run


def table(outcomes: list[Outcome]) -> list[str]:
    head = "| tool | tests | passed | failed | found | seconds |"
    return [head, "|---|---|---|---|---|---|", *(outcome.row() for outcome in outcomes)]


def page(outcomes: list[Outcome]) -> str:
    nightly = subprocess.run(["rustc", "+nightly", "--version"], capture_output=True, text=True).stdout.strip()
    facts = {"date": time.strftime("%Y-%m-%d"), "toolchain": nightly, **machine()}
    lines = [
        "# Sanitizers and Miri",
        "Findings of the tests with each access to memory checked. Seconds include the build. The thread sanitizer does not know that",
        "two ranks map the same shared memory at two addresses: `crates/sys/tests/loom.rs` checks that.",
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
