"""Calls, makes groups and kills workers for a while, counts what processes have before and after; `make leaks` calls it.

The exit code is 0 if no process has more descriptors, sockets or threads, or 4 MiB more memory, and nothing is left in /dev/shm.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from importlib.metadata import version

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from machine import machine
from soak import LIMIT_KIB, RANKS, Leak, Phase, soak

COLUMNS = ["descriptors", "sockets", "threads", "kib"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--operations", type=int, default=100_000, metavar="N", help="on each rank (100,000)")
    option("--groups", type=int, default=1_000, metavar="N", help="made, used and closed (1,000)")
    option("--kills", type=int, default=200, metavar="N", help="of workers, by SIGKILL (200)")
    option("--record", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def row(phase: Phase) -> str:
    worst = [max(more[name] for more in phase.more.values()) for name in COLUMNS]
    cells = [f"{phase.amount:,} {phase.what}", phase.way, f"{phase.seconds:.0f}", *(f"{number:+,}" for number in worst)]
    return f"| {' | '.join(cells)} |"


def table(phases: list[Phase]) -> list[str]:
    head = "| what | over | seconds | descriptors | sockets | threads | memory in KiB |"
    return [head, "|---|---|---|---|---|---|---|", *map(row, phases)]


def page(phases: list[Phase]) -> str:
    facts = {"date": time.strftime("%Y-%m-%d"), "herringbone": version("herringbone"), **machine()}
    lines = [
        "# Leaks",
        f"{RANKS} ranks, and a reducer over TCP, work for a while. Each row has the growth of the process that grew most. Descriptors,",
        f"sockets and threads must not grow, and memory by at most {LIMIT_KIB:,} KiB, which allocators keep. A row with too much memory",
        "was repeated, because a leak grows again. After a worker is killed, the others continue without it and close, and a world",
        "forms with a new process. `/dev/shm` and the unix sockets had nothing of this program afterwards.",
        "",
        "`make leaks` writes this page.",
        "",
        *table(phases),
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = arguments()
    phases: list[Phase] = []
    wrong: list[str] = []
    try:
        for phase in soak(options.operations, options.groups, options.kills):
            phases.append(phase)
            wrong += phase.wrong()
            print(row(phase), flush=True)
    except Leak as leak:
        wrong.append(str(leak))
    if options.record and not wrong:
        options.record.write_text(page(phases))
    print("\n".join(wrong) or "no leak")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
