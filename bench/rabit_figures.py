"""Times what recovery costs: calls beside plain ones, checkpoints beside copies, and a process that takes a lost one's place.

All on this host. Prints tables, and whether the goals are met. Exit code 0: all ran.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from machine import bullets, machine
from ports import free_port
from text_tables import table as markdown

WORKER = pathlib.Path(__file__).resolve().parent / "rabit_worker.py"
RANKS, JOB = 2, 8
"""Of the calls, and of the job that loses a process."""
GOAL_US, GOAL_RECOVERY = 10.0, 1.0
SMALL = 4 << 10


def started(ranks, words, attempts=1):
    """The figures that a job prints."""
    command = [sys.executable, "-m", "herringbone", "launch", "-n", str(ranks), "--max-attempts", str(attempts), "--"]
    environment = os.environ | {"OTHER_STORE": f"127.0.0.1:{free_port()}"}
    done = subprocess.run(
        [*command, sys.executable, str(WORKER), *words], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    return json.loads(lines[-1])


def rows_of_calls(figures):
    """The table of calls and checkpoints."""
    rows = []
    for size in (int(name) for name in figures if name.isdigit()):
        at = figures[str(size)]
        more = (at["rabit"] - at["plain"]) * 1e6
        copy = at["copy"] * 1e6
        is_small = size <= SMALL
        goal = f"{GOAL_US:.0f} us" if is_small else "1 copy"
        is_met = more <= GOAL_US if is_small else more <= 1.5 * copy + GOAL_US
        cells = [f"{at['plain'] * 1e6:.1f}", f"{at['rabit'] * 1e6:.1f}", f"{more:.1f}", f"{copy:.1f}"]
        rows.append([f"{size} bytes", *cells, goal, "yes" if is_met else "no"])
    return rows


def main():
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="of calls, in turns")
    parser.add_argument("--losses", type=int, default=7, help="jobs that lose a process")
    parser.add_argument("--record", type=pathlib.Path, help="where the tables are written to, too")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    options = parser.parse_args()
    calls = started(RANKS, ["calls", str(options.rounds)])
    losses = [started(JOB, ["recovery"], 5) for _ in range(options.losses)]
    text = markdown(
        ["all-reduce of", "plain, us", "with recovery, us", "more, us", "a copy, us", "goal", "met"], rows_of_calls(calls)
    )
    rows = []
    for name, copies in (("lazy", 0), ("copied", 1)):
        at = calls[name]
        grown = at["bytes"] / (100 << 20)
        met = "yes" if grown < copies + 0.2 else "no"
        rows.append([name, f"{at['seconds'] * 1e3:.1f}", f"{at['copy'] * 1e3:.1f}", f"{grown:.2f}", str(copies), met])
    text += "\n\n" + markdown(["checkpoint of 100 MiB", "ms", "a copy, ms", "more memory, in models", "goal", "met"], rows)
    rows = []
    for name in ("from init", "from start"):
        spent = [loss[name] for loss in losses]
        least, most, median = min(spent), max(spent), statistics.median(spent)
        rows.append(
            [name, f"{median:.2f} ({least:.2f} to {most:.2f})", f"{GOAL_RECOVERY:.0f}", "yes" if median < GOAL_RECOVERY else "no"]
        )
    text += "\n\n" + markdown(["1 of 8 ranks is back, with 10 MiB of model", "s (least to most)", "goal", "met"], rows)
    if options.json:
        print(json.dumps({"machine": machine(), "calls": calls, "losses": losses}))
    else:
        print(text)
    if options.record is not None:
        how = (
            f"{RANKS} ranks for calls and checkpoints, {options.rounds} rounds in which the contenders take turns; {options.losses} jobs of "
            f"{JOB} ranks that lose one; all on one host, in Python"
        )
        options.record.write_text(
            f"# Programs that continue where they were\n{bullets(machine())}\n* {how}. `make rabit-figures` writes this page.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
