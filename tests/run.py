"""Checks and tests in stages; `make check`, `make test`, `make full` and `.ci/run` call it with the name of what they want.

* `check`: what is wrong after a minute or two: format, lints, types, and the tests of what decides.
* `test`: what is checked for every change.
* `full`: that, and everything else that can be checked: more seeds, longer soaks, real launchers, other versions.
* `ci`: `test`, and of `full` what needs no download, no root and no other compiler.

The last two name in the end what they leave out, and why.

Stages run in two lanes, one beside the other: what Rust's tools do, and the tests in Python, most of which wait for processes.
What needs the machine for itself follows.
The output of a stage comes at its end, whole. Every stage runs, also after one that failed, and none is tried again. A check
that is no test (format, lints, documentation, a target of make) counts as one. A stage in which nothing has passed has failed. In
the end each stage that failed is named, with its tests that failed or the end of its output. The last line is the sum:
"N passed, N failed, N skipped". The exit code is 0 only if nothing failed.
"""

import argparse
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = shlex.quote(sys.executable)
NEXTEST = re.compile(r"Summary .*?\d+ tests? run: (.*)")
CARGO_TEST = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
WARNED = re.compile(r"^warning: `[\w-]+` \(.*\) generated \d+ warning", re.MULTILINE)
WORKERS = 3
"""Of pytest: more than there are cores, as tests wait."""
THREADS = 2 * (os.cpu_count() or 1)
"""Tests in Rust that run at once: likewise."""
PRINTING, INTERRUPTED = threading.Lock(), threading.Event()
MISSING = 77
"""The exit code of a program whose tool is missing."""
SIMULATED = "world::simulation::tests::whatever_goes_wrong_no_call_hangs_and_no_result_is_wrong"
FAILED = re.compile(
    r"^(?:FAILED|ERROR) .*|^ *(?:FAIL|TIMEOUT|LEAK-FAIL|SIG[A-Z]+) +\[.*|^test .* \.\.\. FAILED|" + WARNED.pattern, re.MULTILINE
)
"""The lines that name a test, of pytest, nextest and cargo; a warning counts as one."""
SHOWN = 12
"""Lines of what failed, per stage."""
COUNTED = re.compile(r"(\d+) (passed|failed|skipped|errors?|timed out)")


class Stage:
    """A command, and how its output is counted (`None`: it passes or fails as a whole)."""

    missing = ""
    """What it needs and this machine lacks."""

    def __init__(self, title, command, count=None, **environment):
        self.title, self.command, self.count, self.failures = title, shlex.split(command), count, []
        # A make that a stage calls is not part of the one that called this program.
        own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
        self.environment = own | {"CARGO_TERM_COLOR": "never"} | environment

    def run(self):
        """Runs it, and shows its output; returns passed, failed, skipped, and keeps in `failures` what says why."""
        say(f"... {self.title}")
        began = time.monotonic()
        code, output, cpu = run_and_measure(self.command, self.environment)
        right = self.is_right(code)
        counts = self.count(output) if self.count else (int(right), 0, 0)
        if right and not any(counts[:2]) and not self.missing:
            output += "Nothing has passed: are its tests called something else now?\n"
        if counts[1] == 0 and not (right and (counts[0] or self.missing)):
            counts = (counts[0], 1, counts[2])
        if counts[1]:
            named = [*dict.fromkeys(line.strip() for line in FAILED.findall(output))]
            self.failures = named[:SHOWN] or [*output.splitlines()[-SHOWN:], f"exit code {code}"]
        end = f"<== {self.title}: {summary(counts)}, {time.monotonic() - began:.0f} s, {cpu:.0f} s of CPU"
        say(f"\n==> {self.title}: {shlex.join(self.command)}\n{output}{end}")
        return counts

    def is_right(self, code):
        """Whether it has done what it should, by its exit code."""
        return code == 0


def run_and_measure(command, environment):
    """Its exit code, its output, and the CPU time, in seconds, of its processes that were waited for.

    A command that is not there ends as in a shell.
    """
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "backslashreplace"}
    try:
        with subprocess.Popen(command, cwd=ROOT, env=environment, **options) as process:
            output = process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    except OSError as error:
        return 127, f"{error}\n", 0.0
    return process.returncode, output, usage.ru_utime + usage.ru_stime


def say(text):
    """Prints it in one piece."""
    with PRINTING:
        print(text, flush=True)


def summary(counts):
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


def rust_counts(output):
    """Of cargo's or nextest's tests. A warning of the compiler fails, since the lints have seen only the simulator's build."""
    # What nextest shows of a test that fails has a result of cargo's kind in it.
    count = nextest_counts if NEXTEST.search(output) else cargo_test_counts
    passed, failed, skipped = count(output)
    return passed, failed + len(WARNED.findall(output)), skipped


def pytest_counts(output):
    """Of pytest's last line."""
    lines = output.strip().splitlines()
    return summary_counts(lines[-1]) if lines else (0, 0, 0)


def rust_tests(title, packages, only="all()"):
    """The tests of some packages, and with nextest only those."""
    if shutil.which("cargo-nextest"):
        return Stage(title, f"cargo nextest run {packages} --test-threads {THREADS} --filterset '{only}'", rust_counts)
    # Tests start examples, which nextest builds by itself.
    commands = f"cargo build {packages} --examples && cargo test {packages} --lib --bins --tests"
    return Stage(title, f"sh -c '{commands}'", rust_counts)


def rust_checks():
    """In the order of what they cost, so that a small mistake shows early."""
    yield Stage("format", "cargo fmt --all --check")
    features = "--workspace --all-targets --features herringbone/simulator"
    yield Stage("lints", f"cargo clippy {features} --quiet -- -D warnings")


def python_checks():
    """Likewise."""
    ruff = f"{PYTHON} -m ruff"
    yield Stage("Python's format", f"{ruff} format --check --quiet .")
    yield Stage("Python's lints", f"{ruff} check .")
    yield Stage("types", f"{PYTHON} tests/typecheck.py")


def rust():
    """What Rust's tools check for every change."""
    yield from rust_checks()
    yield rust_tests("Rust tests", "--workspace")
    yield Stage("programs in C and C++", f"{PYTHON} tests/capi/run.py", pytest_counts)
    yield Stage("Rust examples in the docs", "cargo test --workspace --doc", cargo_test_counts)
    yield Stage("Rust docs", "cargo doc --workspace --no-deps --quiet", RUSTDOCFLAGS="-Dwarnings")


def python_tests(title, marked):
    """All that there are. Those that take long come first, so that no worker is left alone with one of them."""
    long = ["python/tests", "tests/bench", "tests/faults", "tests/leaks", "tests/docs"]
    others = {str(test.parent.relative_to(ROOT)) for test in (ROOT / "tests").rglob("test_*.py")} - {*long}
    options = f"-q -ra --rootdir . -p tests.parallel --numprocesses {WORKERS} -m '{marked}'"
    return Stage(title, f"{PYTHON} -m pytest {options} {' '.join([*long, *sorted(others)])}", pytest_counts)


def python():
    """What is in Python, of every change."""
    yield from python_checks()
    yield python_tests("Python tests", "not full")


def alone():
    """What has the machine for itself, after both lanes: it counts what all jobs here leave behind."""
    yield from ()


class Target(Stage):
    """A target of the Makefile that checks something; what it records goes below `target`."""

    def __init__(self, lane, name, *arguments, why_not=""):
        """`why_not`: what it needs that no machine of a continuous integration has for certain, or how long it takes."""
        title = " ".join(["make", name, *arguments])
        super().__init__(title, shlex.join(["make", name, *([f"ARGS={' '.join(arguments)}"] if arguments else [])]))
        self.lane, self.why_not = lane, why_not


class Measurement(Target):
    """A target whose exit code judges times, which are no tests: it is right if it comes to its end and writes its record."""

    def __init__(self, lane, name, record, why_not):
        super().__init__(lane, name, f"--record {record}", why_not=why_not)
        self.record = ROOT / record

    def run(self):
        self.record.unlink(missing_ok=True)
        return super().run()

    def is_right(self, code):
        return self.record.exists()


class Tool(Target):
    """A program that is asked itself: make's exit code does not say that only a tool is missing."""

    code = 0

    def __init__(self, lane, name, *arguments, why_not="", program=None):
        """`program`: the words that call it, if it is not a check of tests/crates.py."""
        super().__init__(lane, name, *arguments, why_not=why_not)
        self.command = [sys.executable, *(program or ["tests/crates.py", name]), *arguments]
        self.count = self.counts

    def is_right(self, code):
        self.code = code
        return code in (0, MISSING)

    def counts(self, output):
        """Skipped if a tool is missing: the last line says which."""
        self.missing = output.splitlines()[-1] if self.code == MISSING else ""
        return {0: (1, 0, 0), MISSING: (0, 0, 1)}.get(self.code, (0, 1, 0))


UNCHECKED = [
    "make demo, lab-links, codec-rates, compression-links, compression-study, named-figures, table-figures, rabit-figures, shards-figures and timeline-figures (they measure)"
]
if not os.environ.get("HOROVOD"):
    UNCHECKED.append("make conformance-horovod (Horovod's sources: HOROVOD=folder says where)")
if not os.environ.get("RABIT"):
    UNCHECKED.append("make conformance-rabit (RABIT's sources: RABIT=folder says where)")
"""Of the Makefile, what `full` leaves out, too."""


def targets():
    """All that can be checked and is not checked for every change. Two that use the same cores wait in one lane."""
    yield Target(rust, "setup")
    yield Target(rust, "instructions")
    yield Target(rust, "bench")
    yield Target(rust, "layouts")
    yield Target(rust, "shards")
    yield Tool(rust, "decoders")
    yield Tool(rust, "features", why_not="ten minutes")
    yield Tool(rust, "msrv", why_not="the oldest compiler")
    yield Tool(rust, "deny", why_not="cargo-deny")
    yield Tool(rust, "semver", why_not="cargo-semver-checks, and a release")
    yield Tool(rust, "fuzz", why_not="Rust's nightly and cargo-fuzz")
    yield Target(alone, "leaks", "--record target/leaks.md")
    yield Target(alone, "verify-large", why_not="a machine that is quiet")
    yield Measurement(alone, "validate-simulator", "target/simulator.md", "root, and a machine that is quiet")
    yield Measurement(alone, "regret", "target/regret.md", "root, and a machine that is quiet")
    yield Measurement(alone, "predicted-ports", "target/predicted-ports.md", "root, and a machine that is quiet")
    yield Measurement(alone, "predicted-steps", "target/predicted-steps.md", "root, and a machine that is quiet")
    yield Target(rust, "docs", why_not="a download")
    yield Target(rust, "deploy-check", why_not="a download")
    yield Target(rust, "packages", "--record target/packages.md", why_not="a download")
    yield Target(rust, "soak", "--seeds 500..10000", why_not="five minutes")
    yield Target(rust, "sanitize", "--record target/sanitize.md", why_not="Rust's nightly")
    yield Target(python, "faults", "--record target/faults.json --page target/faults.md", why_not="root")
    yield Target(python, "rabit-soak", "--record target/rabit.md", why_not="ten minutes")
    yield Target(python, "shards-soak", "--record target/shards-soak.md", why_not="six minutes")
    yield Target(rust, "rabit-mpi", why_not="an MPI with its headers")
    yield Target(python, "launchers", "--record target/launchers.md", why_not="Open MPI, MPICH and Slurm")
    yield Tool(python, "browser", why_not="Chromium, by `make browser-setup`", program=["tests/browser/run.py"])
    yield Tool(python, "gpu", why_not="a GPU", program=["tests/gpu/run.py"])
    yield Target(python, "conformance", "--record target/conformance.md", why_not="half an hour")
    if os.environ.get("HOROVOD"):
        yield Target(python, "conformance-horovod", "--record target/horovod-conformance.md", why_not="Horovod's sources")
    if os.environ.get("RABIT"):
        yield Target(rust, "conformance-rabit", why_not="RABIT's sources")
    yield Target(python, "frameworks", "--record target/frameworks.md", why_not="a download")
    yield Target(python, "editors", why_not="a download")
    yield Target(python, "matrix", "--record target/matrix.md", why_not="a download of 8 GB")


def stages(wanted):
    """The stages of both lanes, and those that follow them."""
    if wanted == "check":
        # Those with the features that all together have, so that nothing is compiled once more: the kernels alone take minutes.
        packages = " ".join(f"-p herringbone-{name}" for name in ("core", "sys", "cli", "python"))
        decided = rust_tests("core, sys and tidiness", packages, "not package(herringbone-cli) | binary(tidy)")
        return [[*rust_checks(), decided], [*python_checks()]], []
    more = {
        "test": [],
        "ci": [target for target in targets() if not target.why_not],
        "full": [*targets()],
    }[wanted]
    if not more:
        return [[*rust()], [*python()]], []
    simulated = f"cargo test --workspace --lib -- --exact {SIMULATED}"
    marked = {
        rust: Stage("500 simulated clusters", simulated, cargo_test_counts, SIMULATED_SEEDS="500"),
        python: python_tests("more Python tests", "full"),
    }

    def of_lane(lane):
        return [target for target in more if target.lane is lane]

    return [[*lane(), more_of, *of_lane(lane)] for lane, more_of in marked.items()], of_lane(alone)


def chosen(stages, words):
    """Those with one of the words in their names; all of them without words."""
    return [stage for stage in stages if not words or any(word in stage.title for word in words)]


def lane(stages):
    """The counts of stages that run one after the other; none begins once somebody has pressed Ctrl-C."""
    return [stage.run() for stage in stages if not INTERRUPTED.is_set()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wanted", choices=["check", "test", "full", "ci"])
    parser.add_argument("--list", action="store_true", help="name the stages, each of which can be a job, and run none")
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="only stages with this in their names")
    options = parser.parse_args()
    wanted = options.wanted
    together, after = stages(wanted)
    names = [stage.title for each in [*together, after] for stage in each]
    together, after = [chosen(each, options.only) for each in together], chosen(after, options.only)
    every = [stage for each in [*together, after] for stage in each]
    if not every:
        sys.exit("\n  ".join(["no stage has such a name; there are", *names]))
    if options.list:
        print(*(stage.title for stage in every), sep="\n")
        return
    with ThreadPoolExecutor() as threads:
        lanes = [threads.submit(lane, each) for each in together]
        try:
            counts = [count for each in lanes for count in each.result()] + lane(after)
        except KeyboardInterrupt:
            INTERRUPTED.set()
            sys.exit("Ctrl-C: what had not run by then is not checked")
    total = tuple(map(sum, zip(*counts)))
    if wanted == "ci":
        left_out = [f"{target.title} ({target.why_not})" for target in targets() if target.why_not]
        print("\nLeft out here, and in `make full`:", *left_out, sep="\n  ")
    if wanted in ("ci", "full"):
        print("\nLeft out:", *UNCHECKED, sep="\n  ")
    for stage in (stage for stage in every if stage.missing):
        print(f"\nIn {stage.title}: {stage.missing}")
    for stage in (stage for stage in every if stage.failures):
        print(f"\nFailed in {stage.title}:", *stage.failures, sep="\n  ")
    print(f"\n{summary(total)}")
    sys.exit(1 if total[1] else 0)


if __name__ == "__main__":
    main()
