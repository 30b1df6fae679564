"""The description of a call: its kind, which is made and checked once, and the values that differ from call to call."""

from __future__ import annotations

import functools

from ._herringbone import Extras, Kind

__all__ = ["BARRIER", "Call", "Message", "Span", "kind_of"]

Span = tuple[int, int]
"""Address and length in bytes. Address 0 means that memory for the bytes is lacking: the operation fails on all ranks."""

Call = tuple[Kind, int, int, Span, Span, object, float | None, int, Extras | None]
"""Its kind, the number of elements, the root, the memory of input and output, the objects that keep it, the timeout in seconds,
the priority, and rare extras.

Wrong addresses are wrong memory accesses. Messages of a higher priority are sent first.
"""


Message = tuple[str, int, int, Span, object, float | None]
"""The elements' type and number, the tag, their memory, the object that keeps it, and the timeout in seconds."""


@functools.cache
def kind_of(collective: str, dtype: str, op: str = "sum") -> Kind:
    """The kind of such calls; ``op`` is used where elements are folded.

    Raises:
        ValueError, TypeError: one of the three is not a name that the engine knows.
    """
    return Kind(collective, dtype, op)


BARRIER = kind_of("barrier", "u8")
