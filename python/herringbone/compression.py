"""Compression of all-reduces: what is checked before the engine is called, and the error feedback of tensors by owner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import _herringbone, arguments
from ._herringbone import Extras
from .arguments import text
from .errors import ArgumentError

__all__ = ["Coded", "Residuals", "compressed", "residual"]

LARGEST = 3.4028234663852886e38
"""Of the numbers of float32."""

LOAD = "load_compression_state_dict"

OF_A_STORE = re.compile(r"kvstore \d+ ")
"""How the names of tensors begin that earlier versions kept for stores, among those of their communicator."""

Coded = tuple[str, "str | None", "_herringbone.Residuals | None"]
"""A codec, the name of a tensor if what is lost of it is fed back, and who keeps that if it is not the communicator."""


class Residuals:
    """Error feedback of one owner, such as an optimizer: what codecs have left of its tensors on this rank::

        generator = herringbone.Residuals()
        group.all_reduce(gradient, "average", compression="int8", tensor="layer1", residuals=generator)

    Without one, ``tensor=`` names a tensor of the communicator. Two models that are trained over one communicator and have tensors
    of the same names need an owner each.

    What is left belongs to one codec, one group and one length, too. If one of these changes, it is dropped, and a warning says so
    once.
    """

    def __init__(self, native: _herringbone.Residuals | None = None) -> None:
        """With ``native`` those that the engine keeps already."""
        self._native = _herringbone.Residuals() if native is None else native

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Of each tensor by name how many ``steps`` it had, the ``codec``, and what is ``left`` of its elements.

        It belongs to a checkpoint of this rank: with it a resumed training equals one that was not interrupted, to the bit.
        """
        import numpy as np

        kept = {name: (steps, codec, np.frombuffer(data, "<f4").copy()) for name, steps, codec, data in self._native.saved()}
        return {name: {"steps": steps, "codec": codec, "left": left} for name, (steps, codec, left) in kept.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on with what was left when :meth:`state_dict` was called, in place of what is left now.

        Raises:
            TypeError, ArgumentError: it is not what that gave, and nothing is changed.
        """
        self._load("Residuals.load_state_dict", state)

    def scale(self, factor: float) -> None:
        """Multiply what is left of each tensor, such as by the old learning rate over the new one. Call it between operations.

        Raises:
            ArgumentError: the factor is below 0, or no finite number as a float32.
        """
        number = arguments.factor("Residuals.scale", "factor", factor)
        if not 0 <= number <= LARGEST:
            raise ArgumentError(
                f"Residuals.scale: the factor is {factor!r}; pass a number from 0 to {LARGEST:.7g}, the largest float32"
            )
        self._native.scale(number)

    def forget(self, tensor: str) -> None:
        """Drop what is left of a tensor: it starts without."""
        self._native.forget(text("Residuals.forget", "tensor", tensor, "a name"))

    def _left(self, tensor: str) -> Any:
        """What is left of a tensor's elements, as an array that is not written to; ``None`` if no operation on it has begun."""
        import numpy as np

        left = self._native.left(tensor)
        return None if left is None else np.frombuffer(left, "<f4")

    def _release_codecs(self) -> None:
        """The next operation on each tensor may have another codec, and takes what is left."""
        self._native.release_codecs()

    def _load(self, call: str, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"{call}: the state is a {type(state).__name__}; pass what was saved")
        self._native.restore([residual(call, tensor, kept) for tensor, kept in state.items()])


def compressed(name: str, codec: str | None, tensor: str | None, residuals: Residuals | None) -> Extras | None:
    """What the engine is told of a call's compression."""
    for argument, value in (("compression", codec), ("tensor", tensor)):
        if value is not None:
            text(name, argument, value, "a name")
    if residuals is not None:
        if not isinstance(residuals, Residuals):
            raise TypeError(f"{name}: residuals is a {type(residuals).__name__}; pass a herringbone.Residuals")
        if tensor is None:
            raise ValueError(f"{name}: residuals without tensor: what is lost is kept by name; pass tensor, too")
    if codec is None:
        if tensor is not None:
            raise ValueError(f"{name}: tensor={tensor!r} without compression: nothing is lost of it; pass compression, too")
        return None
    try:
        return Extras(compression=(codec, tensor, None if residuals is None else residuals._native))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def residual(call: str, tensor: Any, kept: Any) -> tuple[str, int, str | None, bytes]:
    """What is left of a tensor, as the engine has it, after a check: a NaN in it would come out of every later operation.

    Raises:
        TypeError, ArgumentError: no owner gave this.
    """
    import numpy as np

    text(call, "a tensor's name", tensor)
    if OF_A_STORE.match(tensor):
        what = "an earlier version has left for a store, which has a state of its own now"
        raise ArgumentError(f"{call}: the state has {tensor!r}, which {what}; take it out: what was left then is lost, once")
    if not isinstance(kept, Mapping) or not {"steps", "left"} <= kept.keys():
        raise TypeError(f"{call}: what the state has of {tensor!r} lacks steps or left; pass it as it was saved")
    # Earlier versions have saved no codec: then that of the next operation is taken.
    steps, left, codec = kept["steps"], np.asarray(kept["left"]), kept.get("codec")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or not 0 <= steps < 1 << 64:
        raise ArgumentError(f"{call}: the steps of {tensor!r} are {steps!r}, not a number from 0")
    if left.dtype != np.float32 or left.ndim != 1:
        what = f"{left.dtype} in {left.ndim} dimensions"
        raise ArgumentError(f"{call}: what is left of {tensor!r} is {what}, not float32 in one; pass it as it was saved")
    if not np.isfinite(left).all():
        raise ArgumentError(
            f"{call}: what is left of {tensor!r} has a NaN or an infinity: the state is damaged; load another one"
        )
    try:
        codec = None if codec is None else _herringbone.codec(codec)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{call}: the codec of {tensor!r} is {codec!r}: {error}") from None
    return tensor, int(steps), codec, left.astype("<f4").tobytes()
