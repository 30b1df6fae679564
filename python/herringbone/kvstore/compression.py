"""MXNet's gradient compression: what is asked for, what devices lose, and what the workers' collective is told."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Mapping
from typing import Any

from ..compression import LARGEST, Coded, Residuals, residual
from ..errors import ArgumentError, UnsupportedError

__all__ = ["GradientCompression", "compression_of"]

CODECS = {"1bit": "onebit", "2bit": "twobit"}
THRESHOLD = 0.5
"""MXNet's, if none is given."""

LOAD = "load_compression_state_dict"

logger = logging.getLogger("herringbone")


class GradientCompression:
    """``1bit`` sends +1 for what exceeds the threshold, else -1; ``2bit`` sends the threshold with its sign for what reaches it, else 0.

    What is lost of a key stays where it is lost and goes with what is pushed to the key next: on each device if a store of type
    ``device`` adds several, and on each worker.
    """

    def __init__(self, store: str, kind: str, threshold: float) -> None:
        """For :func:`compression_of`."""
        self._kind = kind
        self._threshold = threshold
        self._of_devices = "device" in store
        self._left: dict[tuple[str, int], Any] = {}
        self._residuals = Residuals()

    def __str__(self) -> str:
        """As a codec's name."""
        return f"{CODECS[self._kind]}:{self._threshold!r}"

    def after(self, before: GradientCompression | None) -> GradientCompression:
        """The one that a store has from now on: the one before it if nothing changes, else this one, which starts without."""
        if before is None:
            return self
        if str(self) == str(before):
            return before
        keys = {key for key, _ in before._left} | before._residuals.state_dict().keys()
        if keys:
            what = "kvstore: what %s has left of %d keys is dropped: pushes are compressed with %s from now on"
            logger.warning(what, before, len(keys), self)
        return self

    def state_dict(self) -> dict[str, Any]:
        """What is left of each key's pushes: on this worker, and on its devices."""
        devices: dict[str, dict[int, Any]] = {}
        for (key, device), left in self._left.items():
            devices.setdefault(key, {})[device] = left.copy()
        return {"codec": str(self), "workers": self._residuals.state_dict(), "devices": devices}

    def load_state_dict(self, state: Any) -> None:
        """Go on with what :meth:`state_dict` gave.

        Raises:
            TypeError, ArgumentError: it is not what that gave, or is another codec's; and nothing is changed.
        """
        import numpy as np

        if not isinstance(state, Mapping) or not {"codec", "workers", "devices"} <= state.keys():
            raise TypeError(f"{LOAD}: the state lacks codec, workers or devices; pass what compression_state_dict gave")
        if state["codec"] != str(self):
            raise ArgumentError(
                f"{LOAD}: {state['codec']} has left the state, and the store compresses with {self}; leave it out"
            )
        devices = {(key, device): np.array(left) for key, each in state["devices"].items() for device, left in each.items()}
        for (key, _), left in devices.items():
            residual(LOAD, key, {"steps": 0, "left": left.reshape(-1)})
        self._residuals._load(LOAD, state["workers"])
        self._left = devices

    def check(self, call: str, key: Any, value: Any, is_sparse: bool) -> None:
        """Refuse values that have no compressed form.

        Raises:
            UnsupportedError: it is row-sparse, or of another type than float32.
        """
        if is_sparse or value.dtype.name != "float32":
            what = "is row-sparse" if is_sparse else f"has values of {value.dtype}"
            raise UnsupportedError(f"{call}: key {key!r} {what}, and only dense float32 is compressed; use another store for it")

    def of_devices(self, key: Any, arrays: list[Any]) -> list[Any]:
        """What arrives of the devices' arrays; that of a single device is not compressed, as in MXNet."""
        if not self._of_devices or len(arrays) == 1:
            return arrays
        return [self._arrived((repr(key), device), array) for device, array in enumerate(arrays)]

    def of_workers(self, key: Any) -> Coded:
        """The codec of the workers' collective, and who keeps what is lost by which name."""
        return str(self), repr(key), self._residuals._native

    def _arrived(self, place: tuple[str, int], array: Any) -> Any:
        import numpy as np

        threshold = np.float32(self._threshold)
        wanted = array + self._left.get(place, np.float32(0))
        if self._kind == "1bit":
            coded = np.where(wanted > threshold, np.float32(1), np.float32(-1))
        else:
            coded = np.where(wanted >= threshold, threshold, np.where(wanted <= -threshold, -threshold, np.float32(0)))
        self._left[place] = wanted - coded
        return coded


def compression_of(store: str, params: Any) -> GradientCompression:
    """What ``set_gradient_compression`` asks for.

    Raises:
        ArgumentError: the arguments are wrong, or the type of store compresses nothing.
    """
    if not ("device" in store or "dist" in store):
        raise ArgumentError(
            f"set_gradient_compression: a store of type {store!r} compresses nothing; use 'device' or 'dist_sync'"
        )
    if not isinstance(params, Mapping):
        raise TypeError(
            f"set_gradient_compression: params is a {type(params).__name__}; pass {{'type': '2bit', 'threshold': 0.5}}"
        )
    unknown = sorted(map(str, set(params) - {"type", "threshold"}))
    if unknown or params.get("type") not in tuple(CODECS):
        what = f"it has {unknown}" if unknown else f"type is {params.get('type')!r}"
        raise ArgumentError(f"set_gradient_compression: {what}; pass type, '1bit' or '2bit', and threshold")
    try:
        threshold = float(params.get("threshold", THRESHOLD))
    except (TypeError, ValueError):
        raise TypeError(f"set_gradient_compression: threshold is {params['threshold']!r}, not a number") from None
    # As the codec will have it, a float32: too large a number is infinite there, and too small a one 0.
    single = struct.unpack("f", struct.pack("f", threshold))[0] if abs(threshold) <= LARGEST else math.inf
    if not math.isfinite(single) or (params["type"] == "2bit" and single <= 0):
        which = "one above 0 that float32 has" if params["type"] == "2bit" else "one that float32 has"
        raise ArgumentError(f"set_gradient_compression: threshold is {threshold}; for {params['type']} pass {which}")
    return GradientCompression(store, params["type"], threshold)
