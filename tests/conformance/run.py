"""torch's own suite for process groups, on Herringbone and beside Gloo; `make conformance` calls it.

The suite is torch/testing/_internal/distributed/distributed_test.py of the installed torch. Each of its methods runs
on Herringbone under its own name and in Gloo's place (HERRINGBONE_REPLACE=gloo), at several world sizes, in processes
in which torch's Gloo group cannot be constructed. What Gloo passes is in testdata/conformance.json for the torch of
that file; for another one Gloo runs first. The exit code is 0 if everything that Gloo passes passes in its place, but
for what EXPECTED says, and if nothing failed or hung elsewhere.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
GLOO = HERE.parent.parent / "testdata" / "conformance.json"
BACKENDS = ("replaced", "herringbone")
TITLES = {"replaced": "in Gloo's place", "herringbone": "under its own name", "gloo": "Gloo"}
OUTCOMES = ("passed", "failed", "skipped", "timed out")
EXPECTED = {
    "test_ddp_logging_data_cpu": "it asks which interfaces and how many threads Gloo has",
}
"""What fails in Gloo's place, and why it may."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    part = parser.add_argument_group("a part of the suite; the record stays as it was").add_argument
    part("--world-size", type=int, action="append", help="2, 3 and 4 if it is not given")
    part("--backend", choices=[*BACKENDS, "gloo"], action="append", help="both of Herringbone's")
    part("--checks", choices=["on", "off", "both"], default="both", help="of the profiler's events")
    part("--select", action="append", default=[], help="methods, with wildcards")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one method")
    parser.add_argument("--json", type=pathlib.Path, help="a file for all outcomes")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the tables")
    parser.add_argument("--renew-gloo", action="store_true", help=f"run Gloo, too, and write {GLOO.name}")
    return parser.parse_args()


class Run:
    """The outcomes of one backend at one world size."""

    def __init__(self, backend, size, checks):
        self.backend, self.size, self.checks = backend, size, checks
        self.rows = []

    def start(self, names, seconds):
        """Runs the methods, all without `names`; shows each that does not pass."""
        place = [self.backend, str(self.size), self.checks, str(seconds)]
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), *place, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        methods = json.loads(process.stdout.readline() or "{}").get("methods", [])
        for line in process.stdout:
            self.rows.append(json.loads(line))
            self.progress(len(methods))
        if process.wait() != 0 or len(self.rows) != len(methods) or not methods:
            raise SystemExit(f"the worker of {self.title()} ended after {len(self.rows)} of {len(methods)} methods")
        print(f"\r{self.title()}: {self.summary():60}", file=sys.stderr, flush=True)

    def progress(self, number):
        row = self.rows[-1]
        if row["outcome"] in ("failed", "timed out"):
            print(f"\r{row['name']} {row['outcome']}: {row['reason'][:120]}", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{self.title()}: {len(self.rows)} of {number}", end="", file=sys.stderr, flush=True)

    def title(self):
        return f"{TITLES[self.backend]}, {self.size} ranks, profiler's checks {self.checks}"

    def names(self, *outcomes):
        return {row["name"] for row in self.rows if row["outcome"] in outcomes}

    def summary(self):
        return ", ".join(f"{len(self.names(outcome))} {outcome}" for outcome in OUTCOMES)


def gloos(options, sizes, version):
    """What Gloo passes, by world size; runs it where that is not known."""
    known = json.loads(GLOO.read_text()) if GLOO.exists() else {}
    passed = {} if options.renew_gloo else dict(known.get("passed", {}))
    if known.get("torch") != version and not options.renew_gloo:
        passed = {}
    for size in sizes:
        if str(size) not in passed:
            run = Run("gloo", size, "on")
            run.start([], options.timeout)
            passed[str(size)] = sorted(run.names("passed"))
    if options.renew_gloo:
        GLOO.write_text(json.dumps({"torch": version, "passed": passed}, indent=1) + "\n")
    return {int(size): set(names) for size, names in passed.items()}


def all_names():
    """The suite's methods, as its source has them: nothing of it is imported here."""
    import ast
    import importlib.util

    folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    source = (folder / "testing/_internal/distributed/distributed_test.py").read_text()
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return sorted({node.name for node in functions if node.name.startswith("test_")})


def tables(runs, gloo, version):
    """The outcomes in Markdown."""
    lines = [
        f"torch {version}: its suite on Herringbone; torch's Gloo group could not be constructed in the processes.",
        "",
        "| place | ranks | profiler's checks | passed | failed | skipped | timed out | of Gloo's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        of_gloos = gloo[run.size] & {row["name"] for row in run.rows}
        numbers = [str(len(run.names(outcome))) for outcome in OUTCOMES]
        compared = f"{len(run.names('passed') & of_gloos)} / {len(of_gloos)}"
        lines.append("| " + " | ".join([TITLES[run.backend], str(run.size), run.checks, *numbers, compared]) + " |")
    reasons = {}
    for run in runs:
        for row in run.rows:
            if row["outcome"] in ("failed", "timed out"):
                places = reasons.setdefault((row["name"], row["outcome"]), (row["reason"], {}))[1]
                places.setdefault(TITLES[run.backend], []).append(f"{run.size}/{run.checks}")
    if reasons:
        lines += ["", "| does not pass | where, by ranks/checks | why |", "|---|---|---|"]
    for (name, outcome), (reason, places) in sorted(reasons.items()):
        why = EXPECTED.get(name, reason).replace("|", "\\|")[:160]
        where = "; ".join(f"{title}: {', '.join(found)}" for title, found in places.items())
        lines.append(f"| {name} ({outcome}) | {where} | {why} |")
    return "\n".join(lines) + "\n"


def wrong(runs, gloo):
    """What should have passed and has not."""
    found = set()
    for run in runs:
        found |= run.names("failed", "timed out")
        if run.backend == "replaced":
            found |= (gloo[run.size] & {row["name"] for row in run.rows}) - run.names("passed")
    return sorted(found - EXPECTED.keys())


def main():
    options = arguments()
    sizes = options.world_size or [2, 3, 4]
    from importlib.metadata import version

    began, torch = time.monotonic(), version("torch")
    names = []
    if options.select:
        names = [name for name in all_names() if any(fnmatch.fnmatch(name, want) for want in options.select)]
        if not names:
            raise SystemExit(f"no method of the suite is called {' or '.join(options.select)}")
    gloo = gloos(options, sizes, torch)
    runs = []
    for backend in options.backend or BACKENDS:
        for size in sizes:
            for checks in ("on", "off") if options.checks == "both" else (options.checks,):
                runs.append(Run(backend, size, checks))
                runs[-1].start(names, options.timeout)
    text = tables(runs, gloo, torch)
    print(text)
    if options.record and not (options.world_size or options.backend or options.select or options.checks != "both"):
        machine = f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}; `make conformance` writes this page."
        options.record.write_text(f"# Conformance: torch's own suite\n{machine}\n\n{text}")
    if options.json:
        outcomes = [{"backend": r.backend, "size": r.size, "checks": r.checks, "rows": r.rows} for r in runs]
        options.json.write_text(json.dumps(outcomes, indent=1))
    failures = wrong(runs, gloo)
    print(f"{len(runs)} runs in {time.monotonic() - began:.0f} s; {len(failures)} methods should pass and do not")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
