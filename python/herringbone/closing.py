"""Closes several things: all of them, even if some raise, and reports the errors once all are closed."""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

__all__ = ["at_exit", "close_each", "ends_by_exception", "leave_behind", "print_errors", "tell"]


class Closes(Protocol):
    """Something that can be closed, and can raise an error when it is."""

    def close(self) -> object:
        """End it."""


class Leaves(Closes, Protocol):
    """What can be left at once, too."""

    def abort(self) -> object:
        """Leave at once."""


def close_each(things: Iterable[Closes]) -> list[Exception]:
    """Close all ``things``, and return the exceptions that some of them have raised."""
    errors = []
    for thing in things:
        try:
            thing.close()
        except Exception as error:
            errors.append(error)
    return errors


def tell(errors: Sequence[Exception]) -> None:
    """Raise the first of the ``errors``; each has the next one as its context.

    While another exception is being handled, as in a ``finally``, they are printed and do not replace it.
    """
    if sys.exc_info()[1] is not None:
        print_errors(errors)
        return
    for error, following in zip(errors, errors[1:]):
        error.__context__ = following
    if errors:
        raise errors[0]


def at_exit(close: Callable[[], Iterable[Exception]]) -> None:
    """Have ``close`` called when the process ends, and print what it returns. The exit status stays what it is.

    Nothing is printed if an exception ends the process, so that its traceback comes last.
    """

    def end() -> None:
        errors = list(close())
        if not ends_by_exception():
            print_errors(errors)

    atexit.register(end)


def ends_by_exception() -> bool:
    """Whether the process ends by an exception that nobody caught, whose traceback has been written."""
    return getattr(sys, "last_type", None) is not None


def leave_behind(group: Leaves) -> None:
    """Leave a group at once and for good, and wait for nobody: its rank 0 stays until the others have left, too."""
    group.abort()
    threading.Thread(target=_close_behind, args=(group,), name="herringbone-leaving", daemon=True).start()


def _close_behind(group: Leaves) -> None:
    print_errors(close_each([group]))


def print_errors(errors: Iterable[Exception]) -> None:
    """Write a line for each to standard error, because no caller is left to get an exception."""
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
