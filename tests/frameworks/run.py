"""Frameworks train over Herringbone, by short real trainings of 2 processes; `make frameworks` calls it.

Each framework trains through Gloo, then in each way in which it can be told to use Herringbone. The programs check
which backend their group really has; here every rank's losses and parameters have to be those of Gloo, bit for bit: at
2 ranks there is one order to add in. The exit code is 0 if all of them are.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = "docs/frameworks.md"
SECONDS = 240
"""A training takes about 15 s on two cores; one that takes longer hangs."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@dataclasses.dataclass(frozen=True)
class Way:
    """How a framework comes to its backend."""

    name: str
    reported: str
    launcher: tuple = TORCHRUN
    replace: str = ""


GLOO = Way("gloo", "the framework's default")
BEFORE = Way("before", '`init_process_group("herringbone")` before the framework')
REPLACED = Way("replaced", "`HERRINGBONE_REPLACE=gloo`", replace="gloo")
NAMED = Way("named", '`DDPStrategy(process_group_backend="herringbone")`')
STARTED = Way("started", f"{NAMED.reported}, started by Lightning", ())
WAYS = {
    "lightning": [GLOO, NAMED, STARTED, BEFORE, REPLACED],
    "accelerate": [GLOO, BEFORE, REPLACED],
    "transformers": [GLOO, BEFORE, REPLACED],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WAYS), action="append", help="this framework; the page stays as it was")
    parser.add_argument("--record", type=pathlib.Path, help="a file for the table")
    parser.add_argument("--json", action="store_true", help="a JSON object for each training, instead of the table")
    return parser.parse_args()


def environment(**extra):
    """This environment without settings of a job, with one thread a process."""
    foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return kept | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | offline | extra


def run(words, **extra):
    """Runs this Python to its end: its exit status and its output. What it started ends with it."""
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        output = f"it ran for more than {SECONDS} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output


def train(framework, way):
    """The outcome of each rank, and None; or nothing, and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        extra = {"HERRINGBONE_REPLACE": way.replace} if way.replace else {}
        program = str(HERE / f"{framework}_training.py")
        status, output = run([*way.launcher, program, way.name, folder], **extra)
        if status != 0:
            return [], f"exit status {status}:\n{output[-6000:]}"
        return [json.loads(pathlib.Path(folder, f"rank{rank}.json").read_text()) for rank in range(2)], None


def judged(ranks, gloos):
    """What the outcome of a way is worth beside Gloo's; the second is None, or what is wrong."""
    if len({rank["digest"] for rank in ranks}) != 1:
        return "", "the ranks have different parameters"
    for name in ("losses", "digest"):
        if [rank[name] for rank in ranks] != [rank[name] for rank in gloos]:
            both = [[rank[name] for rank in side] for side in (ranks, gloos)]
            return "", f"{name} {both[0]} and through Gloo {both[1]}"
    folds = ranks[0]["all_reduces"]
    return f"Gloo's losses and parameters, bit for bit, in {folds} all-reduces" if folds else "the reference", None


def trainings(frameworks):
    """A row for each training, as it ends."""
    for framework in frameworks:
        gloos = None
        for way in WAYS[framework]:
            began = time.monotonic()
            ranks, wrong = train(framework, way)
            gloos = ranks if way is GLOO else gloos
            result, wrong = judged(ranks, gloos) if ranks and gloos else ("", wrong or "Gloo failed")
            kind = ranks[0]["kind"] if ranks else ""
            yield row(framework, way.reported, result, wrong, time.monotonic() - began, version(framework), kind)


def row(framework, way, result, wrong, seconds, version="", kind=""):
    """A row of the table; `wrong` is None, or what went wrong."""
    return {
        "framework": framework,
        "version": version,
        "way": way,
        "kind": kind,
        "result": result,
        "wrong": wrong,
        "seconds": round(seconds, 1),
    }


def the_page():
    """The programs of the page, which say the same in a user's words."""
    began = time.monotonic()
    status, output = run(["-m", "pytest", "-q", "-rs", "tests/docs/test_docs.py", "-k", "test_block and frameworks"])
    last = output.strip().splitlines()[-1] if output.strip() else ""
    right = status == 0 and "skipped" not in last
    result, wrong = (f"blocks: {last.split(',')[0]}", None) if right else ("", output[-6000:])
    return row("all three", f"the programs of `{PAGE}`", result, wrong, time.monotonic() - began)


def replicas():
    """torchft's replicas, one of which is killed, and the programs of the page about workers that come and go."""
    way = "`python/tests/test_torchft.py` and the programs of `docs/elastic.md`"
    wanted = ["python/tests/test_torchft.py", "tests/docs/test_docs.py", "-k", "torchft or (test_block and elastic)"]
    return of_torchft(way, wanted, lambda output, last: f"tests: {last.split(',')[0]}")


def averages():
    """torchft's ways to average over Herringbone, beside ours."""
    way = "`LocalSGD`, `DiLoCo` and streaming `DiLoCo` over `herringbone.torchft`, and the same of `herringbone.optim`"
    return of_torchft(way, ["-rP", "python/tests/test_optim_torchft.py"], distances)


def distances(output, last):
    """How far the parameters of each pair are apart on the rank where that is most."""
    found = re.findall(r"'(local|diloco|streaming)': ([\d.e+-]+)", output)
    names = {"local": "LocalSGD", "diloco": "DiLoCo", "streaming": "streaming DiLoCo"}
    most = {kind: max(float(distance) for of, distance in found if of == kind) for kind in names}
    apart = [f"{names[kind]} {distance:.2g}" for kind, distance in most.items()]
    return f"parameters differ, relative to the largest one, by: {', '.join(apart)}"


def of_torchft(way, words, result_of):
    """A row for tests with torchft; `result_of` says by their output and its last line what it is if they pass."""
    began = time.monotonic()
    status, output = run(["-m", "pytest", "-q", "-rs", *words])
    last = output.strip().splitlines()[-1] if output.strip() else ""
    right = status == 0 and "skipped" not in last
    result, wrong = (result_of(output, last), None) if right else ("", output[-6000:])
    return row("torchft", way, result, wrong, time.monotonic() - began, version("torchft-nightly"))


def table(rows):
    """The rows in Markdown."""
    lines = ["| framework | version | way | the group is | result |", "|---|---|---|---|---|"]
    for each in rows:
        cells = [each["framework"], each["version"], each["way"], each["kind"], each["result"] or "FAILED"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    options, rows = arguments(), []

    def done(each):
        rows.append(each)
        if options.json:
            print(json.dumps(each), flush=True)
        words = f"{each['framework']}, {each['way']}: {each['wrong'] or each['result']} ({each['seconds']:.0f} s)"
        print(words, file=sys.stderr, flush=True)

    for each in trainings(options.only or WAYS):
        done(each)
    if not options.only:
        done(replicas())
        done(averages())
        done(the_page())
    if not options.json:
        print(table(rows))
    if options.record and not options.only:
        machine = (
            f"2 processes on one host with {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}, Python "
            f"{platform.python_version()}, torch {version('torch')}; `make frameworks` writes this page."
        )
        options.record.write_text(f"# Frameworks over Herringbone\n{machine}\n\n{table(rows)}")
    failures = sum(each["wrong"] is not None for each in rows)
    print(f"{len(rows)} runs, {failures} failed", file=sys.stderr)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
