"""Joining a job, and leaving it, in programs without torch."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from . import _herringbone
from .arguments import check_seconds, whole
from .closing import at_exit, close_each, tell
from .communicator import Communicator, made
from .errors import ClosedError, RendezvousError
from .needs import needs
from .options import Options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["empty", "finalize", "init", "job", "join_again", "join_launched"]


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    options: Options | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Join the job and return when all its ranks have.

    Pass all of ``rank``, ``size`` and ``store``, or none. Without them, they come from ``HERRINGBONE_RANK``,
    ``HERRINGBONE_WORLD_SIZE`` and ``HERRINGBONE_STORE``, or from the variables of torchrun, mpirun, srun or another launcher.
    Without any of these the job is this process alone, with a warning.

    If this process has joined its launcher's job by ``init()``, ``hvd.init()`` or ``kvstore.create()``, it gets another group
    of the same ranks, over the same connections and with the same options. All ranks call it, in the same order. The new group
    ends with the first one.

    Args:
        rank: this process's rank, 0 to ``size - 1``.
        size: the number of ranks.
        store: ``"host:port"`` where rank 0 listens for the others to find each other.
        options: settings; see :class:`Options`.
        timeout: seconds for joining, and the default for each operation; 30 minutes if it is not given.

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
    if (rank, size, store) == (None, None, None):
        return join_launched("herringbone.init", options, timeout)
    return _at(rank, size, store, options, timeout, again=False)


def join_again(rank: int, size: int, store: str, timeout: float) -> Communicator:
    """Like :func:`init`, for ranks of a job that has run before: a rank that cannot use its settings does not end the others'
    programs.

    Raises:
        ConfigError: a setting of this rank is missing, malformed or impossible.
        HerringboneError: the ranks did not come together; the text names the settings that ranks cannot use.
    """
    return _at(rank, size, store, Options(), timeout, again=True)


def _at(
    rank: int | None, size: int | None, store: str | None, options: Options, timeout: float | None, again: bool
) -> Communicator:
    connect = _herringbone.Communicator.connect
    native = connect(rank=rank, size=size, store=store, timeout=timeout, again=again, **vars(options))
    communicator = Communicator(native)
    made.append(communicator)
    return communicator


def job() -> Communicator | None:
    """The group of all ranks that the launcher started, if this process is in it."""
    return next((known for known in made if known._maker is not None), None)


def join_launched(maker: str, options: Options, timeout: float | None) -> Communicator:
    """Join the launcher's job, or make another group of its ranks if this process has joined it.

    Args:
        maker: the name of the joining call in errors.

    Raises:
        ConfigError, HerringboneError: as in :func:`init`.
    """
    first = job()
    if first is not None and options == Options():
        communicator = first.subgroup(range(first.size))
        communicator._over = first
        if timeout is not None:
            communicator._native.set_timeout(timeout)
    else:
        try:
            native = _herringbone.Communicator.connect(timeout=timeout, **vars(options))
        except RendezvousError as error:
            raise RendezvousError(*_explained(error, first)) from None
        communicator = Communicator(native)
        communicator._maker = maker
    made.append(communicator)
    return communicator


def _explained(error: RendezvousError, first: Communicator | None) -> tuple[Any, ...]:
    """The arguments of an error whose text also names the group that this process already has."""
    why = ""
    torch = sys.modules.get("torch")
    if first is not None:
        why = (
            f"This process has already joined the job, by {first._maker}, and its ranks meet once at an address: leave options out to "
            f"make another group of them, or close that group first"
        )
    elif torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        why = (
            "This process has a group of torch.distributed, whose store listens at the job's address: start the ranks by torchrun, or "
            "set HERRINGBONE_STORE to another address, the same on all ranks"
        )
    text, *others = error.args or ("",)
    return (f"{text}. {why}" if why else text, *others)


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32", communicator: Communicator | None = None) -> Array:
    """A zeroed array that all ranks of this host map; see :meth:`Communicator.empty`.

    Args:
        communicator: the group of the ranks; by default the last open one that :func:`init` has made.

    Raises:
        ClosedError: no communicator is open.
    """
    if communicator is None:
        if not made:
            raise ClosedError("empty: this process has no communicator; call herringbone.init() first, or pass one")
        communicator = made[-1]
    return communicator.empty(shape, dtype)


def finalize() -> None:
    """Close every communicator that :func:`init` has made. The end of the process does this, too.

    Raises:
        MismatchError: as in :meth:`Communicator.close`, once all are closed. At the end of the process it is only printed.
    """
    tell(_close_made())


def _close_made() -> list[Exception]:
    ending = made[::-1]
    for communicator in ending:
        communicator._leave()
    return close_each([communicator._native for communicator in ending])


at_exit(_close_made)
os.register_at_fork(after_in_child=made.clear)
