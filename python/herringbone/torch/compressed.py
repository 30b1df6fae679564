"""Which all-reduces have coded messages: torch's calls have no argument for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from .._herringbone import Extras
from ..compression import Residuals, compressed
from ..names import Codec

__all__ = ["compression", "current_compression"]

_codec: ContextVar[Extras | None] = ContextVar("herringbone.compression", default=None)

current_compression = _codec.get
"""How what this thread starts now is compressed."""


@contextlib.contextmanager
def compression(codec: Codec, tensor: str | None = None, residuals: Residuals | None = None) -> Iterator[None]:
    """Compress the all-reduces of float32 that the body starts on this thread, the same on all ranks.

    Sums and averages of float32 are, and of complex64, which torch gives as pairs of these; everything else that the body starts is
    as it would be without. ``tensor`` is a name: what a codec loses of it goes with what is sent of it next (error feedback). The
    group keeps that, or ``residuals``: one for each model that has tensors of the same names. For example::

        with herringbone.torch.compression("int8", "embedding"):
            dist.all_reduce(embedding.weight.grad)
    """
    token = _codec.set(compressed("compression", codec, tensor, residuals))
    try:
        yield
    finally:
        _codec.reset(token)
