"""Calls that take the same arguments, and of which the name says the rest, such as ``allreduce`` and ``allreduce_``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["named"]

P = ParamSpec("P")
R = TypeVar("R")


def named(name: str, function: Callable[Concatenate[str, P], R], about: str | None = None) -> Callable[P, R]:
    """The call of this name: ``function``, which is told the name first. Its docstring is ``about``, else the function's."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(name, *args, **kwargs)

    signature = inspect.signature(function)
    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = function.__module__, about or function.__doc__
    return call
