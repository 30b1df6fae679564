"""Messages between ``horovodrun`` and the workers of an elastic job, as files in a folder.

The launcher plans which workers take part and where they meet. A worker of the first plan joins by it. Later plans are for all
workers of the job at once, which switch to them at a commit. See :mod:`.membership`.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ...communicator import Communicator
from ...errors import ConnectionLostError, OperationTimeoutError, PeerLostError, RendezvousError
from ...joining import init as join_job
from ...joining import join_again, join_launched
from ...options import Options
from .settings import Settings

__all__ = ["COME_LATE", "FOLDER", "PLAN", "WORKER", "Plan", "adopt", "first_job", "folder", "newest", "say", "worker"]

FOLDER, WORKER = "HOROVOD_FOLDER", "HOROVOD_WORKER"
"""The variables with the path of the folder and with this worker's number, which no other process ever has."""
PLAN = "plan"
"""The file in that folder with the newest plan."""
MEET_SECONDS = 20.0
"""How long a worker waits at one plan's meeting address before it checks for a newer plan."""
OPERATION_SECONDS = 1800.0
"""The default timeout of an operation."""
COME_LATE = (RendezvousError, ConnectionLostError, OperationTimeoutError, PeerLostError)
"""The errors if other ranks do not come; any other error would occur again."""


@dataclass(frozen=True)
class Plan:
    """The workers that take part from a moment on."""

    generation: int
    """Newer plans have larger numbers."""
    store: str
    """``host:port``, where the first of the workers listens; no two plans have the same."""
    workers: tuple[int, ...]
    """The worker of each rank."""

    @classmethod
    def of(cls, line: str) -> Plan:
        """The plan from a line that :meth:`line` has made."""
        fields = json.loads(line)
        return cls(int(fields["generation"]), str(fields["store"]), tuple(map(int, fields["workers"])))

    def line(self) -> str:
        """The plan as a line of text."""
        return json.dumps(asdict(self))

    def put_into(self, place: Path) -> None:
        """Make it the newest plan of a folder."""
        new = place / "new"
        new.write_text(self.line() + "\n")
        new.replace(place / PLAN)

    def join(self, own: int, seconds: float, settings: Settings) -> Communicator:
        """Meet the others.

        Raises:
            HerringboneError: not all came in time.
        """
        rank = self.workers.index(own)
        # A new process that cannot use its settings does not end the training of the earlier ones.
        if self.generation > 0:
            whole = join_again(rank, len(self.workers), self.store, seconds)
        else:
            whole = join_job(rank=rank, size=len(self.workers), store=self.store, timeout=seconds)
        # The timeout of the meeting is shorter than an operation's.
        whole._native.set_timeout(
            settings.operation_timeout or float(os.environ.get("HERRINGBONE_TIMEOUT_S") or OPERATION_SECONDS)
        )
        return whole


_adopted = -1
"""The generation of the plan by which this process takes part."""
_read: tuple[int, Plan] | None = None
"""When the newest plan was written, in nanoseconds, and the plan."""


def folder() -> Path | None:
    """The folder of the files, if a launcher plans the job."""
    place = os.environ.get(FOLDER)
    return Path(place) if place else None


def worker() -> int:
    """This process's number."""
    return int(os.environ.get(WORKER, "0"))


def newest() -> Plan | None:
    """The newest plan, if this process does not take part by it already."""
    global _read
    place = folder()
    if place is None:
        return None
    try:
        written = (place / PLAN).stat().st_mtime_ns
        if _read is None or _read[0] != written:
            _read = written, Plan.of((place / PLAN).read_text())
    except OSError:
        return None
    return _read[1] if _read[1].generation > _adopted else None


def adopt(plan: Plan) -> None:
    """Take part by this plan from here on."""
    global _adopted
    _adopted = plan.generation


def say(word: str) -> None:
    """Report to the launcher: ``waits`` before this worker joins, ``joined`` after, ``committed`` after each commit."""
    place = folder()
    if place is not None:
        try:
            (place / f"{worker()}.{word}").touch()
        except OSError:
            pass  # The launcher has ended, and so does this process soon.


def first_job(settings: Settings) -> Communicator:
    """The first job of this process: by the newest plan that includes it.

    Raises:
        HerringboneError: the others did not come.
        SystemExit: the job no longer needs this worker.
    """
    if folder() is None:
        return join_launched("hvd.init", Options(), settings.operation_timeout)
    own, until = worker(), time.monotonic() + settings.elastic_timeout
    say("waits")
    while True:
        plan = newest()
        if plan is None or own not in plan.workers:
            # Plans are made from waiting workers, so a plan with this worker comes.
            if time.monotonic() > until:
                raise RendezvousError(f"no plan of the launcher has worker {own}: it waited {settings.elastic_timeout:g} s")
            time.sleep(0.05)
            continue
        try:
            whole = plan.join(own, MEET_SECONDS, settings)
        except COME_LATE:
            if time.monotonic() > until:
                raise
            continue
        adopt(plan)
        return whole
