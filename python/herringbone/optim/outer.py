"""The outer step of DiLoCo: Nesterov's momentum on the difference between the common and the local parameters, in numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["OuterSGD", "difference"]


def difference(common: Sequence[Array], local: Sequence[Array]) -> list[Array]:
    """The pseudo-gradient of a fragment: its common parameters minus a rank's own. Writes it into ``local``."""
    import numpy as np

    return [np.subtract(start, own, out=own) for start, own in zip(common, local, strict=True)]


class OuterSGD:
    """Stochastic gradient descent with momentum over a fragment's common parameters, as ``torch.optim.SGD`` defines it.

    DiLoCo (Douillard et al., 2023) uses Nesterov's momentum of 0.9 and a learning rate of 0.7.
    """

    def __init__(self, lr: float = 0.7, momentum: float = 0.9, nesterov: bool = True) -> None:
        """The momentum starts at 0.

        Raises:
            ValueError: a number is out of its range.
        """
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(f"DiLoCo: outer_lr is {lr}; pass a number above 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"DiLoCo: outer_momentum is {momentum}; pass a number from 0, below 1")
        self.lr, self.momentum, self.nesterov = lr, momentum, nesterov
        self.velocity: list[Array] | None = None
        """The accumulated momentum, an array for each array of parameters; ``None`` before the first step and without
        momentum."""

    def step(self, common: Sequence[Array], gradient: Sequence[Array]) -> None:
        """Change ``common`` in place by the averaged pseudo-gradient, which this overwrites."""
        import numpy as np

        if self.momentum and self.velocity is None:
            self.velocity = [np.zeros_like(values) for values in common]
        for at, (values, change) in enumerate(zip(common, gradient, strict=True)):
            # A Python float keeps the type of the array: f32 stays f32.
            if self.velocity is not None:
                velocity = self.velocity[at]
                velocity *= self.momentum
                velocity += change
                if self.nesterov:
                    change += self.momentum * velocity
                else:
                    change = velocity.copy()
            change *= self.lr
            values -= change

    def state_dict(self) -> dict[str, Any]:
        """The momentum, by value."""
        return {"velocity": None if self.velocity is None else [values.copy() for values in self.velocity]}

    def load_state_dict(self, state: Mapping[str, Any], common: Sequence[Array]) -> None:
        """Continue with the momentum of :meth:`state_dict`; ``common`` are the parameters that it belongs to.

        Raises:
            ArgumentError: it belongs to other parameters; nothing is changed.
        """
        arrays = self.checked(state, common)
        self.velocity = None if arrays is None else [values.copy() for values in arrays]

    @staticmethod
    def checked(state: Mapping[str, Any], common: Sequence[Array]) -> list[Array] | None:
        """The momentum of a state, as arrays.

        Raises:
            ArgumentError: it belongs to other parameters.
        """
        import numpy as np

        if not isinstance(state, Mapping) or "velocity" not in state:
            raise ArgumentError("DiLoCo.load_state_dict: the outer state lacks 'velocity'; pass the result of state_dict()")
        given = state["velocity"]
        if given is None:
            return None
        arrays = [np.asarray(values) for values in (given if isinstance(given, (list, tuple)) else [given])]
        shapes, own = ([(each.dtype, each.shape) for each in side] for side in (arrays, common))
        if shapes != own:
            raise ArgumentError(f"DiLoCo.load_state_dict: the outer momentum is of {shapes}, and the parameters of {own}")
        return arrays
