"""The barrier that names the missing ranks."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

from torch._C._distributed_c10d import Store

from ..errors import OperationTimeoutError
from .member import Member
from .work import torch_error

__all__ = ["monitored_barrier"]

LOOK_SECONDS = 0.005
"""The pause between two checks of the store."""

PASSED, FAILED = "passed", "failed"


def monitored_barrier(member: Member, store: Store, timeout: timedelta, wait_all_ranks: bool) -> None:
    """Return once all ranks of the group have called this; if some do not, raise on every rank that has.

    It uses the store, so that a rank that never comes leaves no operation of the group unfinished. The texts are the
    same as in torch's Gloo, because programs look for them.

    Raises:
        OperationTimeoutError: on rank 0 it names the first missing rank, or all of them with ``wait_all_ranks``. On other
            ranks it means that rank 0 has not answered or has missed a rank.
    """
    member.barriers += 1
    communicator, round = member.communicator, f"herringbone/monitored/{member.barriers}"
    deadline = time.monotonic() + timeout.total_seconds()
    if communicator.rank != 0:
        store.set(f"{round}/{communicator.rank}", PASSED)
        if not _appears(store, f"{round}/verdict", deadline) or store.get(f"{round}/verdict") != PASSED.encode():
            raise _timed_out(
                f"Rank {communicator.rank} successfully reached monitoredBarrier, but received errors while waiting "
                "for send/recv from rank 0; its error names the ranks that did not come",
                [0],
            )
        return
    missing = _missing(store, round, communicator.size, deadline, wait_all_ranks)
    store.set(f"{round}/verdict", FAILED if missing else PASSED)
    if missing:
        raise _rank_0s_error(missing, timeout)
    # Every rank has read the previous verdict.
    before = f"herringbone/monitored/{member.barriers - 1}"
    for key in ("verdict", *range(1, communicator.size)):
        with contextlib.suppress(RuntimeError):
            store.delete_key(f"{before}/{key}")


def _missing(store: Store, round: str, size: int, deadline: float, wait_all_ranks: bool) -> list[int]:
    """The ranks that have not come by the deadline; only the first one, if not all are wanted."""
    missing = []
    for rank in range(1, size):
        if not _appears(store, f"{round}/{rank}", deadline):
            missing.append(rank)
            if not wait_all_ranks:
                break
    return missing


def _appears(store: Store, key: str, deadline: float) -> bool:
    while not store.check([key]):
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _rank_0s_error(missing: list[int], timeout: timedelta) -> BaseException:
    milliseconds = int(timeout.total_seconds() * 1000)
    if milliseconds <= 0:
        text = f"Rank 0 timed out in monitoredBarrier after {milliseconds} ms; pass a longer timeout"
        return _timed_out(text, missing)
    ranks = ", ".join(map(str, missing))
    plural = "s" if len(missing) > 1 else ""
    return _timed_out(f"Rank{plural} {ranks} failed to pass monitoredBarrier in {milliseconds} ms", missing)


def _timed_out(text: str, missing: list[int]) -> BaseException:
    return torch_error(OperationTimeoutError(text, [f"rank {rank}" for rank in missing]))
