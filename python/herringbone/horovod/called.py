"""A process that ``horovod.run`` has started: it reads a call from a file, makes it, and writes the result to a file.

Only the user of both processes can read the folder: everything that is unpickled here was written on this host by the program
that started this process.
"""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
import pickle
import traceback
from pathlib import Path
from typing import Any

from .common.launched import WORKER

__all__ = ["CALL", "CALLED", "FAILURE", "RESULT", "dumps", "leave"]

CALL, RESULT, FAILURE = "call", "result", "failure"
"""The names of the files; a process's own files begin with its number."""
CALLED = "HOROVOD_CALLED"
"""A variable that is set in such processes."""


def dumps(value: Any) -> tuple[bytes, bool]:
    """The value as bytes, and whether these contain a program's functions instead of their names."""
    try:
        by_value = importlib.import_module("cloudpickle")
    except ImportError:
        return pickle.dumps(value), False
    return bytes(by_value.dumps(value)), True


def main(place: str) -> int:
    """Make the call that is in this folder, and return the exit status."""
    folder = Path(place)
    own = os.environ.get(WORKER) or os.environ["HOROVOD_RANK"]
    try:
        preparation, call = pickle.loads((folder / CALL).read_bytes())
        multiprocessing.spawn.prepare(preparation)
        func, args, kwargs = pickle.loads(call)
        result = func(*args, **kwargs)
        try:
            data, _ = dumps(result)
        except Exception as error:
            raise TypeError(f"the function returned a {type(result).__name__} that cannot be sent: {error}") from error
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            raise
        leave(folder, f"{own}.{FAILURE}", traceback.format_exc().encode())
        traceback.print_exc()
        return 1
    leave(folder, f"{own}.{RESULT}", data)
    return 0


def leave(folder: Path, name: str, data: bytes) -> None:
    """Make a file that only this user can read, and that appears as a whole or not at all."""
    part = folder / f"{name}.part"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    part.replace(folder / name)
