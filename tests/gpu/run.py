"""Checks and times tensors on a GPU, by two processes that share it; `make gpu` calls it. Ten minutes at most.

Checks come first, then figures, then the plug-in for NCCL beside NCCL's sockets. The exit code is 0 if all goals are met, 1 if one
is missed or a check has failed, and 77 on a machine without a GPU, whose last line says what is missing. With --stand-in the tests'
accelerator takes the GPU's place: the same code runs, and no figure is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "bench"))

from machine import machine
from ports import free_port
from rows import Row, as_json, page, table, wrong

MISSING = 77
"""The exit code of a program whose tool is missing."""
SIZE = 2
CHECKS = (
    "values",
    "collectives",
    "streams",
    "capture",
    "late",
    "training",
    "callbacks",
    "meanwhile",
    "host_time",
    "times",
    "killed",
)
"""In this order, in one job. One that fails or hangs ends it, and those behind it get another one."""
PLUGIN = "plugin"
LIMIT_SECONDS = 90
"""A check that takes longer hangs."""
LOOK_SECONDS = 0.1


def gpu() -> str | None:
    """The GPU's name, or nothing."""
    code = "import torch; print(torch.cuda.get_device_name(0) if torch.cuda.is_available() else '')"
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip() or None


def processes(
    words: list[str], variables: list[dict[str, str]], seconds: float, steps: Callable[[], int] = int
) -> list[tuple[int | None, str]]:
    """Runs a program as several ranks; of each the exit code, and what it printed.

    The code is `None` if the rank was still running when nothing had ended, and `steps` had not changed, for so long.
    """
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(variables))}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(len(variables))]
        started = []
        for rank, (log, own) in enumerate(zip(logs, variables)):
            place = common | {"RANK": str(rank), "LOCAL_RANK": "0"} | own
            with log.open("w") as output:
                started.append(subprocess.Popen([sys.executable, *words], env=place, stdout=output, stderr=subprocess.STDOUT))
        seen, since = (0, 0), time.monotonic()
        while any(process.poll() is None for process in started) and time.monotonic() - since < seconds:
            now = (steps(), sum(process.poll() is not None for process in started))
            seen, since = (now, time.monotonic()) if now != seen else (seen, since)
            time.sleep(LOOK_SECONDS)
        codes = [process.poll() for process in started]
        for process in started:
            process.kill()
            process.wait()
        return [(code, log.read_text(errors="replace")) for code, log in zip(codes, logs)]


def job(names: Sequence[str], options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """The rows of checks in one job, and the names of those behind the first that failed."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        words = [str(HERE / "worker.py"), folder, *names, *(["--stand-in"] if options.stand_in else [])]
        ended = processes(words, [{} for _ in range(SIZE)], LIMIT_SECONDS, lambda: len([*Path(folder).glob("*.json")]))
        for place, name in enumerate(names):
            found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob(f"{name}.*.json"))]
            failures = [each["error"] for each in found if "error" in each]
            if found and not failures:
                rows += [Row(**row) for each in found for row in each["rows"]]
                continue
            print("\n".join(output[-4000:] for _, output in ended), file=sys.stderr, flush=True)
            hung = [rank for rank, (code, _) in enumerate(ended) if code is None]
            why = failures[0] if failures else f"rank {hung[0]} hung" if hung else f"exit codes {[code for code, _ in ended]}"
            return [*rows, Row(name, why.splitlines()[0][:150], "failed", "right", False)], list(names[place + 1 :])
    return rows, []


def all_of(names: Sequence[str], options: argparse.Namespace, deadline: float) -> list[Row]:
    """The rows of these checks, in as many jobs as it takes until `deadline`."""
    rows: list[Row] = []
    left = list(names)
    while left:
        if time.monotonic() > deadline:
            return [
                *rows,
                *(Row(name, f"not begun after {options.minutes:g} minutes", "left out", "right", False) for name in left),
            ]
        more, left = job(left, options)
        rows += more
    return rows


def of_plugin(options: argparse.Namespace) -> list[Row]:
    """The plug-in for NCCL, if it was built; it needs a GPU."""
    from plugin import compared

    library = options.plugin.resolve()
    if options.stand_in or not library.exists():
        why = "a stand-in has no NCCL" if options.stand_in else f"no {library.name} there: `make nccl-plugin` builds it"
        return [Row(PLUGIN, why, "left out")]
    return compared(library, processes)


def tell(text: str) -> None:
    """For those who look on."""
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option, every = parser.add_argument, (*CHECKS, PLUGIN)
    option("--only", nargs="+", choices=every, default=every, metavar="NAME", help=f"of {', '.join(every)}")
    option("--stand-in", action="store_true", help="without a GPU: on the accelerator of the tests")
    option("--plugin", type=Path, default=ROOT / "target/capi/lib/libnccl-net-herringbone.so", help="the plug-in's library")
    option("--minutes", type=float, default=10, help="begin no check after so many (10)")
    option("--json", action="store_true", help="print all results as JSON")
    option("--record", type=Path, help="a file for the table of a whole run on a GPU")
    return parser.parse_args()


def main() -> None:
    options, began = arguments(), time.monotonic()
    name = "none: a stand-in" if options.stand_in else gpu()
    if name is None:
        tell("a GPU is missing: torch sees none; `--stand-in` runs the checks on the accelerator of the tests")
        sys.exit(MISSING)
    rows: list[Row] = []
    rows += all_of([each for each in CHECKS if each in options.only], options, began + options.minutes * 60)
    if PLUGIN in options.only:
        rows += of_plugin(options)
    facts = {"GPU": name, **machine()}
    print(json.dumps({"machine": facts, "rows": as_json(rows)}) if options.json else table(rows), flush=True)
    if options.record and not options.stand_in and set(options.only) == {*CHECKS, PLUGIN}:
        options.record.write_text(page(rows, facts))
    tell(f"{len(wrong(rows))} of {len(rows)} not met in {time.monotonic() - began:.0f} s")
    sys.exit(1 if wrong(rows) else 0)


if __name__ == "__main__":
    main()
