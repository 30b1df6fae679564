"""Makes what a release would publish, and tries it: wheel, sdist, crates, licences; `make packages` calls it.

Every row is a step of `of_wheels` or `of_crates`. A step that this machine cannot do is skipped with its reason. `--record FILE` writes the
table. The last line is "N passed, N failed, N skipped", and the exit code is 0 only if nothing failed.
"""

import argparse
import dataclasses
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

import crates
import wheels

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Row:
    """What came of a step."""

    step: str
    result: str
    says: str


def of_wheels(bench):
    """(name, function) of each step of the Python packages, in order. A function returns what it found, and raises what is wrong."""
    yield "wheel", bench.wheel
    yield "the wheel's oldest system", bench.audit
    yield "sdist", bench.sdist
    yield "a wheel from the sdist", bench.from_sdist
    yield "`twine check --strict`", bench.twine
    yield "`stubtest`", bench.stubtest
    for name, python in wheels.pythons():
        yield f"an empty environment of {name}", lambda python=python: bench.installed(python)
    yield "`HERRINGBONE_REPLACE=horovod`", bench.in_horovods_place
    yield '`pip install "herringbone[torch]"`', bench.with_torch


def of_crates():
    """The same for the crates, which need no wheel."""
    yield "`cargo publish --dry-run`", crates.publish
    yield "licences of all dependencies", crates.licences
    yield "no dependency is withdrawn", crates.yanked
    yield "aarch64", crates.aarch64


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--select", help="only steps whose name has this text")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="herringbone-packages-") as folder:
        bench = wheels.Bench(ROOT, pathlib.Path(folder))
        for name, step in (*of_wheels(bench), *of_crates()):
            if options.select and options.select not in name:
                continue
            began = time.monotonic()
            try:
                row = Row(name, "ok", step())
            except (wheels.Missing, crates.Missing) as why:
                row = Row(name, "skipped", str(why))
            except (AssertionError, OSError, subprocess.SubprocessError, ValueError) as wrong:
                row = Row(name, "failed", str(wrong))
            rows.append(row)
            print(f"{row.step}: {row.result}, {row.says} ({time.monotonic() - began:.0f} s)", flush=True)
    if options.record and not options.select:
        options.record.write_text(page(rows))
    counts = [sum(row.result == result for row in rows) for result in ("ok", "failed", "skipped")]
    print("{} passed, {} failed, {} skipped".format(*counts))
    sys.exit(1 if counts[1] or not counts[0] else 0)


def page(rows):
    """The table of all steps."""
    compiler = subprocess.run(["rustc", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[1]
    lines = [
        "# Packages",
        f"{datetime.date.today()}, {platform.machine()}, Rust {compiler}, {' '.join(platform.libc_ver())}; `make packages` writes this",
        "page. It builds and tries the packages of a release, and publishes nothing.",
        "",
        "| step | result | finding |",
        "|---|---|---|",
    ]

    def tidy(text):
        return re.sub(r"\s+", " ", text.replace("|", "\\|"))[:300]

    lines += [f"| {row.step} | {row.result} | {tidy(row.says)} |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    main()
