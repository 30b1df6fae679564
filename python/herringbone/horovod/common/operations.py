"""The reductions, and the rules for arguments that all frameworks share."""

from __future__ import annotations

import enum
import warnings

from ...arguments import factor

__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "chosen_op", "predivisor"]


class ReduceOp(enum.IntEnum):
    """How the ranks' tensors are combined; the numbers are Horovod's."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    @classmethod
    def _missing_(cls, value: object) -> ReduceOp:
        raise ValueError(f"op is {value!r}; pass Average, Sum, Min, Max, Product or Adasum")

    @property
    def native(self) -> str:
        """The controller's name for it."""
        return self.name.lower()


Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Adasum = ReduceOp.ADASUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT


def chosen_op(op: int | None, average: bool | None, frames: int = 4) -> ReduceOp:
    """The reduction that the caller, ``frames`` frames above, means by ``op``, or by the older ``average``.

    Raises:
        ValueError: both are given, or ``op`` is not a reduction.
    """
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        return ReduceOp(op)
    if average is None:
        return Average
    warnings.warn("Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=frames)
    return Average if average else Sum


def predivisor(value: float) -> float:
    """An optimizer's ``gradient_predivide_factor``.

    Raises:
        TypeError, ValueError: it cannot be a divisor.
    """
    number = factor("DistributedOptimizer", "gradient_predivide_factor", value)
    if number == 0:
        raise ValueError("DistributedOptimizer: gradient_predivide_factor is 0; pass 1, or another number to divide by")
    return number
