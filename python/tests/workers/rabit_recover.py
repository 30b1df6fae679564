"""RABIT's tests of recovery: processes kill themselves at coordinates, and every result is checked.

    herringbone launch -n 4 --max-attempts 9 -- python rabit_recover.py MODE [mock=RANK,VERSION,CALL,ATTEMPT ...]

The mode is ``global`` (RABIT's model_recover), ``local`` (local_recover) or ``lazy`` (lazy_recover). A coordinate is one of RABIT's
mock engine. CALL is a number, ``init`` (when the process has just joined) or ``checkpoint`` (while it is inside).
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
from herringbone import rabit

VERSIONS = 4
COUNT = 1000
ATTEMPT = int(os.environ["DMLC_NUM_ATTEMPT"])
MOCKS = {tuple(word.removeprefix("mock=").split(",")) for word in sys.argv[2:]}
Array = np.ndarray[Any, np.dtype[Any]]


def say(*words: object) -> None:
    print(*words, flush=True)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_planned(version: int, call: int | str) -> bool:
    return tuple(map(str, (rabit.get_rank(), version, call, ATTEMPT))) in MOCKS


def share(rank: int, version: int) -> Array:
    """What a rank gives to a sum. The sum's last bits depend on the order of additions."""
    return np.arange(COUNT) % 97 * (rank + 1) / 7 + version


class Calls:
    """The calls of one version."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.number = 0

    def begin(self) -> int:
        if is_planned(self.version, self.number):
            kill()
        self.number += 1
        return self.number - 1

    def allreduce(self, given: Array, op: int) -> Array:
        call = self.begin()

        def prepare(out: Array) -> None:
            say("prepares", f"{self.version}.{call}")
            out[:] = given

        return rabit.allreduce(np.empty_like(given), op, prepare)


def improved(version: int, model: Array) -> tuple[Array, Array]:
    """What a version makes of the model, and what it found for a local one."""
    rank, size, calls = rabit.get_rank(), rabit.get_world_size(), Calls(version)
    places = np.arange(COUNT) * (rank + 1) % 111
    most = calls.allreduce(places + model, rabit.MAX)
    everybody = np.arange(COUNT)[:, None] * np.arange(1, size + 1) % 111
    assert np.array_equal(most, everybody.max(1) + model)
    for root in range(size):
        calls.begin()
        sent = {"from": root, "version": version} if rank == root else None
        assert rabit.broadcast(sent, root) == {"from": root, "version": version}
    total = calls.allreduce(share(rank, version), rabit.SUM)
    assert np.allclose(total, sum(share(each, version) for each in range(size)), rtol=1e-14)
    calls.begin()
    gathered = rabit.allgather(np.array([rank, version]))
    assert np.array_equal(gathered, [[each, version] for each in range(size)])
    return total, most * (rank + 1)


def end_version(mode: str, version: int, model: Array, local: Array) -> None:
    if is_planned(version, "checkpoint"):
        threading.Timer(0.05, kill).start()
    elif rabit.get_rank() == 0 and any(mock[1:3] == (str(version), "checkpoint") for mock in MOCKS):
        time.sleep(0.2)  # so that the others are in it
    if mode == "global":
        rabit.checkpoint(model)
    elif mode == "local":
        rabit.checkpoint(model, local)
    else:
        rabit.lazy_checkpoint(model)


def run(mode: str) -> None:
    say("starts", ATTEMPT, os.getpid())
    rabit.init()
    if is_planned(0, "init"):
        kill()
    # These calls come before the checkpoint is loaded: a new process gets their results from the others.
    size = int(rabit.allreduce(np.array([rabit.get_rank() + 1]), rabit.MAX, lambda _: say("prepares", "bootstrap"))[0])
    assert size == rabit.get_world_size() and rabit.broadcast("settings", 0) == "settings"
    kept = rabit.kept_bytes()
    version, model, *rest = rabit.load_checkpoint(with_local=mode == "local")
    local = rest[0] if version and mode == "local" else np.zeros(COUNT)
    model = model if version else np.zeros(COUNT)
    say("loads", version, kept)
    for version in range(rabit.version_number(), VERSIONS):
        total, found = improved(version, model)
        # A lazy model is changed only here, between the last call and the checkpoint.
        model += total
        local = local + found
        end_version(mode, version, model, local)
        assert rabit.version_number() == version + 1
    digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in (model, local)]
    say("ends", os.getpid(), rabit.kept_bytes(), *digests)
    rabit.finalize()


if __name__ == "__main__":
    run(sys.argv[1])
