"""What keeps a script from being profiled, and what ends one that has been."""

from __future__ import annotations

__all__ = ["ProfileError", "Stopped"]


class ProfileError(Exception):
    """A script cannot be profiled. The text says why and what to do."""


class Stopped(BaseException):
    """Ends a script from within: enough steps are measured, or ``problem`` says why none can be.

    It is no :class:`Exception`, so that a script that handles those does not go on; its ``finally`` blocks run.
    """

    def __init__(self, problem: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
