"""Which all-reduces have coded messages: torch's calls have no argument for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["compression", "current_compression"]

_codec: ContextVar[tuple[str, str | None] | None] = ContextVar("herringbone.compression", default=None)

current_compression = _codec.get
"""How what this thread starts now is compressed: the codec's name, and the tensor's if what is lost is fed back."""


@contextlib.contextmanager
def compression(codec: str, tensor: str | None = None) -> Iterator[None]:
    """Compress the all-reduces of float32 that the body starts on this thread, the same on all ranks.

    Sums and averages of float32 are; everything else that the body starts is as it would be without. ``tensor`` is a name:
    what a codec loses of it goes with what is sent of it next. For example::

        with herringbone.torch.compression("int8", "embedding"):
            dist.all_reduce(embedding.weight.grad)
    """
    token = _codec.set((codec, tensor))
    try:
        yield
    finally:
        _codec.reset(token)
