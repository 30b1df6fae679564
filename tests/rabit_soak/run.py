"""Kills processes of programs that continue where they were, simulated ones and real ones; `make rabit-soak` calls it.

First the simulator runs programs from seeds, whose processes end at every step of the protocol. Then, for so many seconds, real
processes are killed by SIGKILL at random times, alone and several at once, also while others recover. Every result is compared with
the one without losses, and no process may be lost that was not killed. The exit code is 0 if nothing was wrong.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

from killed_jobs import Ended, Job, Plan
from machine import machine

SIMULATION = ["cargo", "test", "--quiet", "--profile", "soak", "--package", "herringbone-core", "--test", "replay"]
SIMULATED = "programs_that_lose_processes_continue_where_they_were"
SUM = re.compile(r"programs, (\d+) deaths, (\d+) calls replayed: (\d+) came to their end, (\d+) lost")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--seconds", type=float, default=300, help="of real processes (300)")
    option("--simulated", type=int, default=1_000_000, metavar="N", help="programs in the simulator (1,000,000); 0: none")
    option("--first", type=int, default=time.time_ns() % 10**9, metavar="SEED", help="of the real programs (the time)")
    option("--seed", type=int, help="only this real program")
    option("--at-once", type=int, default=(os.cpu_count() or 1) + 1, metavar="N", help="programs beside each other (cores + 1)")
    option("--record", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


class Failed(Exception):
    """The simulator has found something."""


def simulate(seeds: int) -> dict[str, int]:
    """What has happened in the simulator."""
    command = [*SIMULATION, "--", "--exact", SIMULATED, "--nocapture"]
    settings = os.environ | {"REPLAY_SEEDS": str(seeds)}
    print(f"{seeds:,} programs in the simulator; it is compiled first", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True)
    found = SUM.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise Failed(f"the simulator: {done.stdout[-1000:]}\nREPLAY_SEEDS={seeds} {' '.join(SIMULATION)} repeats it")
    names = [
        "processes that ended",
        "calls that were replayed",
        "programs that came to their end",
        "programs that lost state",
    ]
    return {"programs": seeds, **dict(zip(names, map(int, found.groups())))}


class Soak:
    """Real programs, for a while."""

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds = time.monotonic(), seconds
        self.counts, self.failures = Counter[str](), list[str]()

    def one(self, seed: int) -> tuple[int, Counter[str], str]:
        """A program's seed, what has happened, and what was wrong."""
        job = Job(Plan.of(seed))
        try:
            job.run()
        except Ended as problem:
            return seed, job.counts, str(problem)
        return seed, job.counts, ""

    def note(self, ended: Future[tuple[int, Counter[str], str]]) -> None:
        seed, counts, problem = ended.result()
        self.counts += counts + Counter(["programs"])
        if problem:
            self.failures.append(f"seed {seed}: {problem}\nmake rabit-soak ARGS='--seed {seed}' runs this program again")
            print("\r" + self.failures[-1], file=sys.stderr)
        if sys.stderr.isatty():
            left = max(0, self.seconds - (time.monotonic() - self.began))
            done = f"{self.counts['programs']} programs, {self.counts['kills']:,} kills, {len(self.failures)} failed"
            print(f"\r{done}, {left:.0f} s left ", end="", file=sys.stderr, flush=True)

    def run(self, first: int, at_once: int) -> None:
        print(f"real programs from seed {first} on, for {self.seconds:.0f} s", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(at_once) as threads:
            under_way, seed = {threads.submit(self.one, first + number) for number in range(at_once)}, first + at_once
            while under_way:
                over, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for ended in over:
                    self.note(ended)
                    if time.monotonic() - self.began < self.seconds:
                        under_way.add(threads.submit(self.one, seed))
                        seed += 1
        if sys.stderr.isatty():
            print(file=sys.stderr)


def page(simulated: dict[str, int], soak: Soak, first: int) -> str:
    facts = {"date": time.strftime("%Y-%m-%d"), **machine()}
    real = {**soak.counts, "failed": len(soak.failures), "seconds": round(soak.seconds)}
    lines = [
        "# Programs that lose processes",
        "`make rabit-soak` wrote this page. It draws RABIT programs from seeds, with global, local and lazy models. Every result, and",
        "every model that a new process loads, is compared with a run without losses.",
        "",
        "## In the simulator",
        "Processes end at calls, in exchanges, transfers and checkpoints, and at the end. A program can lose state only if all",
        "processes that keep it have ended.",
        "",
        *table(simulated),
        "",
        "## Real processes",
        f"2 to 6 ranks, from seed {first} on, killed by SIGKILL at random times. At least one process survives each time. No other",
        "process ended.",
        "",
        *table(real),
        "",
        *(f"* {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def table(counts: dict[str, int]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in counts.items())]


def main() -> None:
    options = arguments()
    alone = options.seed is not None
    soak = Soak(0 if alone else options.seconds)
    try:
        simulated = {} if alone or not options.simulated else simulate(options.simulated)
    except Failed as failed:
        sys.exit(str(failed))
    soak.began = time.monotonic()
    first = options.seed if alone else options.first
    soak.run(first, 1 if alone else options.at_once)
    print(*table(simulated), "", *table(soak.counts), sep="\n")
    if soak.failures:
        sys.exit("\n".join(soak.failures))
    if options.record and simulated:
        options.record.write_text(page(simulated, soak, first))


if __name__ == "__main__":
    main()
