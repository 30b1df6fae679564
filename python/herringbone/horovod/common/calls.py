"""Calls that take the same arguments, and of which the name says the rest, such as ``allreduce`` and ``allreduce_``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["named"]

P = ParamSpec("P")
R = TypeVar("R")


def named(name: str, function: Callable[Concatenate[str, P], R], about: str | None = None) -> Callable[P, R]:
    """The call of this name: ``function``, which is told it as ``call``. Its docstring is ``about``, else the function's."""
    signature = inspect.signature(function)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(name, *args, **kwargs)
        except TypeError:
            # Python would name the function where arguments are missing or unknown.
            try:
                signature.bind(*args, **kwargs)
            except TypeError as wrong:
                raise TypeError(f"{name}() {wrong}") from None
            raise

    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {key: kind for key, kind in function.__annotations__.items() if key != "call"}
    call.__name__ = call.__qualname__ = name
    call.__module__, call.__doc__ = function.__module__, about or function.__doc__
    return call
