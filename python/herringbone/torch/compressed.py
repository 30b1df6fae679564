"""Compression of all-reduces by a context manager, because torch's calls have no argument for it."""

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
"""The compression of the calls that this thread starts now."""


@contextlib.contextmanager
def compression(codec: Codec, tensor: str | None = None, residuals: Residuals | None = None) -> Iterator[None]:
    """Compress the all-reduces of float32 that the body starts on this thread, the same on all ranks.

    This applies to sums and averages of float32, and of complex64, which torch passes as pairs of float32. Everything else is
    sent uncompressed, without a warning. ``tensor`` is a name for error feedback: what a codec drops of the tensor is added to
    it before it is coded the next time. The group keeps this residual, or ``residuals`` does: models with tensors of the same
    names need one each. For example::

        with herringbone.torch.compression("int8", "embedding"):
            dist.all_reduce(embedding.weight.grad)
    """
    token = _codec.set(compressed("compression", codec, tensor, residuals))
    try:
        yield
    finally:
        _codec.reset(token)
