"""Two ranks that disagree about the last call of a group, in which both only send: each learns of it by the time it has left.

Usage: unmatched.py STORE, for the second of two jobs; the first one's place is the environment's.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable

import numpy as np
from cases import error_of

import herringbone
from herringbone import Communicator, MismatchError

BOTH = [0, 1]


class Oops(Exception):
    pass


def call_as_the_root(group: Communicator, job: Communicator) -> bool:
    """Each rank says that it is the root. Whether this call tells of it: not on rank 0, which is first, and waits for nobody.

    Rank 1 waits for a message of ``job``, which is no call of the group if it is this one.
    """
    if group.rank == 0:
        group.broadcast(np.ones(3), 0)
        job.send(np.ones(1), 1)
        return False
    job.recv(np.ones(1), 0)
    return tells(lambda: group.broadcast(np.ones(3), 1))


def tells(call: Callable[[], object]) -> bool:
    """Whether a call tells of a mismatch."""
    try:
        call()
    except MismatchError as error:
        assert "broadcast" in str(error) and "the ranks disagree" in str(error)
        return True
    return False


def leave_after_an_error(group: Communicator) -> None:
    with group:
        raise Oops


def subgroups(group: Communicator) -> None:
    """Each rank leaves them in its own order, and may leave twice."""
    parts = [group.subgroup(BOTH) for _ in range(3)]
    reported = [call_as_the_root(part, group) for part in parts]
    for part in sorted(parts[:2], key=parts.index, reverse=group.rank == 1):
        assert tells(part.close) != reported[parts.index(part)]
        part.close()
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        error_of(Oops, lambda: leave_after_an_error(parts[2]))
    assert ("the ranks disagree" in printed.getvalue()) != reported[2], printed.getvalue()


def no_wait_for_a_late_rank(group: Communicator) -> None:
    """Rank 1 has not made the call yet when rank 0 has left, and makes it alone."""
    part, value = group.subgroup(BOTH), np.full(3, group.rank)
    if group.rank == 0:
        part.broadcast(value, 0)
        part.close()
        group.send(np.ones(1), 1)
    else:
        group.recv(np.ones(1), 0)
        part.broadcast(value, 0)
        assert not value.any()
        part.close()


def main() -> None:
    group = herringbone.init(timeout=30)
    subgroups(group)
    no_wait_for_a_late_rank(group)
    previous = signal.getsignal(signal.SIGTERM)
    job = herringbone.Elastic(dict, lambda state: None, communicator=group)
    assert call_as_the_root(job.communicator, group) != tells(job.close)
    assert signal.getsignal(signal.SIGTERM) is previous
    herringbone.finalize()
    second = herringbone.init(rank=int(os.environ["RANK"]), size=2, store=sys.argv[1], timeout=30)
    call_as_the_root(second, second)
    print("the program ends", flush=True)


if __name__ == "__main__":
    main()
