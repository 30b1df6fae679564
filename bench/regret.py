"""How much slower than the best the plan's choice is: every candidate, measured beside the others, in turns.

For each layout `herringbone bench --calibrate` fits constants first; `herringbone explain` says with them, and without any
("by table"), what a job would choose. Candidates whose times differ by less than the spread of the best are ties. Exit code 0:
the choice by predicted times is within 10 % of the best, or ties with it, in 95 % of the cells.
"""

import argparse
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import duration, human
from processes import JobFailed, Namespaces, NoNamespaces
from rigs import LOCK, ROOT
from simulator import LAYOUTS, job, measured, say
from tables import printed, table

LAYOUTS |= {f"1 host of {ranks}": (ranks, ranks, 0) for ranks in (2, 4, 8)}
CLUSTER_RATE = 500
SIZES = [4, 1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20, 25 << 20]
CELLS = [(name, None) for name in LAYOUTS if name.startswith("1 host")]
CELLS += [("4 hosts", CLUSTER_RATE), ("4 hosts, 4 reducers", CLUSTER_RATE)]
MOST_REGRET, CELLS_WITHIN = 0.10, 0.95


def constants(options, layout, rate, spaces, folder):
    """A file of constants of a layout."""
    workers, *_ = LAYOUTS[layout]
    begin, path = pathlib.Path(folder, "begin"), pathlib.Path(folder, "constants")
    begin.write_text(f"shared_cores = {os.cpu_count() if workers > os.cpu_count() or rate else 0}\n")
    words = ["bench", "--calibrate", path, "--seconds", str(options.seconds)]
    words += ["--gbps", str(rate / 1000)] if rate else []
    with job(options, spaces, layout, words, HERRINGBONE_CALIBRATION=str(begin)):
        return path


def explained(options, layout, size, path):
    """What a job chooses with the constants at `path`, or without any; and all candidates."""
    workers, per_host, reducers = LAYOUTS[layout]
    words = [options.binary, "explain", "--ranks", workers, "--per-host", per_host, "--reducers", reducers]
    words += ["--sizes", size, "--candidates", "--json"]
    environment = {name: text for name, text in os.environ.items() if name != "HERRINGBONE_CALIBRATION"}
    environment |= {"HERRINGBONE_CALIBRATION": str(path)} if path else {}
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobFailed(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return found["algorithm"], [each["algorithm"] for each in found["candidates"]["by"]]


def cells_of(options, layout, rate):
    """A row for each size of a layout."""
    workers, per_host, reducers = LAYOUTS[layout]
    with Namespaces(workers // per_host + reducers, rate) as spaces, tempfile.TemporaryDirectory() as folder:
        path = constants(options, layout, rate, spaces, folder)
        said = {size: explained(options, layout, size, path) for size in options.sizes}
        by_table = {size: explained(options, layout, size, None)[0] for size in options.sizes}
        algorithms = sorted({name for _, names in said.values() for name in names} | set(by_table.values()))
        times = {size: {} for size in options.sizes}
        for round_ in range(options.rounds):
            for algorithm in algorithms:
                say(f"{layout}: round {round_ + 1} of {options.rounds}, {algorithm}")
                sizes = [size for size in options.sizes if algorithm in [*said[size][1], by_table[size]]]
                for size, seconds in measured(options, spaces, layout, algorithm, sizes, None).items():
                    times[size].setdefault(algorithm, []).append(seconds)
    for size in options.sizes:
        yield row_of(layout, size, said[size][0], by_table[size], times[size])


def row_of(layout, size, chosen, by_table, times):
    """What a cell's candidates took, and what choosing cost."""
    medians = {algorithm: statistics.median(each) for algorithm, each in times.items()}
    best = min(medians, key=medians.get)

    def regret(algorithm):
        ties = min(times[algorithm]) <= max(times[best])
        return 0.0 if ties else medians[algorithm] / medians[best] - 1

    return {
        "layout": layout,
        "bytes": size,
        "best": best,
        "best_s": medians[best],
        "chosen": chosen,
        "chosen_s": medians[chosen],
        "regret": regret(chosen),
        "by_table": by_table,
        "regret_by_table": regret(by_table),
        "candidates_s": medians,
    }


HEAD = ["layout", "size", "best", "", "chosen", "", "regret", "by table", "regret"]


def shown(row):
    """A row as the table shows it."""
    regrets = [f"{100 * row[name]:.0f} %" for name in ("regret", "regret_by_table")]
    best, chosen = [(row[name], duration(row[f"{name}_s"])) for name in ("best", "chosen")]
    return [row["layout"], human(row["bytes"]), *best, *chosen, regrets[0], row["by_table"], regrets[1]]


def within(rows, name):
    """The part of the cells whose regret is small."""
    return sum(row[name] <= MOST_REGRET for row in rows) / len(rows)


def page(options, rows):
    """The record's page."""
    by_time, by_table = [f"{100 * within(rows, name):.0f} %" for name in ("regret", "regret_by_table")]
    lines = [
        "# What choosing costs",
        "",
        f"`make regret` wrote this page: {options.rounds} rounds of every candidate, in turns; medians. A choice by predicted times",
        f"is within {100 * MOST_REGRET:.0f} % of the best, or ties with it, in {by_time} of {len(rows)} cells; one by the table of sizes, which is",
        f"made where nothing is calibrated, in {by_table}. Two times that overlap tie.",
        "",
        table(HEAD, map(shown, rows)),
        "",
    ]
    return "\n".join(lines)


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--rounds", type=int, default=3, help="jobs of each candidate")
    option("--budget", type=float, default=0.1, help="seconds for each size in a round")
    option("--seconds", type=float, default=0.5, help="seconds for each size that constants are fitted to")
    option("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES, help="bytes")
    option("--select", default="", help="only layouts whose name contains this; the record stays as it was")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    option("--record", type=pathlib.Path, help="write the table to this file, too")
    return parser.parse_args()


def main():
    options = arguments()
    options.binary = options.binary.resolve()
    cells = [(layout, rate) for layout, rate in CELLS if options.select in layout]
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = (row for layout, rate in cells for row in cells_of(options, layout, rate))
        rows = list(printed(HEAD, found, shown, options.json))
    if options.record and not options.select:
        options.record.write_text(page(options, rows))
    return 0 if rows and within(rows, "regret") >= CELLS_WITHIN else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JobFailed, NoNamespaces) as problem:
        sys.exit(f"{problem}")
