"""Horovod's exceptions."""

from __future__ import annotations

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]


class HorovodInternalError(RuntimeError):
    """A collective operation failed. The engine's error, if it was one, is the ``__cause__``.

    :func:`herringbone.horovod.torch.elastic.run` treats it as the loss of a worker, and continues from the last commit.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """New workers wait to join. :func:`herringbone.horovod.torch.elastic.run` takes them in without losing progress."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the workers of the job change")
        self.skip_sync = skip_sync
