"""A program whose pauses end once a file is there. Usage: hurried.py FILE PROGRAM ARGUMENTS...

With STOPS_ONCE_JOINED in its environment, its process stops (SIGSTOP) when it has joined the job.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

file, program = Path(sys.argv[1]), sys.argv[2]
sleep = time.sleep


def pause(seconds: float) -> None:
    """The pauses of what the program imports stay."""
    if sys._getframe(1).f_code.co_filename != program or not file.exists():
        sleep(seconds)


def stop_once_joined() -> None:
    from herringbone import Communicator, elastic

    join: Callable[[], Communicator] = vars(elastic)["init"]

    def join_and_stop() -> Communicator:
        communicator = join()
        os.kill(os.getpid(), signal.SIGSTOP)
        return communicator

    vars(elastic)["init"] = join_and_stop


time.sleep = pause
if "STOPS_ONCE_JOINED" in os.environ:
    stop_once_joined()
sys.argv[:] = sys.argv[2:]
runpy.run_path(program, run_name="__main__")
