"""MXNet's gradient compression: its parameters, the devices' residuals, and the codec of the workers' collective."""

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
"""MXNet's defaults."""

LOAD = "load_compression_state_dict"

logger = logging.getLogger("herringbone")


class GradientCompression:
    """``1bit`` sends +1 for elements above the threshold, else -1. ``2bit`` sends plus or minus the threshold for elements that
    reach it, else 0.

    There is error feedback for each key: on each worker, and on each device if a store of type ``device`` adds several.
    """

    def __init__(self, store: str, kind: str, threshold: float) -> None:
        """For :func:`compression_of`."""
        self._kind = kind
        self._threshold = threshold
        self._of_devices = "device" in store
        self._left: dict[tuple[str, int], Any] = {}
        self._residuals = Residuals()

    def __str__(self) -> str:
        """It as a codec's name."""
        return f"{CODECS[self._kind]}:{self._threshold!r}"

    def after(self, before: GradientCompression | None) -> GradientCompression:
        """The compression that a store has from now on: the earlier one if nothing changes, else this one, without
        residuals."""
        if before is None:
            return self
        if str(self) == str(before):
            return before
        keys = {key for key, _ in before._left} | before._residuals.state_dict().keys()
        if keys:
            what = "kvstore: the residuals of %s for %d keys are dropped: pushes are compressed with %s from now on"
            logger.warning(what, before, len(keys), self)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The residuals of each key's pushes: on this worker, and on its devices."""
        devices: dict[str, dict[int, Any]] = {}
        for (key, device), left in self._left.items():
            devices.setdefault(key, {})[device] = left.copy()
        return {"codec": str(self), "workers": self._residuals.state_dict(), "devices": devices}

    def load_state_dict(self, state: Any) -> None:
        """Replace the residuals by the result of :meth:`state_dict`.

        Raises:
            TypeError, ArgumentError: the state is not from that method, or belongs to another codec; nothing is changed.
        """
        import numpy as np

        if not isinstance(state, Mapping) or not {"codec", "workers", "devices"} <= state.keys():
            raise TypeError(f"{LOAD}: the state lacks codec, workers or devices; pass the result of compression_state_dict")
        if state["codec"] != str(self):
            raise ArgumentError(
                f"{LOAD}: the state belongs to {state['codec']}, but the store compresses with {self}; leave it out"
            )
        devices = {(key, device): np.array(left) for key, each in state["devices"].items() for device, left in each.items()}
        for (key, _), left in devices.items():
            residual(LOAD, key, {"steps": 0, "left": left.reshape(-1)})
        self._residuals._load(LOAD, state["workers"])
        self._left = devices

    def check(self, call: str, key: Any, value: Any, is_sparse: bool) -> None:
        """Refuse values that have no compressed form.

        Raises:
            UnsupportedError: the value is row-sparse, or not float32.
        """
        if is_sparse or value.dtype.name != "float32":
            what = "is row-sparse" if is_sparse else f"has values of {value.dtype}"
            raise UnsupportedError(
                f"{call}: key {key!r} {what}, but only dense float32 can be compressed; use another store for it"
            )

    def of_devices(self, key: Any, arrays: list[Any]) -> list[Any]:
        """The devices' arrays after compression; a single device's array is not compressed, as in MXNet."""
        if not self._of_devices or len(arrays) == 1:
            return arrays
        return [self._arrived((repr(key), device), array) for device, array in enumerate(arrays)]

    def of_workers(self, key: Any) -> Coded:
        """The codec of the workers' collective, and the name and owner of the residual."""
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
    """The compression for the arguments of ``set_gradient_compression``.

    Raises:
        ArgumentError: the arguments are wrong, or this type of store cannot compress.
    """
    if not ("device" in store or "dist" in store):
        raise ArgumentError(f"set_gradient_compression: a store of type {store!r} cannot compress; use 'device' or 'dist_sync'")
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
    # The codec's threshold is a float32: too large a number is infinite there, and too small a one is 0.
    single = struct.unpack("f", struct.pack("f", threshold))[0] if abs(threshold) <= LARGEST else math.inf
    if not math.isfinite(single) or (params["type"] == "2bit" and single <= 0):
        which = "a float32 number above 0" if params["type"] == "2bit" else "a float32 number"
        raise ArgumentError(f"set_gradient_compression: threshold is {threshold}; for {params['type']} pass {which}")
    return GradientCompression(store, params["type"], threshold)
