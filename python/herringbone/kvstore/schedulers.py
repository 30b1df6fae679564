"""MXNet's learning rate schedulers: a rate for the number of updates, from plain numbers.

Each gives the same rates as MXNet's scheduler of this name (``python/mxnet/lr_scheduler.py``), but keeps no count of its own.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ArgumentError

__all__ = ["CosineScheduler", "FactorScheduler", "LRScheduler", "MultiFactorScheduler", "PolyScheduler", "scheduler_of"]


class LRScheduler:
    """A learning rate that depends on the number of updates, as the subclasses define. Pass one to ``create_optimizer``.

    A program's own scheduler is any callable that takes the number of updates and returns the rate.
    """

    def __init__(
        self, base_lr: float = 0.01, warmup_steps: int = 0, warmup_begin_lr: float = 0, warmup_mode: str = "linear"
    ) -> None:
        """Set the base rate and the warm-up.

        Args:
            base_lr: the rate after the warm-up, before it decays.
            warmup_steps: the number of updates in which the rate rises from ``warmup_begin_lr`` to ``base_lr``.
            warmup_mode: ``"linear"``, or ``"constant"``, which stays at ``warmup_begin_lr``.

        Raises:
            ArgumentError: an argument is invalid.
        """
        self.base_lr = self._number("base_lr", base_lr)
        self.warmup_steps = self._whole("warmup_steps", warmup_steps, 0)
        self.warmup_begin_lr = self._number("warmup_begin_lr", warmup_begin_lr)
        self.warmup_mode = warmup_mode
        if warmup_mode not in ("linear", "constant"):
            raise ArgumentError(f'{self._name}: warmup_mode is {warmup_mode!r}; pass "linear" or "constant"')
        if self.warmup_begin_lr > self.base_lr:
            raise ArgumentError(
                f"{self._name}: warmup_begin_lr is {warmup_begin_lr}, above a base_lr of {base_lr}; pass a lower one"
            )

    def __call__(self, num_update: int) -> float:
        """The rate for the update with this number, from 1."""
        if num_update >= self.warmup_steps:
            return self._decayed(num_update)
        if self.warmup_mode == "constant":
            return self.warmup_begin_lr
        return self.warmup_begin_lr + (self.base_lr - self.warmup_begin_lr) * num_update / self.warmup_steps

    def _described(self) -> list[Any]:
        """Its name and attributes, as plain data, from which :func:`scheduler_of` rebuilds it."""
        return [self._name, dict(vars(self))]

    def _is_known(self) -> bool:
        """Whether :func:`scheduler_of` can rebuild it on another worker: its class is from this module, and the
        program has put nothing into it that cannot be sent.
        """
        return type(self) in KNOWN.values() and all(_is_plain(value) for value in vars(self).values())

    def _decayed(self, num_update: int) -> float:
        raise NotImplementedError

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _number(self, name: str, given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, numbers.Real) or not math.isfinite(given):
            raise ArgumentError(f"{self._name}: {name} is {given!r}; pass a finite number")
        return float(given)

    def _whole(self, name: str, given: Any, least: int) -> int:
        if isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < least:
            raise ArgumentError(f"{self._name}: {name} is {given!r}; pass a whole number from {least}")
        return int(given)

    def _factor(self, given: Any) -> float:
        factor = self._number("factor", given)
        if factor > 1:
            raise ArgumentError(f"{self._name}: factor is {given}; pass one of at most 1, so that the rate becomes lower")
        return factor


class FactorScheduler(LRScheduler):
    """``base_lr * factor ** k`` after ``k`` times ``step`` updates, but at least ``stop_factor_lr``."""

    def __init__(self, step: int, factor: float = 1, stop_factor_lr: float = 1e-8, base_lr: float = 0.01, **warmup: Any) -> None:
        """The warm-up has the arguments of :class:`LRScheduler`."""
        super().__init__(base_lr, **warmup)
        self.step = self._whole("step", step, 1)
        self.factor = self._factor(factor)
        self.stop_factor_lr = self._number("stop_factor_lr", stop_factor_lr)

    def _decayed(self, num_update: int) -> float:
        times = max(0, (num_update - 1) // self.step)
        decayed = self.base_lr * self.factor**times
        return max(decayed, self.stop_factor_lr) if times else decayed


class MultiFactorScheduler(LRScheduler):
    """``base_lr * factor ** k`` once ``k`` of the ascending numbers of updates in ``step`` are exceeded."""

    def __init__(self, step: Sequence[int], factor: float = 1, base_lr: float = 0.01, **warmup: Any) -> None:
        """The warm-up has the arguments of :class:`LRScheduler`."""
        super().__init__(base_lr, **warmup)
        if not isinstance(step, (list, tuple)) or not step:
            raise ArgumentError(f"{self._name}: step is {step!r}; pass a list of numbers of updates")
        self.step = [self._whole("step", one, 1) for one in step]
        if any(later <= earlier for earlier, later in zip(self.step, self.step[1:])):
            raise ArgumentError(f"{self._name}: step is {step!r}; pass numbers that ascend")
        self.factor = self._factor(factor)

    def _decayed(self, num_update: int) -> float:
        return self.base_lr * self.factor ** sum(num_update > one for one in self.step)


class _UntilScheduler(LRScheduler):
    """From ``base_lr`` to ``final_lr``, which is reached after ``max_update`` updates."""

    def __init__(self, max_update: int, base_lr: float, final_lr: float, warmup: Mapping[str, Any]) -> None:
        super().__init__(base_lr, **warmup)
        self.max_update = self._whole("max_update", max_update, 1)
        self.final_lr = self._number("final_lr", final_lr)
        if self.warmup_steps >= self.max_update:
            raise ArgumentError(
                f"{self._name}: warmup_steps is {self.warmup_steps}, and max_update is {max_update}; pass fewer warmup_steps"
            )

    def _decayed(self, num_update: int) -> float:
        done = min(1.0, (num_update - self.warmup_steps) / (self.max_update - self.warmup_steps))
        return self.final_lr + (self.base_lr - self.final_lr) * self._share(done)

    def _share(self, done: float) -> float:
        raise NotImplementedError


class PolyScheduler(_UntilScheduler):
    """``final_lr + (base_lr - final_lr) * (1 - done) ** pwr``, where ``done`` is the fraction of ``max_update`` after the
    warm-up."""

    def __init__(self, max_update: int, base_lr: float = 0.01, pwr: float = 2, final_lr: float = 0, **warmup: Any) -> None:
        """The warm-up has the arguments of :class:`LRScheduler`."""
        super().__init__(max_update, base_lr, final_lr, warmup)
        self.pwr = self._number("pwr", pwr)

    def _share(self, done: float) -> float:
        return float((1 - done) ** self.pwr)


class CosineScheduler(_UntilScheduler):
    """``final_lr + (base_lr - final_lr) * (1 + cos(pi * done)) / 2``, with ``done`` as in :class:`PolyScheduler`."""

    def __init__(self, max_update: int, base_lr: float = 0.01, final_lr: float = 0, **warmup: Any) -> None:
        """The warm-up has the arguments of :class:`LRScheduler`."""
        super().__init__(max_update, base_lr, final_lr, warmup)

    def _share(self, done: float) -> float:
        return (1 + math.cos(math.pi * done)) / 2


KNOWN = {kind.__name__: kind for kind in (FactorScheduler, MultiFactorScheduler, PolyScheduler, CosineScheduler)}


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, list) and all(map(_is_plain, value)))


def scheduler_of(said: list[Any], given: Any = None) -> LRScheduler:
    """The scheduler from :meth:`LRScheduler._described`.

    Args:
        given: the program's scheduler; if it is of this kind, this object is used, so that the program can change it later.
    """
    name, numbers = said
    kind = KNOWN[name]
    if type(given) is kind and given._described() == said:
        return given
    made = given if type(given) is kind else kind.__new__(kind)
    # The constructor's checks are from its time: the program can have changed any number since.
    vars(made).clear()
    vars(made).update(numbers)
    return made
