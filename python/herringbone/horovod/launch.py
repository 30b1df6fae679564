"""The processes of a job: started, watched, and ended together; in an elastic job they come and go."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from .._herringbone import Restarter
from .common.launched import FOLDER, WORKER, Plan
from .flags import FRUITLESS
from .hosts import Discovery, Hosts, Slot, address_of, is_here, place_again, surplus
from .processes import Ends, Process, end, say

__all__ = ["Job"]

LOOK_SECONDS = 0.05
END_SECONDS_ELSEWHERE = 600.0
"""How long the launcher waits for the end of a process on another host that was started later and might never take part."""
START_AGAIN_SECONDS = 1.0
"""The pause before a process is restarted."""
READY_SECONDS_ELSEWHERE = 5.0
"""How long after its start a process on another host is assumed to be ready; a process on this host reports it."""
JOINED_SECONDS_ELSEWHERE = 20.0
"""How long after its start a process on another host is assumed to take part; a process on this host reports it."""
PATIENCE_SECONDS = 60.0
"""How long a plan waits for processes that are not ready, and the next plan for processes of the previous one."""
PLACES = re.compile(
    r"(HERRINGBONE_(RANK|WORLD_SIZE|STORE|JOB|PROGRESS_FILE)|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|HOROVOD_(FOLDER|WORKER))$"
    r"|TORCHELASTIC_"
)
"""Variables that tell a process its place in a job. The launcher's own are not passed on to its ranks."""


class WorkerState(Enum):
    """The relation of a process to the job."""

    JOINING = "no plan has it yet"
    ACTIVE = "the last plan has it"
    LEAVING = "a plan had it, and the last one does not"


@dataclass
class Worker:
    """A process, and the launcher's knowledge about it."""

    number: int
    """Its number, which no other process of the job ever has."""
    slot: Slot
    """The process. Its rank is the one at its start; later ranks follow from the order of these objects."""
    process: Process
    is_first: bool
    """Whether it was there at the job's start."""
    state: WorkerState


@dataclass
class Vacancy:
    """The place of a process that has died."""

    slot: Slot
    since: float


@dataclass
class NextStart:
    """A rank that is restarted, in a job that is not elastic."""

    slot: Slot
    attempt: int
    at: float


class Job:
    """All ranks of one start."""

    def __init__(self, slots: Sequence[Slot], options: Namespace, variables: Mapping[str, str]) -> None:
        """Ranks at these places, with these variables in addition to this process's.

        Raises:
            ValueError: a host has no address.
        """
        self._slots, self._options = list(slots), options
        self._elastic = options.min_np is not None or options.host_discovery_script is not None
        inherited = {name: value for name, value in os.environ.items() if not PLACES.match(name)}
        self._port = _held_port()
        self._plan = Plan(0, self._rendezvous_address(slots), tuple(range(len(slots))))
        self._common = inherited | dict(variables)
        self._common |= {
            "HERRINGBONE_STORE": self._plan.store,
            "HERRINGBONE_JOB": secrets.token_hex(8),
            "HERRINGBONE_WORLD_SIZE": str(len(slots)),
            "PYTHONUNBUFFERED": "1",
        }
        if not {"HERRINGBONE_TOKEN", "HERRINGBONE_TOKEN_FILE"} & set(self._common):
            self._common["HERRINGBONE_TOKEN"] = secrets.token_hex(32)
        if self._elastic:
            self._common |= {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_MIN_NP": str(options.min_np or 1)}
        if len(slots) > 1 or self._elastic:
            self._common.setdefault("OMP_NUM_THREADS", "1")
        self._workers: dict[int, Worker] = {}
        self._ends = Ends()
        self._started = 0
        self._vacancies: list[Vacancy] = []
        self._restarter: Restarter | None = None
        """Present while the job runs, if it is not elastic."""
        self._next_starts: list[NextStart] = []
        self._restarts = 0
        self._fruitless = 0
        """How many processes were restarted since the last commit."""
        self._commits_seen = 0.0
        """The time of the last known commit, by the clock of files."""
        self._published = time.monotonic()
        self._one_died = False
        """Whether one has since the last plan."""
        self._died_last: str | None = None
        """The rank that was restarted last, and how it had ended: this might be why another rank fails later."""
        self._succeeded: float | None = None
        self._stopped: int | None = None
        self._discovery: Discovery | None = None
        self.failed: int | None = None
        """The number of the worker that failed first; in a job without changes this is its rank."""
        self._folder = Path()
        """The folder for messages between the launcher and the processes, while the job runs."""

    @property
    def workers(self) -> tuple[int, ...]:
        """The number of each rank's worker in the last plan."""
        return self._plan.workers

    def run(self) -> int:
        """Start all ranks. Once all have ended, return the first exit status that is not 0, or 0.

        Raises:
            StartError: the program cannot be started.
        """
        previous = {}
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        # Only this user reads it.
        self._folder = Path(tempfile.mkdtemp(prefix="horovodrun-"))
        try:
            if not self._elastic:
                self._restarter = Restarter(len(self._slots), self._options.max_attempts)
            self._plan.put_into(self._folder)
            for slot in self._slots:
                self._start(slot, is_first=True)
            if self._options.host_discovery_script:
                self._discovery = Discovery(self._options, say)
            return self._watch()
        finally:
            if self._discovery is not None:
                self._discovery.end()
            self._ends.close()
            end([worker.process for worker in self._workers.values()])
            for worker in self._workers.values():
                worker.process.finish()
            self._restarter = None
            shutil.rmtree(self._folder, ignore_errors=True)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        self._stopped = 128 + number

    def _watch(self) -> int:
        """Watch the ranks until all have ended, or one fails and is not restarted."""
        while (self._workers or self._next_starts) and self._stopped is None:
            for numbers in self._ends.next(LOOK_SECONDS):
                together = [self._workers.pop(number) for number in numbers]
                for worker in together:
                    worker.process.finish()
                for worker in together:
                    status = self._after(worker, together)
                    if status:
                        self.failed = worker.number if self.failed is None else self.failed
                        return status
            self._start_again()
            if self._elastic and not self._succeeded:
                self._change()
            rest = self._workers.values()
            if self._succeeded and not self._next_starts and all(self._came_too_late(worker) for worker in rest):
                break
            for worker in self._workers.values():
                worker.process.look()
        return self._stopped or 0

    def _after(self, worker: Worker, together: Sequence[Worker]) -> int:
        """Handle the end of a process, one of several that ended together; returns 0 if the job continues."""
        rank, status = worker.process.slot.rank, worker.process.status()
        if worker.state is WorkerState.LEAVING:
            say(f"rank {rank} has left")
        elif status == 0:
            self._succeeded = self._succeeded or time.monotonic()
            if self._restarter is not None:
                self._restarter.decide(rank, status)
                if waiting := self._restarter.waits_in_vain():
                    self.failed, why = waiting
                    say(why)
                    return 1
        elif self._succeeded and not worker.is_first:
            # It came too late to take part.
            say(f"rank {rank} ended {_describe(status)} after other ranks had finished")
        elif self._may_start_again():
            self._restarts, self._fruitless = self._restarts + 1, self._fruitless + 1
            self._one_died = True
            self._died_last = f"rank {rank} had ended {_describe(status)}"
            self._vacancies.append(Vacancy(worker.slot, time.monotonic()))
            say(f"rank {rank} ended {_describe(status)}; restarting it")
        elif self._starts_again(worker):
            pass
        elif self._restarter is not None and self._options.max_attempts > 1:
            say(self._restarter.failure(rank))
            return _exit_status(status)
        else:
            others = [other.process for other in together if other is not worker and other.process.status()]
            or_others = "".join(f", or rank {other.slot.rank}, {_describe(other.status())}" for other in others)
            place, after = (" first", "") if self._died_last is None else ("", f", after {self._died_last}")
            say(f"rank {rank} failed{place}, {_describe(status)}{or_others}{after}; its own message, if any, is above")
            if self._goes_round():
                begun = f"processes were restarted {self._fruitless} times without a commit in between"
                say(f"{begun}; fix what ends rank {rank}, or allow more restarts with --reset-limit")
            return _exit_status(status)
        return 0

    def _starts_again(self, worker: Worker) -> bool:
        """Whether a failed rank is restarted, after a pause."""
        rank, status = worker.slot.rank, worker.process.status()
        decided = None if self._restarter is None else self._restarter.decide(rank, status)
        if decided is None:
            return False
        attempt, pause = decided
        self._next_starts.append(NextStart(worker.slot, attempt, time.monotonic() + pause))
        say(f"rank {rank} ended {_describe(status)} and starts again, as attempt {attempt}")
        return True

    def _start_again(self) -> None:
        """Start the ranks whose pause is over."""
        due = [start for start in self._next_starts if start.at <= time.monotonic()]
        for start in due:
            self._next_starts.remove(start)
            self._start(start.slot, is_first=True, attempt=start.attempt)

    def _may_start_again(self) -> bool:
        """Whether a restart makes sense: other ranks must have the training's state, and none has finished."""
        limit = self._options.reset_limit
        others_know = any(map(self._knows, self._workers.values()))
        is_allowed = not self._goes_round() if limit is None else self._restarts < limit
        return self._elastic and not self._succeeded and others_know and is_allowed

    def _goes_round(self) -> bool:
        """Whether processes are restarted again and again without progress. Only ranks of this host report their commits
        here."""
        if not any(is_here(worker.slot.host) for worker in self._workers.values()):
            return False
        commits = [path.stat().st_mtime for path in self._folder.glob("*.committed")]
        if max(commits, default=0.0) > self._commits_seen:
            self._commits_seen, self._fruitless = max(commits), 0
        return self._elastic and self._options.reset_limit is None and self._fruitless >= FRUITLESS

    def _came_too_late(self, worker: Worker) -> bool:
        """Whether a process that was started later still waits for the others, although they have finished."""
        if worker.is_first:
            return False
        if is_here(worker.slot.host):
            return not self._has_said(worker, "joined")
        return time.monotonic() - (self._succeeded or 0.0) > END_SECONDS_ELSEWHERE

    def _has_said(self, worker: Worker, word: str) -> bool:
        return (self._folder / f"{worker.number}.{word}").exists()

    def _change(self) -> None:
        """Start processes for free slots, and plan the job with them once they are ready."""
        present = [worker for worker in self._workers.values() if worker.state is not WorkerState.LEAVING]
        # Hosts keep the processes that have the state.
        present.sort(key=lambda worker: (not self._knows(worker), worker.slot.rank))
        hosts = None if self._discovery is None else self._discovery.answer()
        going = [] if hosts is None else self._without_room(present, hosts)
        slots = [worker.slot for worker in present if worker not in going]
        self._fill_vacancies(slots)
        if hosts is not None and not self._vacancies:
            self._grow(slots, hosts)
        self._publish(going)

    def _without_room(self, present: Sequence[Worker], hosts: Hosts) -> list[Worker]:
        """The processes that have to leave, because their host has no slot for them any more."""
        places = [worker.slot for worker in present]
        going = [present[at] for at in surplus(places, hosts, self._options.min_np or 1)]
        if all(worker in going for worker in present if self._knows(worker)):
            # No other process leaves until new ones have taken part.
            return [worker for worker in going if worker.state is WorkerState.JOINING]
        return going

    def _fill_vacancies(self, slots: list[Slot]) -> None:
        """Restart processes, in addition to the ones at ``slots``, on the hosts that the script names if there is one."""
        now = time.monotonic()
        for vacancy in list(self._vacancies):
            if now < vacancy.since + START_AGAIN_SECONDS:
                continue
            slot: Slot | None = vacancy.slot
            if self._discovery is not None:
                hosts = self._discovery.answer(after=vacancy.since)
                slot = None if hosts is None else place_again(vacancy.slot, slots, hosts)
            if slot is not None:
                self._vacancies.remove(vacancy)
                slots.append(slot)
                self._start(slot)

    def _grow(self, slots: list[Slot], hosts: Hosts) -> None:
        """Start a process for each free slot, up to the job's limit."""
        limit = self._options.max_np or self._options.num_proc
        while limit is None or len(slots) < limit:
            rank = max((slot.rank for slot in slots), default=-1) + 1
            slot = place_again(Slot("", rank, 0, 1, 0, 1), slots, hosts)
            if slot is None:
                return
            say(f"{slot.host} has a free slot; starting rank {rank} there")
            slots.append(slot)
            self._start(slot)

    def _publish(self, going: Sequence[Worker]) -> None:
        """Plan with the ready processes and without the leaving ones, if that changes anything."""
        now = time.monotonic()
        workers = [worker for worker in self._workers.values() if worker not in going]
        old = [worker for worker in workers if worker.state is WorkerState.ACTIVE]
        coming = [worker for worker in workers if worker.state is WorkerState.JOINING]
        ready = [worker for worker in coming if self._is_ready(worker)]
        if len(ready) < len(coming) and max(worker.process.age for worker in coming) < PATIENCE_SECONDS:
            ready = []
        if not (ready or going) or not self._is_settled():
            return
        taking_part = sorted([*old, *ready], key=lambda worker: worker.slot.rank)
        for rank, worker in enumerate(taking_part):
            worker.slot, worker.state = replace(worker.slot, rank=rank), WorkerState.ACTIVE
        self._port.close()
        self._port = _held_port()
        store = self._rendezvous_address([worker.slot for worker in taking_part])
        numbers = tuple(worker.number for worker in taking_part)
        self._plan, self._published, self._one_died = Plan(self._plan.generation + 1, store, numbers), now, False
        self._plan.put_into(self._folder)
        for worker in self._workers.values():
            worker.process.tell(self._plan.line())
        for worker in going:
            say(f"{worker.slot.host} has no slot for rank {worker.process.slot.rank} any more")
            if worker.state is WorkerState.JOINING:
                worker.process.signal(signal.SIGTERM)
            worker.state = WorkerState.LEAVING

    def _rendezvous_address(self, slots: Sequence[Slot]) -> str:
        """The meeting address of ranks at these places: at the first one. On another host the port is probably, not surely,
        free."""
        hosts = [slot.host for slot in slots]
        return f"{address_of(hosts[0], hosts)}:{self._port.getsockname()[1]}"

    def _is_settled(self) -> bool:
        """Whether, as far as is known, all processes take part by the last plan or never will."""
        planned = [worker for worker in self._workers.values() if worker.state is WorkerState.ACTIVE]
        late = time.monotonic() > self._published + PATIENCE_SECONDS
        return self._one_died or late or not any(map(self._is_on_its_way, planned))

    def _knows(self, worker: Worker) -> bool:
        """Whether it has the state of the training; at the job's start all have the same."""
        return worker.state is WorkerState.ACTIVE and (worker.is_first or not self._is_on_its_way(worker))

    def _is_ready(self, worker: Worker) -> bool:
        if is_here(worker.slot.host):
            return self._has_said(worker, "waits")
        return worker.process.age > READY_SECONDS_ELSEWHERE

    def _is_on_its_way(self, worker: Worker) -> bool:
        """Whether the plan includes it and it might not take part yet."""
        if is_here(worker.slot.host):
            return not self._has_said(worker, "joined")
        return worker.process.age < JOINED_SECONDS_ELSEWHERE

    def _start(self, slot: Slot, *, is_first: bool = False, attempt: int = 0) -> None:
        number = self._started if attempt == 0 else slot.rank
        self._started += attempt == 0
        own = slot.variables(max(len(self._slots), slot.rank + 1)) | {"HERRINGBONE_RANK": str(slot.rank)}
        plan = None
        if self._restarter is not None:
            own |= self._restarter.variables(slot.rank, attempt, is_here(slot.host))
        if self._elastic:
            own |= {WORKER: str(number)} | ({FOLDER: str(self._folder)} if is_here(slot.host) else {})
            plan = self._plan.line()
        process = Process(slot, self._options.command, self._common | own, self._options, plan)
        self._ends.watch(number, process)
        self._workers[number] = Worker(number, slot, process, is_first, WorkerState.ACTIVE if is_first else WorkerState.JOINING)


def _held_port() -> socket.socket:
    """A port of this host that no other process draws while this is open. Rank 0 can listen there, because it allows the
    address to be reused and nobody listens here."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def _exit_status(status: int) -> int:
    """The exit status in a shell's form."""
    return status if status > 0 else 128 - status


def _describe(status: int) -> str:
    return f"with exit status {status}" if status > 0 else f"by signal {-status}"
