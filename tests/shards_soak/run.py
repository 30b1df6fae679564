"""Kills workers and reducers of trainings by shards at random; `make shards-soak` calls it.

Each job has 2 to 6 workers, a transport, up to 3 reducers and a number of shards, drawn from its seed. Its workers are killed by
SIGKILL at random times, alone and several at once, and started again by the launcher; so are reducers, which come back later. Every step that
any worker has made has to have the digest of parameters, buffers and optimizer state of one worker that nothing happens to. The exit
code is 0 if nothing was wrong.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

from machine import machine
from ports import free_port

from lab.job import environment
from lab.launched import ranks_of

EXAMPLE = ROOT / "examples" / "shards.py"
STEPS, LAST_KILL = 50, 35
"""Of a job, and after which step nobody is killed any more: a worker that comes when the others are done finds nobody."""
STEP = re.compile(r"(?:\[rank \d+\] )?step (\d+): loss (\S+), digest (\w+),")
SILENCE_SECONDS = 90
"""A job of which nothing is heard for so long hangs."""
WAIT_SECONDS = "20"
"""How long a worker waits for others: where all that had the training's state were killed at once, those that wait for them begin anew."""
END_SECONDS = 5
"""How long after the last step all others may take to end."""
COMES_BACK = 0.1
"""How likely a killed reducer is started again, each time that somebody looks, which is about seven times a second."""
SHARDS = [5, 8, 13]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option("--seconds", type=float, default=300, help="no job begins after so long (300)")
    option("--first", type=int, default=time.time_ns() % 10**9, metavar="SEED", help="of the jobs (the time)")
    option("--seed", type=int, help="only this job")
    option("--record", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def words(shards: int) -> list[str]:
    return [sys.executable, "-u", str(EXAMPLE), "--shards", str(shards), "--batch", "2", "--steps", str(STEPS)]


def alone(shards: int) -> dict[int, tuple[str, str]]:
    """The digest and the loss of each step of one worker that nothing happens to."""
    own = environment({"HERRINGBONE_RANK": "0", "HERRINGBONE_WORLD_SIZE": "1", "HERRINGBONE_STORE": f"127.0.0.1:{free_port()}"})
    done = subprocess.run(words(shards), env=own, stdout=subprocess.PIPE, text=True, check=True)
    steps = {int(step[1]): (step[3], step[2]) for step in map(STEP.match, done.stdout.splitlines()) if step}
    assert len(steps) == STEPS, done.stdout
    return steps


class Job:
    """A job from its start to its end."""

    def __init__(self, seed: int, expected: dict[int, dict[int, tuple[str, str]]]) -> None:
        self.draw, self.counts = random.Random(seed), Counter[str]()
        self.size, self.shards = self.draw.randint(2, 6), self.draw.choice(SHARDS)
        self.transport, self.reducers = self.draw.choice(["shm", "tcp"]), self.draw.choice([0, 0, 1, 2, 3])
        self.expected = expected[self.shards]
        self.lines: list[str] = []
        self.furthest, self.heard = 0, time.monotonic()
        self.next_kill = self.draw.randint(1, 4)

    def run(self) -> str:
        """What was wrong; nothing if all was well."""
        with ExitStack() as ends:
            places = [f"127.0.0.1:{free_port()}" for _ in range(self.reducers)]
            serving = {place: self.serve(place, ends) for place in places}
            own = {
                "HERRINGBONE_TRANSPORT": self.transport,
                "HERRINGBONE_REDUCERS": ",".join(places),
                "HERRINGBONE_TOKEN": "of-this-soak",
            }
            if places:
                own["HERRINGBONE_ALGORITHM"] = "reduction_server"
            launch = [sys.executable, "-m", "herringbone", "launch", "-n", str(self.size), "--max-attempts", "100", "--"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            command = [*launch, *words(self.shards), "--elastic"]
            launcher: subprocess.Popen[str] = subprocess.Popen(command, env=environment(own), text=True, bufsize=1, **pipes)  # type: ignore[call-overload]
            ends.callback(launcher.wait)
            ends.callback(launcher.terminate)
            listener = threading.Thread(target=self.listen, args=(launcher.stdout,))
            listener.start()
            while launcher.poll() is None:
                if time.monotonic() - self.heard > SILENCE_SECONDS:
                    return f"nothing was heard for {SILENCE_SECONDS} s: {[line[:300] for line in self.lines[-8:]]}"
                if self.furthest == STEPS and time.monotonic() - self.heard > END_SECONDS:
                    # Workers that came too late wait for one that is done.
                    self.counts["jobs whose last new workers came too late"] += 1
                    launcher.terminate()
                    launcher.wait()
                    launcher.returncode = 0
                time.sleep(self.draw.uniform(0.0, 0.3))
                gone = [place for place, process in serving.items() if process.poll() is not None]
                if gone and self.draw.random() < COMES_BACK:
                    serving[gone[0]] = self.serve(gone[0], ends)
                if self.next_kill <= self.furthest < LAST_KILL:
                    self.kill_some(launcher, list(serving.values()))
                    self.next_kill = self.furthest + self.draw.randint(1, 8)
            listener.join()
        return self.problem(launcher.returncode)

    def serve(self, place: str, ends: ExitStack) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "herringbone", "serve", "--listen", place]
        own = environment({"HERRINGBONE_TOKEN": "of-this-soak"})
        process = subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends.callback(process.wait)
        ends.callback(process.kill)
        return process

    def listen(self, lines: object) -> None:
        for line in lines:  # type: ignore[attr-defined]
            self.lines.append(line.rstrip("\n"))
            self.heard = time.monotonic()
            step = STEP.match(line)
            self.furthest = max(self.furthest, int(step[1]) if step else 0)

    def kill_some(self, launcher: subprocess.Popen[str], serving: list[subprocess.Popen[bytes]]) -> None:
        living = [process for process in serving if process.poll() is None]
        if living and self.draw.random() < 0.2:
            self.draw.choice(living).kill()
            self.counts["reducers killed"] += 1
        processes = ranks_of(launcher.pid)
        most = min(self.draw.choice([1, 1, 1, 2, self.size - 1]), len(processes) - 1)
        victims = self.draw.sample(sorted(processes), max(0, most))
        for rank in victims:
            try:
                os.kill(processes[rank], signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.counts["workers killed"] += 1
            self.counts["workers killed of rank 0"] += rank == 0

    def problem(self, status: int) -> str:
        made = set()
        for step in filter(None, map(STEP.match, self.lines)):
            made.add(int(step[1]))
            self.counts["steps compared"] += 1
            if self.expected[int(step[1])] != (step[3], step[2]):
                return f"step {step[1]} has digest {step[3]} and loss {step[2]}, alone {self.expected[int(step[1])]}"
        if status or made != set(range(1, STEPS + 1)):
            return f"exit {status}, steps {sorted(made)[-1:]}: {self.lines[-12:]}"
        return ""


def page(counts: Counter[str], failed: int, first: int, seconds: float) -> str:
    facts = {"date": time.strftime("%Y-%m-%d"), **machine()}
    lines = [
        "# Trainings by shards whose workers and reducers are killed",
        "`make shards-soak` wrote this page. It draws jobs of 2 to 6 workers from seeds, over shared memory and TCP, with up to 3 reducers",
        f"and {', '.join(map(str, SHARDS))} shards. They train the transformer of examples/shards.py for {STEPS} steps. After every step each worker's digest of",
        "parameters, buffers and optimizer state is compared with an undisturbed worker's.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {count:,} |" for name, count in {**counts, "failed": failed, "seconds": round(seconds)}.items()),
        "",
        f"* first seed: {first}",
        *(f"* {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    options = arguments()
    print(f"{len(SHARDS)} trainings of one worker that nothing happens to", file=sys.stderr, flush=True)
    expected = {shards: alone(shards) for shards in SHARDS}
    first = options.first if options.seed is None else options.seed
    began, seed, counts, failures = time.monotonic(), first, Counter[str](), list[str]()
    while seed == first or (options.seed is None and time.monotonic() - began < options.seconds):
        job = Job(seed, expected)
        problem = job.run()
        counts += job.counts + Counter(["jobs"])
        about = f"{job.size} workers, {job.shards} shards, {job.transport}, {job.reducers} reducers"
        if problem:
            failures.append(f"seed {seed} ({about}): {problem}\nmake shards-soak ARGS='--seed {seed}' runs this job again")
        print(f"seed {seed} ({about}): {dict(job.counts)} {problem or 'well'}", file=sys.stderr, flush=True)
        seed += 1
    print(*(f"{name:<26}{count:>10,}" for name, count in counts.items()), sep="\n")
    if failures:
        sys.exit("\n".join(failures))
    if options.record:
        options.record.write_text(page(counts, len(failures), first, time.monotonic() - began))


if __name__ == "__main__":
    main()
