"""All-reduces between hosts of which one has a slower port: a job that measures its ports, one that knows nothing, and ring.

Hosts are network namespaces. The algorithms take turns in the same processes. Prints a table for a record.
"""

import argparse

from lab_turns import table, turns
from machine import commit, machine
from processes import Namespaces, NoNamespaces, Processes, signals_held

JOBS = [("measured ports", None, True), ("default", None, False), ("radix", "radix", False), ("ring", "ring", False)]
"""Names, what is forced, and whether the job measures."""


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
            lines = turns(spaces, processes, options, JOBS, "measure")
    except NoNamespaces as reason:
        raise SystemExit(f"hosts are network namespaces: {reason}") from None
    facts = machine()
    print(f"* CPU: {facts['CPU']}, {facts['cores']} cores, {facts['kernel']}; commit {commit()}")
    print(
        f"* {options.hosts} hosts of {options.fast:g} Mbit/s, the last one of {options.slow:g}; {options.rounds} turns of each\n"
    )
    print(table(lines, options, JOBS, "the slow port"))
    for line in lines:
        if line.get("plan") in ("measured ports", "default"):
            print(f"* {line['bytes']} B, {line['plan']}: {line['why']}")


if __name__ == "__main__":
    main()
