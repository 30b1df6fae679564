"""Operations without tensors."""

from __future__ import annotations

from . import handles
from .handles import Operand, start, synchronize
from .process_sets import ProcessSet, global_process_set

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once every rank of the set has called it."""
    synchronize(start(process_set, "barrier", None, [Operand(None, None, "u8", (), lambda _: None, None)]))


def join(device: int = -1) -> int:
    """Say that this rank has no more batches: it takes part in the others' allreduces with zeros, until all have said it.

    Args:
        device: not needed; Horovod's programs pass it.

    Returns:
        The rank that was last.

    Raises:
        HorovodInternalError: the job cannot go on.
    """
    return handles.join()
