"""A program whose pauses end once a file is there. Usage: hurried.py FILE PROGRAM ARGUMENTS..."""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

file, program = Path(sys.argv[1]), sys.argv[2]
sleep = time.sleep


def pause(seconds: float) -> None:
    """The pauses of what the program imports stay."""
    if sys._getframe(1).f_code.co_filename != program or not file.exists():
        sleep(seconds)


time.sleep = pause
sys.argv[:] = sys.argv[2:]
runpy.run_path(program, run_name="__main__")
