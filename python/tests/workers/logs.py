"""Workers whose logs a test reads.

leave              sums, and leaves in order
die                the last rank is killed after the sums, and the others see it
held               the program has configured ``logging``; rank 0 keeps the interpreter's lock while others leave
slow               a handler takes nothing for a while, and more is logged than waits
forked             a child of a process that has formed logs, too
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time

import numpy as np

import herringbone


def configure() -> None:
    form = "%(levelname)s|%(name)s|%(rank)s|%(job)s|%(peer)s|%(created).3f|%(msecs)d|%(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stdout)


def summed(count: int = 8) -> herringbone.Communicator:
    group = herringbone.init(timeout=20)
    for _ in range(count):
        group.all_reduce(np.ones(100_000, dtype=np.float32))
    return group


def leave() -> None:
    group = summed()
    group.barrier()
    if group.rank == 0:
        # The others have left before, so this rank hears of it.
        time.sleep(0.3)
    group.close()


def die() -> None:
    group = summed()
    group.barrier()
    if group.rank == group.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_reduce(np.ones(10, dtype=np.float32))
    except herringbone.PeerLostError as lost:
        print("lost", lost.ranks, flush=True)


def held() -> None:
    configure()
    group = summed()
    group.barrier()
    if group.rank == 0:
        # A function of PyDLL keeps the interpreter's lock, while the control thread logs that the others leave. The call after that
        # wants the engine's lock, with the interpreter's at first.
        ctypes.PyDLL(None).usleep(500_000)
        group.stats()
        print("held", flush=True)
    group.close()


class Slow(logging.Handler):
    """Takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.kept: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.go_on.wait()
        self.kept.append(record.getMessage())


def slow() -> None:
    handler = Slow()
    logger = logging.getLogger("herringbone")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    logger.propagate = False
    for _ in range(530):
        herringbone.init(rank=0, size=1, store="127.0.0.1:0").close()
    handler.go_on.set()
    herringbone._herringbone.end_log()
    print(len(handler.kept), handler.kept[-1])


def forked() -> None:
    configure()
    group = summed(1)
    if child := os.fork():
        os.waitpid(child, 0)
        group.close()
        return
    herringbone.init(rank=0, size=1, store="127.0.0.1:0")
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
