"""Runs a script in this process as ``python script.py`` does, and reports how it ended."""

from __future__ import annotations

import os
import runpy
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .problems import Stopped

__all__ = ["Ended", "run"]

INTERRUPTED = 130
"""A shell's exit code for a program that Ctrl-C has ended."""


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    status: int
    """Its exit code; 0 if it was stopped from within."""
    problem: str | None = None
    """Why it was stopped early, if not because enough steps were measured."""


def run(script: Path, arguments: Sequence[str]) -> Ended:
    """Run a script with these arguments. Its errors are shown as Python shows them, without this module's frames."""
    sys.argv = [str(script), *arguments]
    if not getattr(sys.flags, "safe_path", False):
        # `python -m` has put the working folder there, `python script.py` would have put the script's.
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Stopped as stopped:
        return Ended(0, stopped.problem)
    except SystemExit as ending:
        return Ended(_status(ending.code))
    except KeyboardInterrupt as error:
        _show(error, script)
        return Ended(INTERRUPTED)
    except BaseException as error:
        _show(error, script)
        return Ended(1)
    return Ended(0)


def _status(code: object) -> int:
    """The exit code of a ``SystemExit``, whose text is printed if it has one, as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _show(error: BaseException, script: Path) -> None:
    frames: types.TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    # The script can have set its own hook. A syntax error has no frame in the script.
    sys.excepthook(type(error), error.with_traceback(frames), frames)
