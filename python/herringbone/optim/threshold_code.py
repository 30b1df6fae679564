"""Updates in few bytes: one magnitude per tensor, and the places and signs of the elements that change by it. Needs only numpy.

A message begins with the magnitudes of all tensors as float32. Then comes, for each block of 32,768 elements of a tensor, how
many of them change. At the end are two bytes for each changed element: its place in the block and its sign. Numbers are
little-endian. All peers know the tensors' lengths, so messages do not contain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ProtocolError

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Change", "Shape", "decode", "encode"]

BLOCK = 1 << 15
"""The number of elements of a block: places in it have 15 bits."""


@dataclass(frozen=True)
class Change:
    """The change of a tensor: elements that change by the same magnitude."""

    magnitude: float
    places: Array
    """Ascending, int64."""
    is_negative: Array
    """For each of them, whether it decreases."""


class Shape:
    """The lengths of an update's tensors, and numbers derived from them."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.blocks = [-(-length // BLOCK) for length in self.lengths]
        self.head_bytes = 4 * len(self.lengths) + 2 * sum(self.blocks)
        self.most_bytes = self.head_bytes + 2 * sum(self.lengths)
        """The length of the longest message."""


def encode(shape: Shape, changes: Sequence[Change]) -> bytes:
    """The message of an update, with a change for each tensor."""
    magnitudes = np.array([change.magnitude for change in changes], "<f4")
    counts, codes = [], []
    for blocks, change in zip(shape.blocks, changes):
        counts.append(np.bincount(change.places // BLOCK, minlength=blocks).astype("<u2"))
        codes.append(((change.places % BLOCK) << 1 | change.is_negative).astype("<u2"))
    return b"".join(part.tobytes() for part in [magnitudes, *counts, *codes])


def decode(shape: Shape, message: bytes) -> Iterator[Change]:
    """The changes of a message, tensor by tensor.

    Raises:
        ProtocolError: no peer with these tensors can have sent it. Drop the changes decoded so far.
    """
    if len(message) < shape.head_bytes:
        raise ProtocolError(f"an update of {len(message)} bytes, but its head alone has {shape.head_bytes}: {SAME}")
    magnitudes = np.frombuffer(message, "<f4", len(shape.lengths))
    counts = np.frombuffer(message, "<u2", sum(shape.blocks), 4 * len(shape.lengths)).astype(np.int64)
    total = int(counts.sum())
    if len(message) != shape.head_bytes + 2 * total:
        expected = shape.head_bytes + 2 * total
        raise ProtocolError(f"an update of {len(message)} bytes, but by its contents it should have {expected}: {SAME}")
    if not np.isfinite(magnitudes).all():
        raise ProtocolError("an update with a magnitude that is not a number: a peer has passed on a NaN")
    codes = np.frombuffer(message, "<u2", total, shape.head_bytes).astype(np.int64)
    block, code = 0, 0
    for length, blocks, magnitude in zip(shape.lengths, shape.blocks, magnitudes):
        own = counts[block : block + blocks]
        some = codes[code : code + int(own.sum())]
        places = np.repeat(np.arange(blocks, dtype=np.int64) * BLOCK, own) + (some >> 1)
        if len(places) and (places[-1] >= length or (np.diff(places) <= 0).any()):
            raise ProtocolError(f"an update with places that do not ascend, or are not below {length}: {SAME}")
        yield Change(float(magnitude), places, (some & 1).astype(bool))
        block, code = block + blocks, code + len(some)


SAME = "do all peers train the same model?"
