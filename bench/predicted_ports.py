"""Predicted and measured times between hosts whose ports differ, at rates that no fit has seen.

Constants are fitted on hosts with equal ports. Then each cell names the rates of its hosts; a topology file tells the job its ports, and
`herringbone explain` what it would take. Hosts are network namespaces. Exit code 0: nine of ten predictions lie within 0.9 to 1.1.
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
from predictions import constants_lines, inside, is_within, note
from processes import JobFailed, Namespaces, NoNamespaces
from regret import LAYOUTS, Machine, constants
from rigs import LOCK, ROOT
from simulator import BAND, MIB, measured, say
from text_tables import printed, table

FITTED_RATE = 500
PAYLOAD = 0.993
"""Of a link's bytes, those that are no headers, with frames of 9000 bytes."""
CELLS = [
    ([500, 500, 500, 125], "chosen", 4),
    ([500, 500, 500, 250], "chosen", 8),
    ([400, 400, 200, 100], "chosen", 4),
    ([600, 300, 300, 300], "chosen", 8),
    ([800, 800, 800, 100], "chosen", 4),
    ([300, 300, 60, 60], "chosen", 2),
    ([500, 500, 150, 500], "radix", 4),
    ([500, 200, 500, 500], "ring", 4),
    ([700, 350, 700, 175], "radix(2,2)", 4),
    ([250, 500, 500, 500], "doubling", 2),
]
"""Mbit/s of each host, what is forced, MiB."""
LAYOUT = "4 hosts"


def ports_file(folder, rates):
    """The ports as a topology."""
    path = pathlib.Path(folder, "ports.json")
    rate = [round(mbit / 8000 * PAYLOAD, 6) for mbit in rates]
    ports = [{"host": host, "out": each, "into": each} for host, each in enumerate(rate)]
    nodes = [{"name": f"host{host}", "kind": "host"} for host in range(len(rates))]
    path.write_text(json.dumps({"nodes": nodes, "ports": ports}))
    return str(path)


def run(words, environment):
    """What a command of ours prints as JSON."""
    done = subprocess.run([str(word) for word in words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JobFailed(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def predicted(options, links, path, algorithm, size):
    """The algorithm, and the seconds that the simulator says."""
    workers, per_host, _ = LAYOUTS[LAYOUT]
    environment = os.environ | {"HERRINGBONE_TOPOLOGY": links, "HERRINGBONE_CALIBRATION": str(path)}
    if algorithm == "chosen":
        words = [options.binary, "explain", "--ranks", workers, "--per-host", per_host, "--sizes", size, "--json"]
        algorithm = run(words, environment)["algorithm"]
    words = [options.binary, "simulate", "--algorithm", algorithm, "--ranks", workers, "--per-host", per_host]
    words += ["--bytes", size, "--topology", links, "--calibration", path, "--json"]
    return algorithm, run(words, os.environ)["seconds"]


def compared(options):
    """A row for each cell."""
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(FITTED_RATE)
        say(f"fitting constants on {LAYOUT} with ports of {FITTED_RATE} Mbit/s")
        with Namespaces(len(CELLS[0][0]), FITTED_RATE) as spaces:
            path = constants(options, LAYOUT, machine, spaces, folder)
        options.text = path.read_text()
        for number, (rates, asked, mib) in enumerate(CELLS):
            links, size = ports_file(folder, rates), mib * MIB
            algorithm, seconds = predicted(options, links, path, asked, size)
            say(f"{number + 1} of {len(CELLS)}: {algorithm}, {rates} Mbit/s")
            slow = dict(enumerate(rates))
            with Namespaces(len(rates), FITTED_RATE, slow) as spaces:
                rounds = [measured(options, spaces, LAYOUT, algorithm, [size], None)[size] for _ in range(options.rounds)]
            median = statistics.median(rounds)
            yield {
                "mbit_per_s": rates,
                "algorithm": algorithm,
                "bytes": size,
                "predicted_s": seconds,
                "measured_s": median,
                "spread": max(rounds) / min(rounds),
                "ratio": seconds / median,
            }


HEAD = ["Mbit/s of the hosts", "algorithm", "size", "predicted", "measured", "slowest by fastest round", "ratio", ""]


def cells_of(row):
    """A row as the table shows it."""
    rates = ", ".join(map(str, row["mbit_per_s"]))
    times = [duration(row["predicted_s"]), duration(row["measured_s"])]
    last = note(row, BAND)
    return [rates, row["algorithm"], human(row["bytes"]), *times, f"{row['spread']:.2f}", f"{row['ratio']:.3f}", last]


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--rounds", type=int, default=5, help="jobs of each cell; the result is their median")
    option("--budget", type=float, default=1.0, help="seconds for each round")
    option("--seconds", type=float, default=1.0, help="seconds for each size that constants are fitted to")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    option("--record", type=pathlib.Path, help="write the table to this file, too")
    return parser.parse_args()


def page(options, rows):
    """The record's page."""
    lines = [
        "# Predicted times between unlike ports",
        "",
        f"`make predicted-ports` wrote this page. {inside(rows, BAND)} of the median of {options.rounds} jobs.",
        f"Constants were fitted on four hosts with ports of {FITTED_RATE} Mbit/s, so no fit has seen these rates. Hosts are network namespaces.",
        "",
        table(HEAD, map(cells_of, rows)),
        "",
        *constants_lines("The constants", options.text),
    ]
    return "\n".join(lines)


def main():
    options = arguments()
    options.binary = options.binary.resolve()
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = list(printed(HEAD, compared(options), cells_of, options.json))
    if options.record:
        options.record.write_text(page(options, rows))
    return 0 if 10 * sum(is_within(row, BAND) for row in rows) >= 9 * len(rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JobFailed, NoNamespaces) as problem:
        sys.exit(f"{problem}")
