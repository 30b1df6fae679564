"""What a call says: its kind, which is made and checked once, and what differs from call to call."""

from __future__ import annotations

import functools

from ._herringbone import Extras, Kind

__all__ = ["BARRIER", "Call", "Message", "Span", "kind_of"]

Span = tuple[int, int]
"""Address and length in bytes. Bytes at address 0 are those that there is no memory for: the operation fails on all ranks."""

Call = tuple[Kind, int, int, Span, Span, object, float | None, int, Extras | None]
"""Its kind, how many elements, the root, the input's and the output's memory, what keeps that, the timeout in seconds, the
priority, and what few calls say.

Wrong addresses are wrong memory accesses. Messages of a higher priority go first.
"""


Message = tuple[str, int, int, Span, object, float | None]
"""The elements' type, how many, the tag, their memory, what keeps that, and the timeout in seconds."""


@functools.cache
def kind_of(collective: str, dtype: str, op: str = "sum") -> Kind:
    """The kind of calls that do this; ``op`` counts where elements are folded.

    Raises:
        ValueError, TypeError: one of the three is no name of the engine's.
    """
    return Kind(collective, dtype, op)


BARRIER = kind_of("barrier", "u8")
