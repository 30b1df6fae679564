"""The files that a comparison writes when its trainings are over: an early check that this will work, and writing them."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["refusal", "write"]


def refusal(path: Path) -> str | None:
    """Why a file cannot be written, or None. No file is made or changed.

    A device or a pipe is not opened, because that could wait for a reader.
    """
    try:
        if path.is_dir():
            return "it is a folder"
        if not path.absolute().parent.is_dir():
            return f"the folder {path.parent} does not exist"
        is_new = not path.exists()
        if is_new or path.is_file():
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666))
        if is_new:
            # Ranks of one host can check the same file at once.
            Path(os.path.realpath(path)).unlink(missing_ok=True)
    except OSError as error:
        return str(error.strerror)
    return None


def write(path: Path, text: str) -> str | None:
    """Write a file as UTF-8, and return None, or why that failed."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        return str(error.strerror)
    return None
