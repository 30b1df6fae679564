"""The error for a script that cannot be profiled, and the exception that stops a profiled script."""

from __future__ import annotations

__all__ = ["ProfileError", "Stopped"]


class ProfileError(Exception):
    """A script cannot be profiled. The text says why and what to do."""


class Stopped(BaseException):
    """Ends a script from within: enough steps are measured, or ``problem`` explains why none can be.

    It is not an :class:`Exception`, so that a script that catches those does not continue; its ``finally`` blocks run.
    """

    def __init__(self, problem: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
