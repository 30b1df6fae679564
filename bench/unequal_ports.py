"""All-reduces between hosts of which one has a slower port: a job that measures its ports, one that knows nothing, and ring.

Hosts are network namespaces. The algorithms take turns in the same processes. Prints a table for a record.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from machine import commit, machine
from processes import Namespaces, NoNamespaces, Processes, signals_held

ROOT = pathlib.Path(__file__).resolve().parents[1]
JOBS = [("measured ports", None, True), ("default", None, False), ("radix", "radix", False), ("ring", "ring", False)]
"""Names, what is forced, and whether the job measures."""


def turns(spaces, processes, options):
    """The lines of rank 0."""
    setup = {
        "address": spaces.address(0),
        "algorithms": JOBS,
        "counts": [1],
        "most": 10.0,
        "port": 29500,
        "ranks": options.hosts,
        "rounds": options.rounds,
        "single": options.rounds,
        "sizes": options.sizes,
        "token": "unequal ports of the bench",
        "topology": "measure",
    }
    environment = os.environ | {"HERRINGBONE_TOKEN": setup["token"], "HERRINGBONE_LOG": "off", "OMP_NUM_THREADS": "1"}
    environment.pop("HERRINGBONE_TOPOLOGY", None)
    command = [sys.executable, str(ROOT / "bench" / "lab_links_worker.py")]
    ranks = [
        processes.start(
            [*command, json.dumps(setup | {"rank": rank})],
            rank,
            env=environment,
            stdout=subprocess.PIPE if rank == 0 else None,
        )
        for rank in range(options.hosts)
    ]
    lines = [json.loads(text) for text in ranks[0].stdout]
    processes.finish(ranks)
    return lines


def table(lines, options):
    """The page's table: medians, and each one by K/B of the slow port."""
    head = ["bytes", "K/B of the slow port", *(name for name, _, _ in JOBS)]
    rows = [head, ["---:"] * len(head)]
    for size in options.sizes:
        bound = size * 8 / (options.slow * 1e6)
        cells = []
        for name, _, _ in JOBS:
            taken = [line["seconds"] for line in lines if line.get("algorithm") == name and line["bytes"] == size]
            median = statistics.median(taken)
            cells.append(f"{1e3 * median:.0f} ms ({median / bound:.2f})")
        rows.append([str(size), f"{1e3 * bound:.0f} ms", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def arguments():
    """The command line."""
    numbers = lambda text: [int(part) for part in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--hosts", type=int, default=4, help="hosts of one rank")
    option("--fast", type=float, default=500, help="Mbit/s of a port")
    option("--slow", type=float, default=100, help="Mbit/s of the last host's port")
    option("--sizes", type=numbers, default="1048576,8388608", metavar="LIST", help="bytes of the buffer")
    option("--rounds", type=int, default=7, help="turns of each job")
    return parser.parse_args()


def main():
    options = arguments()
    slow = {options.hosts - 1: options.slow}
    try:
        with signals_held(), Namespaces(options.hosts, options.fast, slow) as spaces, Processes(spaces) as processes:
            lines = turns(spaces, processes, options)
    except NoNamespaces as reason:
        raise SystemExit(f"hosts are network namespaces: {reason}") from None
    facts = machine()
    print(f"* CPU: {facts['CPU']}, {facts['cores']} cores, {facts['kernel']}; commit {commit()}")
    print(
        f"* {options.hosts} hosts of {options.fast:g} Mbit/s, the last one of {options.slow:g}; {options.rounds} turns of each\n"
    )
    print(table(lines, options))
    for line in lines:
        if line.get("plan") in ("measured ports", "default"):
            print(f"* {line['bytes']} B, {line['plan']}: {line['why']}")


if __name__ == "__main__":
    main()
