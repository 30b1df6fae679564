"""Several things are closed: all of them, whatever one of them raises, and their errors are told once all are closed."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

__all__ = ["at_exit", "close_each", "ends_by_exception", "print_errors", "tell"]


class Closes(Protocol):
    """What can be closed, and may say at its end that something is wrong."""

    def close(self) -> object:
        """Be no more."""


def close_each(things: Iterable[Closes]) -> list[Exception]:
    """Close all ``things``, and return what some of them have raised."""
    errors = []
    for thing in things:
        try:
            thing.close()
        except Exception as error:
            errors.append(error)
    return errors


def tell(errors: Sequence[Exception]) -> None:
    """Raise the first of the ``errors``; each has the next one as its context.

    While another exception is under way, as in a ``finally``, they are printed: none of them takes its place.
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

    Nothing is printed if an exception ends the process: its traceback is the last that is written.
    """

    def end() -> None:
        errors = list(close())
        if not ends_by_exception():
            print_errors(errors)

    atexit.register(end)


def ends_by_exception() -> bool:
    """Whether the process ends by an exception that nobody caught, whose traceback has been written."""
    return getattr(sys, "last_type", None) is not None


def print_errors(errors: Iterable[Exception]) -> None:
    """Write a line for each to standard error, where nobody can be told by an exception."""
    for error in errors:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
