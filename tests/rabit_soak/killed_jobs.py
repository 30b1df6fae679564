"""Jobs of RABIT's kind whose processes are killed from outside, at random times, alone and several at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT))

from lab.job import environment
from lab.launched import ranks_of

MODES = ["global", "local", "lazy"]
MOST_KILLS = 25
MEET_RECOVERY = 0.4
STARTS_SECONDS = 0.5
"""How long a process takes to start and to recover, about."""
VERSION_SECONDS = 0.1
"""And a version of the program."""
SILENCE_SECONDS = 60
"""A job of which nothing is heard for so long hangs."""


@dataclass
class Plan:
    """What a seed draws of a job. When its processes are killed, in seconds, is drawn, too; what they do then is not."""

    seed: int
    size: int = 0
    mode: str = ""
    transport: str = ""
    kills: int = 0
    draw: random.Random = field(default_factory=random.Random)

    @classmethod
    def of(cls, seed: int) -> Plan:
        draw = random.Random(seed)
        size, transport = draw.randint(2, 6), draw.choice(["shm", "tcp"])
        return cls(seed, size, MODES[seed % len(MODES)], transport, draw.randint(5, MOST_KILLS), draw)


@dataclass
class Rank:
    """What the processes of a rank have said."""

    pids: list[int] = field(default_factory=list)
    is_level: bool = False
    """Its process has what the others have: it has come to the end of a version."""
    model: str = ""


class Ended(Exception):
    """A job did not come to the end that it has without losses."""


class Job:
    """A job, from its start to its end."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.counts = plan, Counter[str]()
        self.ranks = [Rank() for _ in range(plan.size)]
        self.killed: set[int] = set()
        self.lock = threading.Lock()
        self.heard = time.monotonic()
        self.spared_rank = plan.draw.randrange(plan.size)
        self.others: list[str] = []

    def run(self) -> Counter[str]:
        """What has happened, by its name.

        Raises:
            Ended: something was wrong.
        """
        plan = self.plan
        words = ["-n", str(plan.size), "--max-attempts", "1000", "--", sys.executable, str(HERE / "worker.py")]
        command = [sys.executable, "-m", "herringbone", "launch", *words, str(plan.seed), plan.mode]
        # All ranks have copies of all local models, so one process that lives is enough.
        own = {"HERRINGBONE_TRANSPORT": plan.transport, "rabit_local_replica": str(plan.size - 1)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, env=environment(own), text=True, bufsize=1, **pipes) as launcher:  # type: ignore[call-overload]
            listener = threading.Thread(target=self.listen, args=(launcher.stdout,))
            listener.start()
            try:
                self.kill_some(launcher)
                while launcher.poll() is None:
                    self.check_silence()
                    time.sleep(0.02)
            finally:
                launcher.terminate()
                listener.join()
        self.check(launcher.returncode)
        return self.counts

    def listen(self, lines: object) -> None:
        for line in lines:  # type: ignore[attr-defined]
            with self.lock:
                self.heard = time.monotonic()
                self.hear(line.rstrip("\n"))

    def hear(self, line: str) -> None:
        match line.removeprefix("[rank ").replace("]", "", 1).split():
            case [rank, "starts", pid]:
                self.ranks[int(rank)].pids.append(int(pid))
            case [_, "loads", version]:
                self.counts["processes that continued"] += version != "0"
            case [rank, "ends", pid] if int(pid) not in self.killed:
                self.ranks[int(rank)].is_level = True
                if all(each.is_level for each in self.ranks):
                    self.spared_rank = self.plan.draw.randrange(self.plan.size)
            case [_, "spared", calls]:
                self.counts["inputs that were not computed again"] += int(calls)
            case [rank, "model", pid, *models] if int(pid) not in self.killed:
                self.ranks[int(rank)].model = " ".join(models)
            case [_, "ends" | "model", *_]:
                pass  # it was killed meanwhile
            case _:
                self.others.append(line)

    def check_silence(self) -> None:
        if time.monotonic() - self.heard > SILENCE_SECONDS:
            raise Ended(f"nothing was heard for {SILENCE_SECONDS} s: {self.shown()}")

    def kill_some(self, launcher: subprocess.Popen[str]) -> None:
        draw = self.plan.draw
        while self.counts["kills"] < self.plan.kills and launcher.poll() is None:
            # Some follow at once, so that they meet those who recover.
            if draw.random() < MEET_RECOVERY:
                time.sleep(draw.uniform(0, STARTS_SECONDS))
            else:
                self.await_level(launcher)
                time.sleep(draw.uniform(0, VERSION_SECONDS))
            most = draw.choice([1, 1, 1, 2, self.plan.size - 1])
            with self.lock:
                self.kill(ranks_of(launcher.pid), most)

    def await_level(self, launcher: subprocess.Popen[str]) -> None:
        """Wait until all ranks have come to the end of a version since the last kill."""
        while launcher.poll() is None:
            with self.lock:
                if all(rank.is_level for rank in self.ranks):
                    return
            self.check_silence()
            time.sleep(0.005)

    def kill(self, processes: dict[int, int], most: int) -> None:
        """Kills some processes, and never all that have what others need."""
        unfinished = [rank for rank in self.ranks if not rank.model]
        last = self.plan.seed % self.plan.size
        if not unfinished or self.ranks[last].model:
            return
        living = [rank for rank, pid in processes.items() if pid not in self.killed and rank != self.spared_rank]
        victims = self.plan.draw.sample(sorted(living), min(most, len(living)))
        recovers = not all(rank.is_level for rank in self.ranks)
        for rank in victims:
            os.kill(processes[rank], signal.SIGKILL)
            self.killed.add(processes[rank])
            self.ranks[rank].is_level = False
            self.ranks[rank].model = ""
        self.counts["kills"] += len(victims)
        self.counts["kills of rank 0"] += 0 in victims
        self.counts["kills of several at once"] += len(victims) * (len(victims) > 1)
        self.counts["kills during a recovery"] += len(victims) * recovers

    def check(self, status: int) -> None:
        """That all came to the same end, and that nobody was started again who was not killed."""
        models = [rank.model.split()[:1] for rank in self.ranks]
        if status != 0 or [] in models or len({*map(tuple, models)}) != 1:
            raise Ended(f"it ended with {status} and models {models}: {self.shown()}")
        for number, rank in enumerate(self.ranks):
            lost = {*rank.pids[:-1]} - self.killed
            if lost or rank.pids[-1] in self.killed:
                raise Ended(f"rank {number} had processes {rank.pids}, of which {sorted(lost)} were not killed: {self.shown()}")

    def shown(self) -> str:
        kinds = ("SIGKILL", "starts again")
        return " | ".join(line for line in self.others if not all(kind in line for kind in kinds))[-2000:]
