"""The outer optimizer of DiLoCo: ours in numpy on the CPU, or one of torch over the model's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ..errors import ArgumentError
from .flat import Array, FlatParameters
from .outer import OuterSGD
from .saved import check_groups, needed_of

__all__ = ["NumpyOuter", "Outer", "TorchOuter", "own_outer"]


class Outer(Protocol):
    """Makes the outer step of each fragment."""

    def step(self, fragment: int, common: Sequence[Array], gradient: list[Array]) -> None:
        """Change a fragment's common parameters in place by the averaged pseudo-gradient, which is overwritten."""

    def settings(self) -> dict[str, str]:
        """The settings that must be the same on all ranks, as texts by the name of an argument."""

    def state_dict(self) -> dict[str, Any]:
        """The state of all fragments, in tensors."""

    def load_state_dict(self, state: Any, common: Sequence[Sequence[Array]]) -> None:
        """Continue with a state; ``common`` are the parameters that it belongs to.

        Raises:
            ArgumentError: it belongs to other fragments.
        """


class NumpyOuter:
    """An :class:`OuterSGD` for each fragment."""

    def __init__(self, fragments: Sequence[OuterSGD]) -> None:
        self._fragments = fragments

    def step(self, fragment: int, common: Sequence[Array], gradient: list[Array]) -> None:
        """See :class:`Outer`."""
        self._fragments[fragment].step(common, gradient)

    def settings(self) -> dict[str, str]:
        """See :class:`Outer`."""
        first = self._fragments[0]
        return {"outer_lr": str(first.lr), "outer_momentum": str(first.momentum), "nesterov": str(first.nesterov)}

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Outer`."""
        found = []
        for each in self._fragments:
            velocity = each.velocity
            found.append(None if velocity is None else FlatParameters.tensors(velocity))
        return {"velocity": found}

    def load_state_dict(self, state: Any, common: Sequence[Sequence[Array]]) -> None:
        """See :class:`Outer`."""
        given = _of_fragments(state, "velocity", len(self._fragments))
        for each, velocity, parameters in zip(self._fragments, given, common):
            each.checked({"velocity": velocity}, parameters)  # raises before one is changed
        for each, velocity, parameters in zip(self._fragments, given, common):
            each.load_state_dict({"velocity": velocity}, parameters)


def own_outer(fragments: int, lr: float, momentum: float, nesterov: bool) -> NumpyOuter:
    """Ours, for this many fragments.

    Raises:
        ValueError: a number is out of its range.
    """
    return NumpyOuter([OuterSGD(lr, momentum, nesterov) for _ in range(fragments)])


class TorchOuter:
    """Optimizers of torch over the model's parameters, which get the common values for the time of a step."""

    def __init__(
        self,
        call: str,
        optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        fragments: Sequence[FlatParameters],
    ) -> None:
        """One optimizer for all fragments, or one for each.

        Raises:
            TypeError: one is not an optimizer of torch.
            ValueError: there are too few or too many, or one lacks a parameter of its fragment.
        """
        given = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        for optimizer in given:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise TypeError(f"{call}: outer_optimizer has a {type(optimizer).__name__}, not an optimizer of torch")
        if len(given) not in (1, len(fragments)):
            raise ValueError(f"{call}: {len(given)} outer optimizers for {len(fragments)} fragments; pass one, or one for each")
        self._own, self._fragments = given, fragments
        for number, flat in enumerate(fragments):
            known = {id(parameter) for group in self._of(number).param_groups for parameter in group["params"]}
            if not all(id(parameter) in known for parameter in flat.parameters):
                raise ValueError(
                    f"{call}: the outer optimizer of fragment {number} lacks some of its parameters; pass all of them"
                )

    def step(self, fragment: int, common: Sequence[Array], gradient: list[Array]) -> None:
        """See :class:`Outer`."""
        flat, optimizer = self._fragments[fragment], self._of(fragment)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        own = flat.read()
        try:
            # Parameters of other fragments have no gradient, so the optimizer leaves them alone.
            for parameter in parameters:
                parameter.grad = None
            flat.write(common)
            flat.write_gradients(gradient)
            optimizer.step()
            for values, stepped in zip(common, flat.read(), strict=True):
                values[...] = stepped
        finally:
            flat.write(own)
            for parameter, before in zip(parameters, gradients):
                parameter.grad = before

    def settings(self) -> dict[str, str]:
        """See :class:`Outer`: the classes, and the numeric options."""
        found = []
        for optimizer in self._own:
            groups = ({**group, "lr": float(group["lr"])} if "lr" in group else group for group in optimizer.param_groups)
            options = [
                ", ".join(f"{name}={value}" for name, value in group.items() if isinstance(value, (int, float, tuple)))
                for group in groups
            ]
            found.append(f"{type(optimizer).__name__}({'; '.join(options)})")
        return {"outer_optimizer": " and ".join(found)}

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Outer`."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self._own]}

    def load_state_dict(self, state: Any, common: Sequence[Sequence[Array]]) -> None:
        """See :class:`Outer`."""
        parts = _of_fragments(state, "optimizers", len(self._own))
        for number, (optimizer, given) in enumerate(zip(self._own, parts)):
            call = f"DiLoCo.load_state_dict: outer optimizer {number}"
            check_groups(call, given, optimizer.param_groups, needed_of(optimizer.defaults))  # raises before one is changed
        for optimizer, given in zip(self._own, parts):
            optimizer.load_state_dict(given)

    def _of(self, fragment: int) -> torch.optim.Optimizer:
        return self._own[fragment if len(self._own) > 1 else 0]


def _of_fragments(state: Any, name: str, number: int) -> list[Any]:
    """The parts of a state.

    Raises:
        ArgumentError: it is from another outer optimizer.
    """
    parts = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(parts, list) or len(parts) != number:
        what = "make the same outer optimizer as when state_dict() was called"
        raise ArgumentError(f"DiLoCo.load_state_dict: the outer state lacks {number} {name!r}; {what}")
    return parts
