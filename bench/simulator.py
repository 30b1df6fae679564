"""Compares simulated times with measured ones: real ranks on hosts that are network namespaces, behind limited links.

First `herringbone bench --calibrate` fits one set of constants to times of four hosts and four reducers, unless --constants
names some. Then every cell (an algorithm, a layout, a size) is predicted, and measured after. Cells that the constants were
fitted on are named in the table; the others test them. Exit code 0: all cells lie within 0.9 to 1.1.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import duration, human
from hosts import figures
from predictions import constants_lines, inside, is_within, note
from processes import JobFailed, Namespaces, NoNamespaces, Processes, Reducer
from rigs import LOCK, REDUCER_PORT, ROOT, TOKEN
from text_tables import printed, table

MIB = 1 << 20
BAND = (0.9, 1.1)

# Name, workers, workers on each host, reducers.
LAYOUTS = {
    "4 hosts": (4, 1, 0),
    "4 hosts, 4 reducers": (4, 1, 4),
    "2 hosts of 2": (4, 2, 0),
    "4 hosts, 2 reducers": (4, 1, 2),
    "3 hosts": (3, 1, 0),
    "6 hosts": (6, 1, 0),
}
# Layout, algorithm, sizes in MiB, Mbit/s of each link.
KNOWN = [
    ("4 hosts", "radix", (1, 8, 25), 500),
    ("4 hosts", "ring", (1, 8, 25), 500),
    ("4 hosts", "doubling", (1, 8, 25), 500),
    ("4 hosts", "trees", (1, 8, 25), 500),
    ("4 hosts, 4 reducers", "reduction_server", (1, 8, 25), 500),
    ("2 hosts of 2", "hierarchical", (1, 8, 25), 500),
]
UNSEEN = [
    ("4 hosts", "radix", (3,), 1000),
    ("3 hosts", "radix", (2, 12), 500),
    ("6 hosts", "ring", (5,), 500),
    ("6 hosts", "radix(2,2,2)", (5,), 500),
    ("4 hosts, 2 reducers", "reduction_server", (4,), 500),
]
FITTED = {("4 hosts", "radix", 1), ("4 hosts", "radix", 25), ("4 hosts", "doubling", 8)}
"""Of the cells, those that `bench --calibrate` times as well."""
FITTED_LAYOUT, FITTED_RATE = "4 hosts, 4 reducers", 500


def predicted(options, layout, algorithm, bytes_, rate, links):
    """Seconds that the simulator says, and what it says is the limit."""
    workers, per_host, reducers = LAYOUTS[layout]
    words = [options.binary, "simulate", "--algorithm", algorithm, "--ranks", workers, "--per-host", per_host]
    words += ["--reducers", reducers, "--bytes", bytes_, "--gbps", rate / 1000, "--json"]
    words += ["--calibration", options.constants]
    words += ["--topology", links] if algorithm == "trees" else []
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobFailed(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return found["seconds"], found["limit"]["place"]


@contextlib.contextmanager
def job(options, spaces, layout, words, **environment):
    """Runs a command as every rank of a layout, with its reducers, to its end; yields the folder that BENCH_OUT names."""
    workers, per_host, reducers = LAYOUTS[layout]
    hosts = workers // per_host
    with Processes(spaces) as processes, tempfile.TemporaryDirectory() as folder:
        asked = {"BENCH_OUT": folder, "HERRINGBONE_TOKEN": TOKEN, **environment}
        environment = os.environ | processes.place(workers) | asked
        for reducer in range(reducers):
            listen = f"{spaces.address(hosts + reducer)}:{REDUCER_PORT}"
            serve = [options.binary, "serve", "--listen", listen, "--json"]
            Reducer(processes.start(serve, hosts + reducer, env=environment, stdout=subprocess.PIPE, text=True))
        extra = [spaces.address(hosts + reducer) for reducer in range(reducers)]
        environment["BENCH_EXTRA_HOSTS"] = ",".join(extra)
        if extra and "--rig" not in words:
            environment["HERRINGBONE_REDUCERS"] = ",".join(f"{host}:{REDUCER_PORT}" for host in extra)
        processes.run([options.binary, *words], environment, [rank // per_host for rank in range(workers)])
        yield folder


def measured(options, spaces, layout, algorithm, sizes, links):
    """Seconds of each size in one job, as rank 0 has them: the median of its calls."""
    environment = {
        "BENCH_SIZES": ",".join(str(size) for size in sizes),
        "BENCH_BUDGET_S": str(options.budget),
        "HERRINGBONE_ALGORITHM": algorithm,
    }
    environment |= {"HERRINGBONE_TOPOLOGY": links} if algorithm == "trees" else {}
    with job(options, spaces, layout, ["bench", "--rig"], **environment) as folder:
        found = figures(folder, LAYOUTS[layout][0])
        return {bytes_: seconds for bytes_, (seconds, _) in found.items()}


def fitted(options, folder):
    """A file of constants that `bench --calibrate` finds on the rig, whose hosts share this machine's cores."""
    begin, path = pathlib.Path(folder, "begin"), pathlib.Path(folder, "constants")
    begin.write_text(f"shared_cores = {os.cpu_count()}\n")
    workers, per_host, reducers = LAYOUTS[FITTED_LAYOUT]
    words = ["bench", "--calibrate", path, "--gbps", str(FITTED_RATE / 1000), "--seconds", "2"]
    say(f"fitting constants on {FITTED_LAYOUT}")
    with (
        Namespaces(workers // per_host + reducers, FITTED_RATE) as spaces,
        job(options, spaces, FITTED_LAYOUT, words, HERRINGBONE_CALIBRATION=str(begin)),
    ):
        say(path.read_text())
    return path


def uniform_links(folder, workers):
    """A file of links that are all alike: what a switch is to trees."""
    path = pathlib.Path(folder, f"links-{workers}.csv")
    rows = [",".join("0" if row == column else "1" for column in range(workers)) for row in range(workers)]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def compared(options):
    """A row for each cell: predicted, then measured in several rounds."""
    cells = KNOWN + UNSEEN if options.unseen else KNOWN
    cells = [cell for cell in cells if options.select in f"{cell[0]} {cell[1]}"]
    with open(LOCK, "w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options.constants = options.constants or fitted(options, folder)
        options.text = options.constants.read_text()
        for number, (layout, algorithm, sizes, rate) in enumerate(cells):
            say(f"{number + 1} of {len(cells)}: {algorithm} on {layout}")
            workers, per_host, reducers = LAYOUTS[layout]
            links = uniform_links(folder, workers)
            sizes = [mib * MIB for mib in sizes]
            said = {size: predicted(options, layout, algorithm, size, rate, links) for size in sizes}
            with Namespaces(workers // per_host + reducers, rate) as spaces:
                rounds = [measured(options, spaces, layout, algorithm, sizes, links) for _ in range(options.rounds)]
            for size in sizes:
                seconds = statistics.median(each[size] for each in rounds)
                yield {
                    "layout": layout,
                    "algorithm": algorithm,
                    "bytes": size,
                    "mbit_per_s": rate,
                    "predicted_s": said[size][0],
                    "measured_s": seconds,
                    "ratio": said[size][0] / seconds,
                    "limit": said[size][1],
                    "fitted": (layout, algorithm, size // MIB) in FITTED,
                }


def say(text):
    """Says on standard error what happens."""
    print(text, file=sys.stderr, flush=True)


HEAD = ["layout", "algorithm", "size", "Mbit/s", "predicted", "measured", "ratio", "limit", ""]


def cells_of(row):
    """A row as the table shows it."""
    times = [duration(row["predicted_s"]), duration(row["measured_s"])]
    last = "fitted" if row["fitted"] else note(row, BAND)
    figures_ = [human(row["bytes"]), str(row["mbit_per_s"]), *times, f"{row['ratio']:.3f}"]
    return [row["layout"], row["algorithm"], *figures_, row["limit"], last]


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--constants", type=pathlib.Path, help="a file of constants [default: fitted on the rig]")
    option("--rounds", type=int, default=3, help="jobs for each layout and algorithm; the result is their median")
    option("--budget", type=float, default=0.5, help="seconds for each size in a round")
    option("--select", default="", help="only cells whose layout and algorithm contain this; the record stays as it was")
    option("--known", dest="unseen", action="store_false", help="leave out cells that the constants have not seen")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    option("--record", type=pathlib.Path, help="write the table to this file, too")
    return parser.parse_args()


def page(options, rows):
    """The record's page."""
    lines = [
        "# Simulated and measured times",
        "",
        f"`make validate-simulator` wrote this page. {inside(rows, BAND)}",
        "of the measured time. Hosts are network namespaces of one computer, with a token bucket on each side of each link.",
        "`herringbone bench --calibrate` fitted one set of constants for all rows, on 4 hosts with 4 reducers. Rows that it also timed",
        "are marked.",
        "",
        table(HEAD, map(cells_of, rows)),
        "",
        *constants_lines("The constants", options.text),
    ]
    return "\n".join(lines)


def main():
    options = arguments()
    options.binary = options.binary.resolve()
    rows, is_whole = [], False
    with contextlib.suppress(KeyboardInterrupt):
        rows.extend(printed(HEAD, compared(options), cells_of, options.json))
        is_whole = options.unseen and not options.select
    if options.record and is_whole:
        options.record.write_text(page(options, rows))
    return 0 if rows and all(is_within(row, BAND) for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JobFailed, NoNamespaces) as problem:
        sys.exit(f"{problem}")
