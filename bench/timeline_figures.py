"""Measures the cost of a timeline: all-reduces with and without one, in turns, in the same processes of this host.

Prints a table, and whether the goal is met. Exit code 0: all ran.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from machine import bullets, machine
from text_tables import table as markdown

WORKER = pathlib.Path(__file__).resolve().parent / "timeline_worker.py"
GOAL_SIZE, GOAL_PERCENT = 1 << 20, 3.0


def started(ranks, rounds):
    """The figures that a job prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "herringbone", "launch", "-n", str(ranks), "--"]
        words = [sys.executable, str(WORKER), str(rounds), folder]
        environment = {name: value for name, value in os.environ.items() if name != "HERRINGBONE_TIMELINE"}
        done = subprocess.run([*command, *words], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line]
    return json.loads(lines[-1])


def rows_of(ranks, figures):
    """The table's rows of a job."""
    for size in (int(name) for name in figures if name.isdigit()):
        at = figures[str(size)]
        off, on = statistics.median(at["off"]), statistics.median(at["on"])
        # Of each round, since the machine's other load changes from one to the next.
        more = sorted(100 * (with_one / without - 1) for without, with_one in zip(at["off"], at["on"], strict=True))
        middle, spread = statistics.median(more), f"{more[len(more) // 4]:.1f} to {more[3 * len(more) // 4]:.1f}"
        goal = f"{GOAL_PERCENT:g} %" if size == GOAL_SIZE else ""
        met = "" if size != GOAL_SIZE else "yes" if middle <= GOAL_PERCENT else "no"
        yield [str(ranks), str(size), f"{off * 1e6:.1f}", f"{on * 1e6:.1f}", f"{middle:.1f} % ({spread})", goal, met]


def main():
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31, help="rounds; both take a turn in each")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2], help="of each job")
    parser.add_argument("--record", type=pathlib.Path, help="where the table is written to, too")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    options = parser.parse_args()
    about = machine()
    jobs = {ranks: started(ranks, options.rounds) for ranks in options.ranks}
    heads = ["ranks", "bytes", "off, us", "on, us", "more: median of rounds (quartiles)", "goal", "met"]
    text = markdown(heads, [row for ranks, figures in jobs.items() for row in rows_of(ranks, figures)])
    left_out = sum(figures["left out"] for figures in jobs.values())
    print(json.dumps({"machine": about, "jobs": jobs}) if options.json else text)
    if options.record is not None:
        options.record.write_text(
            f"# The cost of a timeline\n{bullets(about)}\n* all ranks on one host, in Python, {options.rounds} rounds in which both take turns; times "
            f"where events were left out: {left_out}. `make timeline-figures` writes this page.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
