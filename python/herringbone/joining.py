"""How a program without torch joins its job, and leaves it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import _herringbone
from .arguments import check_seconds, whole
from .closing import at_exit, close_each, tell
from .communicator import Communicator, made
from .errors import ClosedError
from .needs import needs
from .options import Options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["empty", "finalize", "init"]


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    options: Options | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Join the job and return when all its ranks have.

    ``rank``, ``size`` and ``store`` are given together, or come from the environment: from ``HERRINGBONE_RANK``,
    ``HERRINGBONE_WORLD_SIZE`` and ``HERRINGBONE_STORE``, or from what torchrun, mpirun, srun or another launcher sets. Without
    any of these the job is this process alone, which is a warning.

    Args:
        rank: this process's rank, 0 to ``size - 1``.
        size: the number of ranks.
        store: ``"host:port"`` where rank 0 listens for the others to find each other.
        options: settings; see :class:`Options`.
        timeout: seconds for the joining and, by default, for each operation; 30 minutes if it is not given.

    Raises:
        ConfigError: a setting is missing, malformed or impossible.
        HerringboneError: the ranks did not come together.
    """
    needs("herringbone.init", "numpy")
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"init: options is a {type(options).__name__}; pass herringbone.Options(...)")
    for name, number in (("rank", rank), ("size", size)):
        if number is not None and not 0 <= whole("init", name, number, "a number") < 1 << 32:
            raise ValueError(f"init: {name} is {number}; pass a number of 32 bits, from 0")
    check_seconds("init", timeout)
    if timeout == 0:
        raise ValueError("init: timeout is 0; pass a number of seconds above 0, or leave it out")
    native = _herringbone.Communicator.connect(rank=rank, size=size, store=store, timeout=timeout, **vars(options))
    communicator = Communicator(native)
    made.append(communicator)
    return communicator


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32", communicator: Communicator | None = None) -> Array:
    """A zeroed array that all ranks of this host map; see :meth:`Communicator.empty`.

    Args:
        communicator: whose ranks; of those that :func:`init` has made and nobody has closed, the last if it is not given.

    Raises:
        ClosedError: there is none.
    """
    if communicator is None:
        if not made:
            raise ClosedError("empty: this process has no communicator; call herringbone.init() first, or pass one")
        communicator = made[-1]
    return communicator.empty(shape, dtype)


def finalize() -> None:
    """Close every communicator that :func:`init` has made. The end of the process does it, too.

    Raises:
        MismatchError: as of :meth:`Communicator.close`, once all are closed. At the end of the process it is only printed.
    """
    tell(_close_made())


def _close_made() -> list[Exception]:
    natives = [communicator._native for communicator in reversed(made)]
    made.clear()
    return close_each(natives)


at_exit(_close_made)
os.register_at_fork(after_in_child=made.clear)
