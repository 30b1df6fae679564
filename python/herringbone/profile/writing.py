"""Writes a profile as the text of its file."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from typing import Any

from .document import Layer, Parameter, Profile

__all__ = ["FORMAT", "VERSION", "as_object", "is_control", "text"]

FORMAT, VERSION = "herringbone model profile", 1


def is_control(letter: str) -> bool:
    """Whether a character ends a line or controls a terminal. A model's name, which is printed, has no such character."""
    return unicodedata.category(letter) == "Cc"


def as_object(profile: Profile) -> dict[str, Any]:
    """The profile as the objects, lists and numbers of JSON."""
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    found |= {"name": profile.name, "source": profile.source, "timing": profile.timing}
    if profile.sample is not None:
        found["sample"] = profile.sample
    for name in ("published", "run", "measured", "buckets"):
        part = getattr(profile, name)
        if part is not None:
            found[name] = {key: value for key, value in dataclasses.asdict(part).items() if value is not None}
    found["layers"] = [_layer(layer, profile.timing) for layer in profile.layers]
    return found


def _layer(layer: Layer, timing: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": layer.name}
    if timing == "operations":
        found["multiply_adds"] = layer.multiply_adds
    return found | {"parameters": [_parameter(each, timing) for each in layer.parameters]}


def _parameter(parameter: Parameter, timing: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": parameter.name, "shape": list(parameter.shape), "dtype": parameter.dtype}
    found["bytes"] = parameter.bytes
    if not parameter.trainable:
        found["trainable"] = False
    elif timing == "seconds":
        found["ready_seconds"] = parameter.ready_seconds
    return found


def text(profile: Profile) -> str:
    """The text of a profile's file: a line for each key, and for each layer."""
    lines = []
    for key, value in as_object(profile).items():
        if key == "layers":
            rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in value)
            lines.append(f'"layers": [\n{rows}\n]')
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
