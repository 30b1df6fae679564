"""How an optimizer of torch is described to servers, and the weight of a late gradient: pure functions, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..arguments import whole
from ..errors import ArgumentError
from ..tables import WORKERS_MOST

__all__ = ["check_change", "check_scaled", "checked_bounds", "consistency_of", "factor_of", "gradient_share", "rule_of"]

Numbers = dict[str, float]

SCALED = ("sgd", "nag")
"""The servers' optimizers whose step is proportional to the gradient; others divide by the gradients' magnitudes."""

PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"dampening": 0, "maximize": False},
    "Adagrad": {"lr_decay": 0, "initial_accumulator_value": 0, "maximize": False},
    "RMSprop": {"momentum": 0, "centered": False, "maximize": False},
    "Adam": {"amsgrad": False, "maximize": False},
    "AdamW": {"amsgrad": False, "maximize": False},
}
"""Torch's optimizers that servers have, and the settings that must have their defaults."""


def checked_bounds(staleness: Any, first_k: Any, max_staleness: Any) -> tuple[int | None, int | None]:
    """``first_k`` and ``max_staleness`` as numbers, or ``None``.

    Raises:
        TypeError, ArgumentError: one of them makes no sense, or both are given.
    """
    if staleness not in ("scale", "none"):
        raise ArgumentError(f'AsyncSGD: staleness is {staleness!r}; pass "scale" or "none"')
    if max_staleness is not None:
        max_staleness = whole("AsyncSGD", "max_staleness", max_staleness, "a number of steps")
        if max_staleness < 0:
            raise ArgumentError(f"AsyncSGD: max_staleness is {max_staleness}; pass a number of steps from 0, or None")
    if first_k is not None:
        first_k = whole("AsyncSGD", "first_k", first_k, "a number of gradients")
        if not 1 <= first_k <= WORKERS_MOST:
            raise ArgumentError(f"AsyncSGD: first_k is {first_k}; pass a number of gradients from 1 to {WORKERS_MOST}, or None")
        if max_staleness is not None:
            what = "either servers wait for the first gradients, or workers wait for each other"
            raise ArgumentError(f"AsyncSGD: first_k and max_staleness are both given; pass one of them: {what}")
    return first_k, max_staleness


def check_scaled(rules: Iterable[str]) -> None:
    """Refuse to scale gradients for optimizers whose steps do not become shorter by it.

    Raises:
        ArgumentError: a group uses such an optimizer.
    """
    for rule in rules:
        if rule not in SCALED:
            raise ArgumentError(
                f'AsyncSGD: staleness is "scale", but {rule} divides by the magnitude of gradients, so scaling does not make steps '
                f'shorter; pass staleness="none", or torch.optim.SGD'
            )


def rule_of(kind: str, settings: Mapping[str, Any]) -> tuple[str, Numbers]:
    """The servers' name for torch's optimizer ``kind``, and its numbers; ``settings`` belong to one group of parameters.

    Raises:
        ArgumentError: servers do not have this optimizer or these settings, or a setting is no number.
    """

    def number(name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError):
            raise ArgumentError(f"AsyncSGD: {name} is {value!r}; pass a number") from None

    if kind not in PLAIN:
        raise ArgumentError(f"AsyncSGD: servers have no {kind}; pass one of torch.optim's {', '.join(PLAIN)}")
    for setting, plain in PLAIN[kind].items():
        if settings.get(setting, plain) != plain:
            raise ArgumentError(
                f"AsyncSGD: {setting} is {settings[setting]!r}; servers have {kind} with {setting}={plain!r} only"
            )
    numbers = {"learning_rate": number("lr", settings["lr"]), "wd": number("weight_decay", settings["weight_decay"])}
    if kind == "SGD":
        numbers["momentum"] = number("momentum", settings["momentum"])
        return ("nag" if settings.get("nesterov", False) else "sgd"), numbers
    numbers["epsilon"] = number("eps", settings["eps"])
    if kind == "RMSprop":
        numbers["rho"] = number("alpha", settings["alpha"])
    elif kind in ("Adam", "AdamW"):
        betas = settings["betas"]
        if not isinstance(betas, (list, tuple)) or len(betas) != 2:
            raise ArgumentError(f"AsyncSGD: betas is {betas!r}; pass two numbers")
        numbers["beta1"], numbers["beta2"] = (number("betas", beta) for beta in betas)
    # In newer versions AdamW is an Adam with a flag.
    decays_apart = kind == "Adam" and settings.get("decoupled_weight_decay", False)
    return ("adamw" if decays_apart else kind.lower()), numbers


def check_change(call: str, group: int, before: tuple[str, Numbers], after: tuple[str, Numbers]) -> None:
    """Refuse changes that servers cannot make during a training: another optimizer, or a momentum that appears or disappears.

    Raises:
        ArgumentError: the settings of this group of parameters have such a change.
    """
    (old, old_numbers), (new, numbers) = before, after
    has_changed = new != old
    if new == old == "sgd":
        # Servers keep a velocity from the beginning, or never.
        has_changed = bool(numbers["momentum"]) != bool(old_numbers["momentum"])
    if has_changed:
        described = [f"{rule} with momentum {of['momentum']}" if "momentum" in of else rule for rule, of in (before, after)]
        raise ArgumentError(
            f"{call}: group {group} was made as {described[0]}, and would be {described[1]}, but servers can change only its numbers; make an "
            "AsyncSGD with another name and the new optimizer"
        )


def factor_of(staleness: int) -> float:
    """The factor of an update that is ``staleness`` versions old: 1/staleness, and 1 if it is not old.

    Source: Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning" (IJCAI 2016).
    """
    return 1.0 / max(1, staleness)


def consistency_of(first_k: int | None, max_staleness: int | None) -> str | int:
    """The consistency of the tables for these two settings."""
    if first_k is not None:
        return f"first:{first_k}"
    return "async" if max_staleness is None else max_staleness


def gradient_share(workers: int, first_k: int | None, max_staleness: int | None) -> float:
    """The weight of one gradient in an update: if servers add up several before they update, they use the mean."""
    if first_k is not None:
        return 1.0 / first_k
    return 1.0 / workers if max_staleness == 0 else 1.0
