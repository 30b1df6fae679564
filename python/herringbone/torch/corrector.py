"""Corrections of torch's gradients before a codec: the rules of :mod:`herringbone.correction`, with their state."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from .. import errors
from ..arguments import whole
from ..compression import Residuals
from ..correction import Rates, corrected, kind_of, mask_sent, with_momentum
from ..unlike import unlike_its_memory
from .tensors import Lacking

__all__ = ["Corrector", "beside", "checked_steps"]


class Corrector:
    """Momentum before the codec, a share that falls, and residuals that follow an optimizer's learning rate: one model's, on one rank."""

    def __init__(
        self,
        call: str,
        codec: str,
        momentum: float = 0.0,
        nesterov: bool = False,
        warmup_steps: int = 0,
        follows_rate: bool = False,
        masking: bool = False,
        feedback: bool = True,
    ) -> None:
        """``call`` is the name in errors; other arguments are as in :func:`herringbone.torch.compression_hook`.

        Raises:
            TypeError, ArgumentError: a number makes no sense.
        """
        self._call, self._codec, self._follows_rate = call, codec, follows_rate
        self._correction = corrected(call, codec, momentum, nesterov, warmup_steps, masking, feedback)
        self._velocities: dict[Hashable, torch.Tensor] = {}
        self._rates = Rates()
        self._now: str | None = None
        """The codec of the last step."""

    def check_momentum(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse momentum that is accumulated twice.

        Raises:
            ConfigError: both the optimizer and this have momentum.
        """
        if self._correction.momentum and any(map(_has_momentum, optimizer.param_groups)):
            raise errors.ConfigError(
                f"{self._call}: momentum is {self._correction.momentum} before the codec, but the optimizer, "
                f"{type(optimizer).__name__}, has momentum, too; give the optimizer none, which is torch.optim.SGD's default"
            )

    def begin(self, step: int, residuals: Residuals, optimizer: torch.optim.Optimizer | None) -> str:
        """Prepare the residuals for a step, from 0, and return its codec. Operations on them must not be running.

        Raises:
            ArgumentError: residuals cannot follow the rates of the optimizer's groups.
        """
        now = self._correction.codec_at(self._codec, max(step, 0))
        if self._now not in (None, now):
            residuals._release_codecs()
        self._now = now
        if self._follows_rate and optimizer is not None:
            factor = self._rates.follow(self._call, [float(group["lr"]) for group in optimizer.param_groups])
            if factor != 1.0:
                residuals.scale(factor)
        return now

    def correct(self, key: Hashable, gradient: torch.Tensor) -> None:
        """Add momentum to the gradient of a parameter, in place; ``key`` is the parameter's key in all steps.

        If a gradient has a NaN or an infinity, it and its velocity stay unchanged, because the step will be skipped. The
        velocities of the step's other parameters, and all velocities on ranks without a NaN, still include this step's
        gradients. A ``GradScaler`` must not scale gradients: a velocity keeps the scale in which it was accumulated.

        Raises:
            ArgumentError: a loaded velocity has another number of elements.
        """
        if not self._correction.momentum or isinstance(gradient, Lacking) or not torch.isfinite(gradient).all():
            return
        velocity = self._velocities.get(key)
        if velocity is None:
            velocity = self._velocities[key] = torch.zeros_like(gradient)
        velocity = self._velocities[key] = beside(velocity, gradient)
        _check_elements(self._call, key, velocity, gradient.numel())
        gradient.copy_(with_momentum(velocity.view_as(gradient), gradient, self._correction.momentum, self._correction.nesterov))

    @property
    def masks(self) -> bool:
        """Whether velocities are masked."""
        return self._correction.masking

    def mask(self, keys: Sequence[Hashable], left: Any, kept: Collection[Hashable] = ()) -> None:
        """Set velocities to zero where elements were sent whole, if masking is on.

        Args:
            keys: the parameters whose elements are in ``left``, one after the other, in the order of their memory.
            left: the residual after the step, of numpy. ``None`` masks nothing, and neither does a residual of another length,
                for instance after DDP has rebuilt its buckets.
            kept: the ones of ``keys`` whose elements were not coded.
        """
        velocities = [self._velocities.get(key) for key in keys]
        known = [velocity for velocity in velocities if velocity is not None]
        if not self.masks or left is None or len(known) < len(velocities):
            return
        sizes = [velocity.numel() for velocity in known]
        if sum(sizes) != left.size:
            return
        is_left = torch.from_numpy(left != 0)
        for key, velocity, each in zip(keys, known, torch.split(is_left, sizes)):
            if key not in kept:
                alike = torch.as_strided(each, velocity.shape, velocity.stride(), each.storage_offset())
                mask_sent(velocity, alike.to(velocity.device))

    def left_by(self, codec: str | None) -> str | None:
        """The codec that a saved residual belongs to: any share of a warm-up if this has one."""
        is_of_warmup = codec is not None and self._correction.warmup_steps and kind_of(codec) == kind_of(self._codec)
        return None if is_of_warmup else codec

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint of this rank, only for rules that are on."""
        kept: dict[str, Any] = {}
        if self._correction.momentum:
            kept["velocities"] = {key: velocity.clone() for key, velocity in self._velocities.items()}
        if self._follows_rate:
            kept["rates"] = list(self._rates.last)
        return kept

    def checked(self, call: str, state: Mapping[Any, Any], elements: Mapping[Any, int] | None = None) -> dict[str, Any]:
        """The part of a state that :meth:`load` takes; a state from a program without corrections has none.

        ``elements`` has each parameter's number of elements, if that is known; otherwise :meth:`correct` compares.

        Raises:
            TypeError, ArgumentError: the state is not from :meth:`state_dict`.
        """
        velocities, rates = state.get("velocities", {}), state.get("rates", [])
        if not isinstance(velocities, Mapping) or not all(isinstance(each, torch.Tensor) for each in velocities.values()):
            raise TypeError(f"{call}: the state's velocities are not tensors by parameter; pass the result of state_dict")
        for key, velocity in velocities.items():
            if not velocity.is_floating_point() or unlike_its_memory(velocity) is not None or velocity.is_meta:
                what = f"of {velocity.dtype}, {str(velocity.layout).removeprefix('torch.')}, on {velocity.device}"
                raise TypeError(
                    f"{call}: the velocity of {key!r} is a tensor {what}, not a dense one of a floating type; pass the result of state_dict"
                )
            _check_elements(call, key, velocity, (elements or {}).get(key, velocity.numel()))
        if odd := [key for key, each in velocities.items() if not torch.isfinite(each).all()]:
            raise errors.ArgumentError(
                f"{call}: the velocity of {odd[0]!r} has a NaN or an infinity: the state is damaged; load another one"
            )
        if not isinstance(rates, Sequence) or not all(isinstance(rate, float) for rate in rates):
            raise TypeError(f"{call}: the state's rates are not numbers; pass the result of state_dict")
        if not all(math.isfinite(rate) for rate in rates):
            raise errors.ArgumentError(f"{call}: the state's rates are {list(rates)}: the state is damaged; load another one")
        return {"velocities": velocities, "rates": rates}

    def load(self, kept: Mapping[str, Any]) -> None:
        """Load the result of :meth:`checked`."""
        self._velocities = {key: velocity.clone() for key, velocity in kept["velocities"].items()}
        self._rates = Rates(kept["rates"])


def beside(velocity: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The velocity on the gradient's device: a loaded one is on the device it was saved from, or that ``torch.load`` chose."""
    return velocity if velocity.device == gradient.device else velocity.to(gradient.device)


def _has_momentum(group: Mapping[str, Any]) -> bool:
    """Whether a group of parameters has a momentum, as in SGD and RMSprop, or betas: the first one is Adam's momentum."""
    return bool(group.get("momentum") or any(group.get("betas", ())[:1]))


def checked_steps(call: str, steps: Any) -> int:
    """The number of steps of a state.

    Raises:
        TypeError, ArgumentError: it is invalid.
    """
    number = whole(call, "steps", steps, "a number of steps")
    if number < 0:
        raise errors.ArgumentError(f"{call}: steps is {number}; pass the state as it was saved, with 0 steps or more")
    return number


def _check_elements(call: str, key: Hashable, velocity: torch.Tensor, elements: int) -> None:
    if velocity.numel() != elements:
        raise errors.ArgumentError(
            f"{call}: the velocity of parameter {key!r} has {velocity.numel()} elements, but the parameter has {elements}; load a state "
            "of this model"
        )
