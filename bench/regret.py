"""How much slower than the best the plan's choice is: every candidate, measured beside the others, in turns.

A cell is a layout of hosts, a rate of their links, a latency between them, and a size. For each layout, rate and latency
`herringbone bench --calibrate` fits constants first; `herringbone explain` says what a job would choose with them, with the
round trip alone that jobs measure as they form, and by the table of sizes. A cell is decided if the slowest round of the best
candidate is faster than the fastest round of the second. In the other cells the best differs from the second by less than the
spread. Exit code 0: in 95 % of the decided cells the choice by constants is within 10 % of the best.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from distant import DistantHosts
from figures import duration, human
from processes import JobFailed, NoNamespaces
from rigs import LOCK, ROOT
from simulator import LAYOUTS, job, measured, say
from text_tables import printed, table


@dataclasses.dataclass(frozen=True)
class Machine:
    """Mbit/s of each host's link, if it is limited, and milliseconds from a host to another beside what the link takes."""

    rate: float | None
    latency: float = 0

    def __str__(self):
        rate = f"{self.rate:g} Mbit/s" if self.rate else "no limit"
        return f"{rate}, {self.latency:g} ms" if self.latency else rate

    @property
    def round_trip(self):
        """Microseconds, with what the namespaces themselves take."""
        return round(2000 * self.latency) + 60


LAYOUTS |= {f"1 host of {ranks}": (ranks, ranks, 0) for ranks in (2, 4)}
LAYOUTS |= {"2 hosts": (2, 1, 0), "8 hosts": (8, 1, 0), "2 hosts of 4": (8, 4, 0)}
SIZES = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20]
CELLS = [
    ("1 host of 4", Machine(None)),
    ("2 hosts", Machine(500)),
    ("2 hosts", Machine(10_000)),
    ("4 hosts", Machine(100)),
    ("4 hosts", Machine(500)),
    ("4 hosts", Machine(2_000)),
    ("4 hosts", Machine(500, 1)),
    ("4 hosts", Machine(100, 20)),
    ("4 hosts", Machine(500, 20)),
    ("4 hosts, 4 reducers", Machine(500)),
    ("2 hosts of 2", Machine(500)),
    ("2 hosts of 4", Machine(500, 1)),
    ("8 hosts", Machine(100)),
    ("8 hosts", Machine(500, 20)),
]
LONGEST_SECONDS = 1.5
"""A size that takes the link longer than this for one buffer is left out."""
HOPELESS = 3
"""A candidate that took this many times the best's time in the first round is not measured again."""
MOST_REGRET, CELLS_WITHIN = 0.10, 0.95
CHOOSERS = {"constants": "by constants", "round_trip": "by the round trip", "table": "by the table"}


def constants(options, layout, machine, spaces, folder):
    """A file of constants of a layout."""
    workers, *_ = LAYOUTS[layout]
    begin, path = pathlib.Path(folder, "begin"), pathlib.Path(folder, "constants")
    begin.write_text(f"shared_cores = {os.cpu_count() if workers > os.cpu_count() or machine.rate else 0}\n")
    words = ["bench", "--calibrate", path, "--seconds", str(options.seconds)]
    words += ["--gbps", str(machine.rate / 1000)] if machine.rate else []
    with job(options, spaces, layout, words, HERRINGBONE_CALIBRATION=str(begin)):
        return path


def explained(options, layout, size, path=None, round_trip=None):
    """What a job chooses with the constants at `path`, with a round trip, or without either; and all candidates."""
    workers, per_host, reducers = LAYOUTS[layout]
    words = [options.binary, "explain", "--ranks", workers, "--per-host", per_host, "--reducers", reducers]
    words += ["--sizes", size, "--candidates", "--json"]
    words += ["--round-trip-us", round_trip] if round_trip and workers > per_host else []
    environment = {name: text for name, text in os.environ.items() if name != "HERRINGBONE_CALIBRATION"}
    environment |= {"HERRINGBONE_CALIBRATION": str(path)} if path else {}
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobFailed(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return found["algorithm"], [each["algorithm"] for each in found["candidates"]["by"]]


def sizes_of(options, machine):
    """The sizes that do not take too long."""
    rate = (machine.rate or 10_000) * 125_000
    return [size for size in options.sizes if size / rate <= LONGEST_SECONDS]


class Clock:
    """How many groups of cells are done, and how long the rest will take."""

    def __init__(self, groups):
        self.groups, self.done, self.began = groups, 0, time.monotonic()

    def begins(self, what):
        """A group begins."""
        left = ""
        if self.done:
            minutes = (time.monotonic() - self.began) / self.done * (self.groups - self.done) / 60
            left = f", about {minutes:.0f} min left"
        say(f"[{'#' * self.done}{'.' * (self.groups - self.done)}] {self.done + 1} of {self.groups}: {what}{left}")
        self.done += 1


def cells_of(options, layout, machine):
    """A row for each size of a layout on such machines."""
    workers, per_host, reducers = LAYOUTS[layout]
    sizes = sizes_of(options, machine)
    spaces = DistantHosts(workers // per_host + reducers, machine.rate, machine.latency)
    with spaces, tempfile.TemporaryDirectory() as folder:
        path = constants(options, layout, machine, spaces, folder)
        chosen, candidates = {}, {}
        for size in sizes:
            ways = {"constants": {"path": path}, "round_trip": {"round_trip": machine.round_trip}, "table": {}}
            said = {name: explained(options, layout, size, **way) for name, way in ways.items()}
            chosen[size] = {name: algorithm for name, (algorithm, _) in said.items()}
            candidates[size] = set(said["constants"][1]) | set(chosen[size].values())
        times = {size: {} for size in sizes}
        for round_ in range(options.rounds):
            for algorithm in sorted(set().union(*candidates.values())):
                asked = [size for size in sizes if algorithm in candidates[size]]
                if not asked:
                    continue
                say(f"  {layout}, {machine}: round {round_ + 1} of {options.rounds}, {algorithm}")
                for size, seconds in measured(options, spaces, layout, algorithm, asked, None).items():
                    times[size].setdefault(algorithm, []).append(seconds)
            for size in sizes:
                best = min(min(each) for each in times[size].values())
                may_win = {name for name, each in times[size].items() if min(each) < HOPELESS * best}
                candidates[size] = may_win | set(chosen[size].values())
    for size in sizes:
        yield row_of(layout, machine, size, chosen[size], times[size])


def row_of(layout, machine, size, chosen, times):
    """What a cell's candidates took, and what choosing cost."""
    medians = {algorithm: statistics.median(each) for algorithm, each in times.items()}
    order = sorted(medians, key=medians.get)
    best, second = order[0], order[min(1, len(order) - 1)]

    def regret(algorithm):
        ties = min(times[algorithm]) <= max(times[best])
        return 0.0 if ties else medians[algorithm] / medians[best] - 1

    return {
        "layout": layout,
        "machine": str(machine),
        "bytes": size,
        "best": best,
        "best_s": medians[best],
        "second_s": medians[second],
        "decided": min(times[second]) > max(times[best]),
        "chosen": chosen,
        "regret": {name: regret(algorithm) for name, algorithm in chosen.items()},
        "candidates_s": medians,
    }


HEAD = ["layout", "links", "size", "best", "", "second", "decided"]
HEAD += [part for name in CHOOSERS.values() for part in (name, "regret")]


def shown(row):
    """A row as the table shows it."""
    of_choosers = [(row["chosen"][name], f"{100 * row['regret'][name]:.0f} %") for name in CHOOSERS]
    best = [row["best"], duration(row["best_s"]), duration(row["second_s"])]
    decided = "yes" if row["decided"] else "no"
    return [row["layout"], row["machine"], human(row["bytes"]), *best, decided, *(part for pair in of_choosers for part in pair)]


def within(rows, name):
    """The part of the cells whose regret is small."""
    return sum(row["regret"][name] <= MOST_REGRET for row in rows) / max(1, len(rows))


def summary(options, rows):
    """What the rows come to, as sentences."""
    decided = [row for row in rows if row["decided"]]
    parts = [f"{text} {100 * within(decided, name):.0f} % ({100 * within(rows, name):.0f} %)" for name, text in CHOOSERS.items()]
    return [
        f"`make regret` wrote this page: medians of {options.rounds} rounds of every candidate, in turns. In {len(decided)} of {len(rows)} cells the best",
        "candidate is decided: its slowest round was faster than the second candidate's fastest. Fractions of decided cells (in brackets, of all",
        f"cells) in which choices are within {100 * MOST_REGRET:.0f} % of the best, or tie with it: {'; '.join(parts)}.",
        "Two candidates tie if their rounds overlap.",
    ]


def page(options, rows):
    """The record's page."""
    return "\n".join(["# What choosing costs", "", *summary(options, rows), "", table(HEAD, map(shown, rows)), ""])


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--rounds", type=int, default=3, help="jobs of each candidate")
    option("--budget", type=float, default=0.1, help="seconds for each size in a round")
    option("--seconds", type=float, default=0.5, help="seconds for each size that constants are fitted to")
    option("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES, help="bytes")
    option("--select", default="", help="only layouts and links that contain this; the record stays as it was")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    option("--record", type=pathlib.Path, help="write the table to this file, too")
    return parser.parse_args()


def found_rows(options, cells):
    """The rows of all cells, as they come."""
    clock = Clock(len(cells))
    for layout, machine in cells:
        clock.begins(f"{layout}, {machine}")
        yield from cells_of(options, layout, machine)


def main():
    options = arguments()
    options.binary = options.binary.resolve()
    cells = [(layout, machine) for layout, machine in CELLS if options.select in f"{layout}, {machine}"]
    rows = []
    with open(LOCK, "w") as lock, contextlib.suppress(KeyboardInterrupt):
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows.extend(printed(HEAD, found_rows(options, cells), shown, options.json))
        if options.record and not options.select:
            options.record.write_text(page(options, rows))
    say("\n".join(summary(options, rows)))
    decided = [row for row in rows if row["decided"]]
    return 0 if decided and within(decided, "constants") >= CELLS_WITHIN else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JobFailed, NoNamespaces) as problem:
        sys.exit(f"{problem}")
