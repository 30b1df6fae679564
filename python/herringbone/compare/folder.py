"""The folder for processes' output and meeting point. It is always removed, even if this process is killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from multiprocessing import util
from pathlib import Path

__all__ = ["folder"]

SWEEP = 'read -r word || for try in 1 2 3 4 5; do rm -rf "$0" && break; sleep 1; done'
"""Removes a folder if its input ends without a word. It tries again, because another process might be making a file there."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """The folder of multiprocessing, which has its socket there and removes it when this process exits.

    If this process is killed, a shell removes it, which waits for this in its own session.
    """
    place = util.get_temp_dir()
    sweeper = subprocess.Popen(
        ["sh", "-c", SWEEP, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield Path(place)
    finally:
        sweeper.communicate(b"ended\n")
