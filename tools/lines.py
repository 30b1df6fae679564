"""Counts lines of code, without blank lines and comments, separately in the product and in its tests.

Usage: lines.py [REVISION ...]; by default the work tree. Several revisions are compared in columns. In Rust a module under
`#[cfg(test)]` at the end of a file belongs to the tests.
"""

import pathlib
import re
import subprocess
import sys
from collections import Counter

ROOT = pathlib.Path(__file__).resolve().parent.parent
TESTS = re.compile(r"(^|/)(tests|benches|lab|testdata|fuzz)/|(^|/)tests?\.rs$|^crates/herringbone/src/world[/.]|/test_\w+\.py$")
UNIT_TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#\[[^\n]*\n)*mod \w+ \{", re.MULTILINE)
AREAS = (
    "crates/core",
    "crates/sys",
    "crates/herringbone",
    "crates/admin",
    "crates/cli",
    "crates/capi",
    "crates/nccl-plugin",
    "python/src",
    "python/herringbone",
)


def git(*words):
    """git's output."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def sources(revision):
    """Paths and texts of a revision's sources, or of the work tree's."""
    listed = git("ls-tree", "-r", "--name-only", revision) if revision else git("ls-files")
    for path in listed.splitlines():
        if not path.endswith((".rs", ".py")):
            continue
        if revision:
            yield path, git("show", f"{revision}:{path}")
        elif (ROOT / path).exists():
            yield path, (ROOT / path).read_text()


def lines(text, comment):
    """How many lines have code."""
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith(comment))


def counted(revision):
    """Lines per area, and of tests."""
    counts = Counter()
    for path, text in sources(revision):
        comment = "//" if path.endswith(".rs") else "#"
        area = next((area for area in AREAS if path.startswith(area + "/")), "other")
        if TESTS.search(path):
            counts["tests"] += lines(text, comment)
            continue
        found = UNIT_TESTS.search(text)
        code, tests = (text[: found.start()], text[found.start() :]) if found else (text, "")
        counts[area] += lines(code, comment)
        counts["tests"] += lines(tests, comment)
    return counts


def main():
    revisions = sys.argv[1:] or [""]
    columns = [counted(revision) for revision in revisions]
    print(f"{'':20}" + "".join(f"{revision[:10] or 'work tree':>12}" for revision in revisions))
    for area in (*AREAS, "other"):
        print(f"{area:20}" + "".join(f"{counts[area]:12,}" for counts in columns))
    products = [sum(counts[area] for area in (*AREAS, "other")) for counts in columns]
    print(f"{'in all':20}" + "".join(f"{product:12,}" for product in products))
    print(f"{'tests':20}" + "".join(f"{counts['tests']:12,}" for counts in columns))


if __name__ == "__main__":
    main()
