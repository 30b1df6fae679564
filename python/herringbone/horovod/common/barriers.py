"""Operations without tensors."""

from __future__ import annotations

from . import handles
from .handles import Operand, start, synchronize
from .process_sets import ProcessSet, global_process_set

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return once every rank of the set has called this."""
    synchronize(start(process_set, "barrier", None, [Operand(None, None, "u8", (), lambda _: None, None)]))


def join(device: int = -1) -> int:
    """Join: this rank has no more batches, and contributes zeros to the others' allreduces until all have joined.

    Args:
        device: not needed; Horovod's programs pass it.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: the job cannot continue.
    """
    return handles.join()
