"""Gradient compression: what is asked for, and the one place where the codecs are chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError, UnsupportedError

__all__ = ["codec_of"]

TYPES = ("1bit", "2bit")
THRESHOLD = 0.5
"""MXNet's, if none is given."""


def codec_of(store: str, params: Any) -> Any:
    """The codec that ``set_gradient_compression`` asks for.

    Raises:
        ArgumentError: the arguments are wrong, or the type of store compresses nothing.
        UnsupportedError: they are right, but this version has no codecs.
    """
    if not ("device" in store or "dist" in store):
        raise ArgumentError(f"set_gradient_compression: a store of type {store!r} compresses nothing; use 'device' or 'dist_sync'")
    if not isinstance(params, Mapping):
        raise TypeError(f"set_gradient_compression: params is a {type(params).__name__}; pass {{'type': '2bit', 'threshold': 0.5}}")
    unknown = sorted(set(params) - {"type", "threshold"})
    if unknown or params.get("type") not in TYPES:
        what = f"it has {unknown}" if unknown else f"type is {params.get('type')!r}"
        raise ArgumentError(f"set_gradient_compression: {what}; pass type, '1bit' or '2bit', and threshold")
    try:
        threshold = float(params.get("threshold", THRESHOLD))
    except (TypeError, ValueError):
        raise TypeError(f"set_gradient_compression: threshold is {params['threshold']!r}, not a number") from None
    if not math.isfinite(threshold) or (params["type"] == "2bit" and threshold <= 0):
        raise ArgumentError(f"set_gradient_compression: threshold is {threshold}; it is above 0")
    # The codecs belong here: return the one of this type and threshold, and let `KVStore.push` encode with it.
    raise UnsupportedError(
        f"set_gradient_compression: this version has no {params['type']} codec yet; leave the call out, and values are sent whole"
    )
