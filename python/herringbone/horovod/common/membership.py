"""The ranks of an elastic job: going on with those that are left, and taking in new processes.

The launcher starts a new process for each that died; it waits at rank 0 until the others take it in. All ranks decide this
together, at a commit.
"""

from __future__ import annotations

import logging
import time

from ...communicator import Communicator
from ...errors import ConnectionLostError, PeerLostError, RendezvousError
from . import basics
from .settings import Settings

__all__ = ["TooFewWorkersError", "newcomers_wait", "recover", "take_in"]

LOGGER = logging.getLogger("herringbone")

COMING_BACK_SECONDS = 10.0
"""How long all may take to meet again, once the new processes are there."""
LOOK_SECONDS = 0.1
"""The pause between two looks for new processes, while there are too few workers to go on."""


class TooFewWorkersError(PeerLostError):
    """The ranks that are left cannot go on."""


_began_with = 0
"""How many ranks the job had when it was whole."""


def newcomers_wait() -> bool:
    """Whether new processes wait for all ranks that are missing; only rank 0 knows."""
    job = basics.job()
    return job.size < _whole(job) and len(job.newcomers()) >= _whole(job) - job.size


def recover() -> None:
    """After a failure: the ranks that are left form the job; if they are too few, they wait for new processes.

    All ranks that live call it.

    Raises:
        TooFewWorkersError: those that are left cannot go on, or no new processes came in time.
        PeerLostError: more ranks were lost meanwhile.
    """
    job, settings = basics.job(), Settings.read()
    whole = _whole(job)
    basics.shutdown()
    try:
        left = job.shrink()
    except PeerLostError as final:
        raise TooFewWorkersError(str(final), final.ranks) from final
    basics.replace_job(left, anew=False)
    LOGGER.warning("herringbone: the job goes on with %s of %s ranks", left.size, whole)
    until = time.monotonic() + settings.elastic_timeout
    while left.size < min(settings.least_workers, whole):
        if _all_see(left, newcomers_wait()):
            take_in()
            return
        if _all_see(left, time.monotonic() > until):
            text = f"{left.size} ranks are left, fewer than HOROVOD_ELASTIC_MIN_NP={settings.least_workers}, and no others came"
            raise TooFewWorkersError(f"{text} in {settings.elastic_timeout:g} s", range(left.size, whole))
        time.sleep(LOOK_SECONDS)


def take_in() -> None:
    """The whole job again, with the new processes; without them if they do not come after all. All ranks call it."""
    job = basics.job()
    members = list(range(job.size))
    basics.shutdown()
    try:
        whole = job.replace(timeout=COMING_BACK_SECONDS)
    except (RendezvousError, ConnectionLostError) as error:
        LOGGER.warning("herringbone: the new processes did not come: %s", error)
        whole = job.regather(members, timeout=2 * COMING_BACK_SECONDS)
    basics.replace_job(whole, anew=True)


def _whole(job: Communicator) -> int:
    global _began_with
    _began_with = max(_began_with, job.size)
    return _began_with


def _all_see(job: Communicator, rank_0_sees: bool) -> bool:
    """What rank 0 sees, on all ranks."""
    import numpy as np

    seen = np.array([job.rank == 0 and rank_0_sees], np.int32)
    job.all_reduce(seen, "max")
    return bool(seen[0])
