"""Decides whether a linear layer's gradient is sent as factors or whole: a pure rule, and its explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LayerSize", "explained", "uses_factors"]


@dataclass(frozen=True)
class LayerSize:
    """A linear layer, and the most rows (batch times tokens) that a rank has had for it in a step; ``None`` if that is not known yet."""

    name: str
    inputs: int
    outputs: int
    rows: int | None


def uses_factors(size: LayerSize, ranks: int) -> bool:
    """Whether factors are fewer numbers than an all-reduce of the gradient moves: rows (M + N) P < 2 M N.

    The rule is from Zhang et al., "Poseidon" (ATC 2017), for a gradient that is summed without servers.
    """
    if size.rows is None:
        return True
    return size.rows * (size.inputs + size.outputs) * ranks < 2 * size.inputs * size.outputs


def explained(sizes: Sequence[LayerSize], ranks: int, others: Sequence[str]) -> str:
    """The choice for each layer with its numbers, as lines of text; ``others`` explain layers that do not send factors."""
    lines = []
    for size in sizes:
        shape = f"{size.name}: {size.outputs} x {size.inputs}"
        if size.rows is None:
            lines.append(f"{shape}, not used yet: its first step decides")
            continue
        factors = size.rows * (size.inputs + size.outputs) * ranks
        dense = 2 * size.inputs * size.outputs
        choice, sign = ("factors", "<") if uses_factors(size, ranks) else ("the gradient", ">=")
        numbers = f"{size.rows} rows x ({size.inputs} + {size.outputs}) x {ranks} ranks = {factors} {sign} {dense}"
        lines.append(f"{shape}, sends {choice}: {numbers} = 2 x {size.inputs} x {size.outputs}")
    return "\n".join([*lines, *others])
