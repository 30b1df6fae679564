"""Compression of all-reduces: checks before the engine is called, and the error feedback of tensors by owner."""

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
"""Prefix of tensors' names: earlier versions kept the residuals of stores in their communicator under such names."""

Coded = tuple[str, "str | None", "_herringbone.Residuals | None"]
"""A codec, the name of the tensor if it has error feedback, and the residual's owner if that is not the communicator."""


class Residuals:
    """Error feedback of one owner, such as an optimizer: the residuals of its tensors on this rank::

        generator = herringbone.Residuals()
        group.all_reduce(gradient, "average", compression="int8", tensor="layer1", residuals=generator)

    A residual is the part of a tensor that the codec has dropped; it is added to the tensor before it is coded the next time.
    Without ``residuals=``, ``tensor=`` names a tensor of the communicator. If two models that share a communicator have tensors
    of the same names, each needs its own owner.

    A residual belongs to one codec, one group and one length. If one of these changes, it is dropped, with one warning.
    """

    def __init__(self, native: _herringbone.Residuals | None = None) -> None:
        """``native``: residuals that the engine keeps already."""
        self._native = _herringbone.Residuals() if native is None else native

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The state by the tensor's name: its number of ``steps``, its ``codec``, and its residual as ``left``.

        Put it into this rank's checkpoint. A training that resumes with it equals an uninterrupted one, to the bit.
        """
        import numpy as np

        kept = {name: (steps, codec, np.frombuffer(data, "<f4").copy()) for name, steps, codec, data in self._native.saved()}
        return {name: {"steps": steps, "codec": codec, "left": left} for name, (steps, codec, left) in kept.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the residuals by the ones that :meth:`state_dict` has returned.

        Raises:
            TypeError, ArgumentError: the state is not from :meth:`state_dict`; nothing is changed.
        """
        self._load("Residuals.load_state_dict", state)

    def scale(self, factor: float) -> None:
        """Multiply each residual by ``factor``, such as the old learning rate over the new one. Call it between operations.

        Raises:
            ArgumentError: the factor is below 0, or not finite as a float32.
        """
        number = arguments.factor("Residuals.scale", "factor", factor)
        if not 0 <= number <= LARGEST:
            raise ArgumentError(
                f"Residuals.scale: the factor is {factor!r}; pass a number from 0 to {LARGEST:.7g}, the largest float32"
            )
        self._native.scale(number)

    def forget(self, tensor: str) -> None:
        """Drop the residual of a tensor."""
        self._native.forget(text("Residuals.forget", "tensor", tensor, "a name"))

    def _left(self, tensor: str) -> Any:
        """The residual of a tensor, as a read-only array; ``None`` if no operation on it has begun."""
        import numpy as np

        left = self._native.left(tensor)
        return None if left is None else np.frombuffer(left, "<f4")

    def _release_codecs(self) -> None:
        """Let the next operation on each tensor use another codec and still take the residual."""
        self._native.release_codecs()

    def _load(self, call: str, state: Any) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"{call}: the state is a {type(state).__name__}; pass what was saved")
        self._native.restore([residual(call, tensor, kept) for tensor, kept in state.items()])


def compressed(name: str, codec: str | None, tensor: str | None, residuals: Residuals | None) -> Extras | None:
    """How a call's compression is described to the engine."""
    for argument, value in (("compression", codec), ("tensor", tensor)):
        if value is not None:
            text(name, argument, value, "a name")
    if residuals is not None:
        if not isinstance(residuals, Residuals):
            raise TypeError(f"{name}: residuals is a {type(residuals).__name__}; pass a herringbone.Residuals")
        if tensor is None:
            raise ValueError(f"{name}: residuals without tensor: residuals are kept by the tensor's name; pass tensor, too")
    if codec is None:
        if tensor is not None:
            raise ValueError(f"{name}: tensor={tensor!r} without compression: nothing is lost of it; pass compression, too")
        return None
    try:
        return Extras(compression=(codec, tensor, None if residuals is None else residuals._native))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def residual(call: str, tensor: Any, kept: Any) -> tuple[str, int, str | None, bytes]:
    """A saved residual as the engine takes it, after checks: a NaN in it would come out of every later operation.

    Raises:
        TypeError, ArgumentError: it was not saved by an owner of residuals.
    """
    import numpy as np

    text(call, "a tensor's name", tensor)
    if OF_A_STORE.match(tensor):
        what = "an earlier version has saved for a store; stores have their own state"
        raise ArgumentError(f"{call}: the state has {tensor!r}, which {what}; remove it: its residual is then lost, once")
    if not isinstance(kept, Mapping) or not {"steps", "left"} <= kept.keys():
        raise TypeError(f"{call}: the state of {tensor!r} lacks steps or left; pass it as it was saved")
    # Earlier versions saved no codec: then the next operation's is used.
    steps, left, codec = kept["steps"], np.asarray(kept["left"]), kept.get("codec")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or not 0 <= steps < 1 << 64:
        raise ArgumentError(f"{call}: the steps of {tensor!r} are {steps!r}, not a number from 0")
    if left.dtype != np.float32 or left.ndim != 1:
        what = f"{left.dtype} in {left.ndim} dimensions"
        raise ArgumentError(f"{call}: the residual of {tensor!r} is {what}, not float32 in one; pass it as it was saved")
    if not np.isfinite(left).all():
        raise ArgumentError(
            f"{call}: the residual of {tensor!r} has a NaN or an infinity: the state is damaged; load another one"
        )
    try:
        codec = None if codec is None else _herringbone.codec(codec)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{call}: the codec of {tensor!r} is {codec!r}: {error}") from None
    return tensor, int(steps), codec, left.astype("<f4").tobytes()
