"""Optimizers' names and numbers, in the programs' form and in the native rules' form. Nothing here has a state.

The arithmetic is the same as for tables on servers, ``herringbone::table::LocalOptimizer``.
"""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any

from .. import _herringbone
from ..errors import ArgumentError

__all__ = [
    "FRACTIONS",
    "LATEST",
    "NAMES",
    "STATES",
    "WITH_VELOCITY",
    "Parameters",
    "check_numbers",
    "known_numbers",
    "native_numbers",
    "number",
    "rate_of",
]

NAMES = {
    "sgd": "sgd",
    "nag": "nag",
    "adam": "adam",
    "adamw": "adamw-mxnet",
    "adagrad": "adagrad",
    "rmsprop": "rmsprop",
    "lamb": "lamb",
    "ftrl": "ftrl",
    "signum": "signum",
    "test": "add",
}
"""MXNet's names, and the rules that they stand for."""
STATES = {
    "sgd": ("velocity",),
    "nag": ("velocity",),
    "adam": ("mean", "variance"),
    "adamw": ("mean", "variance"),
    "adagrad": ("history",),
    "rmsprop": ("square",),
    "lamb": ("mean", "variance"),
    "ftrl": ("z", "n"),
    "signum": ("velocity",),
    "test": (),
}
"""The numbers that each rule keeps for an element, in the rules' order."""
WITH_VELOCITY = ("sgd", "signum")
"""The rules that keep a velocity only if they have a momentum."""
TEST = ("learning_rate", 0.01), ("wd", 0.0)
"""Parameters that ``test`` accepts and ignores."""
FRACTIONS = ("float16", "bfloat16", "float32", "float64")
LATEST = (1 << 32) - 1
"""The most steps that can be counted."""
OPEN = {"clip_gradient": math.inf, "lower_bound": 0.0, "upper_bound": math.inf}
"""Bounds that can be ``None`` for no bound, and the rules' number for that."""
FLAGS = {"correct_bias": "correct_bias", "bias_correction": "correct_bias"}
"""Flags by MXNet's names, and the rules' names for them."""

Parameters = dict[str, Any]


def known_numbers(name: str) -> Parameters:
    """The parameters of an optimizer, with their defaults."""
    return dict(_known(name))


@functools.cache
def _known(name: str) -> Parameters:
    known: Parameters = dict(TEST if name == "test" else ()) | dict(dict(_herringbone.optimizers())[NAMES[name]])
    del known["assigns"]  # a table's, not an optimizer's
    for bound in OPEN.keys() & known.keys() | {"clip_gradient"}:
        known[bound] = None
    if "correct_bias" in known:
        known["bias_correction" if name == "lamb" else "correct_bias"] = bool(known.pop("correct_bias"))
    return known


def native_numbers(name: str, params: Parameters) -> list[tuple[str, float]]:
    """Numbers as the native rule of an optimizer takes them."""
    if name == "test":  # MXNet's cuts nothing
        return [("rescale_grad", float(params["rescale_grad"]))]
    given = dict(params)
    for bound, open_end in OPEN.items():
        if bound in given and (given[bound] is None or given[bound] <= 0):
            given[bound] = open_end
    return [(FLAGS.get(parameter, parameter), float(value)) for parameter, value in given.items()]


def number(name: str, value: Any) -> int | float | bool | None:
    """A parameter as Python's number.

    Raises:
        TypeError, ArgumentError: it is not a number, or not finite.
    """
    if name in OPEN and value is None:
        return None
    if name in FLAGS and isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"create_optimizer: {name} is a {type(value).__name__}, not a number")
    converted = int(value) if isinstance(value, numbers.Integral) else float(value)
    if not math.isfinite(converted):
        raise ArgumentError(f"create_optimizer: {name} is {converted}; pass a number that is finite")
    return converted


def rate_of(call: str, what: str, given: Any) -> float:
    """A learning rate, or its factor, from a program's own code.

    Raises:
        ArgumentError: it is not a finite number.
    """
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{call}: {what} is {given!r}; it has to be a finite number") from None


def check_numbers(call: str, name: str, params: Parameters) -> None:
    """Refuse numbers that are invalid or unknown for an optimizer.

    Raises:
        ArgumentError: the text names the number, and the possible values.
    """
    for parameter, value in params.items():
        if value is not None or parameter not in OPEN:
            rate_of(call, f"{name}'s {parameter}", value)
    try:
        _herringbone.LocalOptimizer(NAMES[name], native_numbers(name, params), "f32", 0)
    except (TypeError, ValueError) as error:
        # The rule's name differs from the optimizer's name in the program.
        text, rule = str(error), NAMES[name]
        raise ArgumentError(f"{call}: {name + text.removeprefix(rule) if text.startswith(f'{rule} ') else text}") from None
