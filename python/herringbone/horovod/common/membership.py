"""The ranks of an elastic job: continuing with the remaining ones, taking in new processes, and leaving.

Under ``horovodrun`` the launcher plans which processes take part: new ones for dead ones, more where slots appear, fewer where
slots disappear. Other launchers restart a process at its old place, where it waits at rank 0. In both cases all ranks change
together, at a commit.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ...communicator import Communicator
from ...errors import ConnectionLostError, PeerLostError, RendezvousError
from ...state import broadcast_state
from . import basics, launched
from .settings import Settings

__all__ = ["TooFewWorkersError", "change_waits", "recover", "take_in"]

LOGGER = logging.getLogger("herringbone")

COMING_BACK_SECONDS = 10.0
"""The timeout for all ranks to meet again once the new processes are there."""
MEET_SECONDS = 30.0
"""The timeout for the workers of a plan to meet: workers on other hosts might not have started yet."""
LOOK_SECONDS = 0.1
"""The pause between two checks for new processes, while there are too few workers to continue."""


class TooFewWorkersError(PeerLostError):
    """The remaining ranks cannot continue."""


_began_with = 0
"""How many ranks the job had when it was whole."""
_not_before = 0.0
"""After a plan's workers have not met, the next try is not before then."""


def change_waits() -> bool:
    """Whether the workers have to change: by a plan, or because new processes wait for all missing ranks.

    Only rank 0 knows.
    """
    job = basics.job()
    if launched.folder() is not None:
        return launched.newest() is not None and time.monotonic() >= _not_before
    return job.size < _whole(job) and len(job.newcomers()) >= _whole(job) - job.size


def recover() -> None:
    """Form the job from the remaining ranks after a failure. If they are too few, they wait for new processes.

    All surviving ranks call it.

    Raises:
        TooFewWorkersError: the remaining ranks cannot continue, or no new processes came in time.
        PeerLostError: more ranks were lost meanwhile.
    """
    job, settings = basics.job(), Settings.read()
    whole = _whole(job)
    # The failure is known, and the remaining ranks are found out now: a rank that has left is not another failure.
    with suppress(PeerLostError):
        basics.shutdown()
    try:
        left = job.shrink()
    except PeerLostError as final:
        raise TooFewWorkersError(str(final), final.ranks) from final
    basics.replace_job(left)
    LOGGER.warning("herringbone: the job continues with %s of %s ranks", left.size, whole)
    until = time.monotonic() + settings.elastic_timeout
    while left.size < min(settings.least_workers, whole):
        if _any_sees(left, left.rank == 0 and change_waits()):
            take_in()
            left = basics.job()
            continue
        if _any_sees(left, left.rank == 0 and time.monotonic() > until):
            text = f"{left.size} ranks remain, fewer than HOROVOD_ELASTIC_MIN_NP={settings.least_workers}, and no others came"
            raise TooFewWorkersError(f"{text} in {settings.elastic_timeout:g} s", range(left.size, whole))
        time.sleep(LOOK_SECONDS)


def take_in() -> None:
    """Change the workers after :func:`change_waits` has returned true; new processes that do not come after all are left out.

    All ranks call it.

    Raises:
        PeerLostError: ranks were lost meanwhile.
        SystemExit: the job continues without this worker.
    """
    if launched.folder() is not None:
        _follow_plan()
        return
    job = basics.job()
    members = list(range(job.size))
    basics.shutdown()
    try:
        whole = job.replace(timeout=COMING_BACK_SECONDS)
    except (RendezvousError, ConnectionLostError) as error:
        LOGGER.warning("herringbone: the new processes did not come: %s", error)
        whole = job.regather(members, timeout=2 * COMING_BACK_SECONDS)
    basics.replace_job(whole)


def _follow_plan() -> None:
    """Meet at the address of rank 0's plan. The old job continues until all have met, and stays if they do not."""
    global _not_before
    job, own = basics.job(), launched.worker()
    newest = launched.newest() if job.rank == 0 else None
    agreed: dict[str, Any] | None = broadcast_state(job, None if newest is None else asdict(newest), root=0)
    basics.shutdown()
    if agreed is None:
        # The plan that was seen is gone: the interrupt was the program's own.
        basics.replace_job(job)
        return
    plan = launched.Plan(agreed["generation"], agreed["store"], tuple(agreed["workers"]))
    stays = own in plan.workers
    following: Communicator | None = None
    if stays:
        try:
            following = plan.join(own, MEET_SECONDS, Settings.read())
        except launched.COME_LATE as error:
            LOGGER.warning("herringbone: the workers of the launcher's plan have not met: %s", error)
    try:
        all_met = not _any_sees(job, following is None and stays)
    except PeerLostError:
        if following is not None:
            following.close()
        raise
    if not all_met:
        if following is not None:
            following.close()
        _not_before = time.monotonic() + MEET_SECONDS
        basics.replace_job(job)
        return
    job.close()
    launched.adopt(plan)
    if following is None:
        LOGGER.warning("herringbone: the job continues without worker %s, which ends", own)
        raise SystemExit(0)
    LOGGER.warning("herringbone: the job continues with %s ranks", following.size)
    basics.replace_job(following)


def _whole(job: Communicator) -> int:
    global _began_with
    _began_with = max(_began_with, job.size)
    return _began_with


def _any_sees(job: Communicator, sees: bool) -> bool:
    """Whether the condition is true on any rank; the same answer on all."""
    import numpy as np

    seen = np.array([sees], np.int32)
    job.all_reduce(seen, "max")
    return bool(seen[0])
