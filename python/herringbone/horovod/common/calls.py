"""The meaning of calls' names: ``grouped_allreduce_async_`` is an in-place allreduce of a group that returns before its end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["is_grouped", "moved_shape", "named", "operation_of"]

P = ParamSpec("P")
R = TypeVar("R")


def named(name: str, function: Callable[Concatenate[str, P], R], about: str | None = None) -> Callable[P, R]:
    """The call of this name: ``function`` with the name as ``call``. Its docstring is ``about``, or the function's."""
    signature = inspect.signature(function)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(name, *args, **kwargs)
        except TypeError:
            # Python names the function in errors about missing or unknown arguments.
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


def is_grouped(call: str) -> bool:
    """Whether a call takes several tensors, which begin only once all are there."""
    return call.startswith("grouped_")


def operation_of(call: str) -> str:
    """The operation of a call: ``allreduce`` for ``grouped_allreduce_async_``."""
    return call.removeprefix("grouped_").removesuffix("_").removesuffix("_async")


def moved_shape(call: str, shape: Sequence[int], scale: int) -> Sequence[int]:
    """The shape of a tensor that is sent as ``scale`` bytes per element, or in its own type if that is 1.

    Raises:
        ValueError: it has no rows, and the call joins rows.
    """
    if scale == 1:
        return shape
    if not shape and operation_of(call) != "broadcast":
        raise ValueError(f"{call}: a tensor without dimensions has no rows to join; pass it with one, by reshape(1)")
    return (*shape, scale)
