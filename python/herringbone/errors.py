"""The types of errors.

Every error of the engine is a :class:`HerringboneError`, which is a :class:`RuntimeError`. Its text names the
rank or address concerned, the operation, and what to do next. The native module raises instances of the classes
of this file. Where torch itself waits for a collective, as in DistributedDataParallel's ``backward()``, it raises
a plain :class:`RuntimeError` whose text contains the error's.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ArgumentError",
    "AuthError",
    "ClosedError",
    "ConfigError",
    "ConnectionLostError",
    "CorruptError",
    "ForkedError",
    "HerringboneError",
    "LinkLostError",
    "MismatchError",
    "OperationTimeoutError",
    "OutOfMemoryError",
    "OwnMemoryError",
    "PeerLostError",
    "ProtocolError",
    "ReducerLostError",
    "RendezvousError",
    "ReplayError",
    "TableError",
    "TableServerLostError",
    "UnsupportedError",
]


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class HerringboneError(RuntimeError):
    """Base of all errors of the engine. ``args[0]`` is the text; further arguments are the values that it names."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class PeerLostError(HerringboneError):
    """Workers died or left, so the operation cannot complete on any rank, and the group cannot be used any more.

    ``ranks`` are their ranks in the group, ``rank`` the lowest of them.
    """

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message, tuple(ranks))
        self.ranks: tuple[int, ...] = tuple(ranks)

    @property
    def rank(self) -> int:
        """The lowest lost rank."""
        return min(self.ranks)


class ReducerLostError(HerringboneError):
    """A reducer refused to take part in an operation, or did not within a short timeout. A lost reducer fails no operation.

    ``address`` is its ``host:port``.
    """

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message, address)
        self.address: str = address


class TableError(HerringboneError):
    """A table server refused a request, or a call is impossible. The table stays usable.

    ``table`` is its name.
    """

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message, table)
        self.table: str = table


class TableServerLostError(HerringboneError):
    """A table server is gone, with its data.

    ``address`` is its ``host:port``.
    """

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message, address)
        self.address: str = address


class MismatchError(HerringboneError):
    """The ranks called different operations, or the same one with another dtype, count, op or root.

    All ranks of the group get this error; a rank whose call had already succeeded gets it in its next call. The group
    stays usable: a rank's n-th call still meets the others' n-th. ``calls`` has the differing calls.
    """

    def __init__(self, message: str, calls: Sequence[tuple[Sequence[int], str]] = ()) -> None:
        super().__init__(message, tuple(calls))
        self.calls: dict[int, str] = {rank: call for ranks, call in calls for rank in ranks}


class OperationTimeoutError(HerringboneError):
    """The operation, or a wait for it, did not finish within its timeout.

    ``missing`` names the ranks or reducers that did not answer, where they are known.
    """

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:
        super().__init__(message, tuple(missing))
        self.missing: tuple[str, ...] = tuple(missing)


class OutOfMemoryError(HerringboneError):
    """A rank lacks memory for its part of an operation, which fails on all ranks of the group. The group stays usable.

    ``rank`` is that rank. There the error is an :class:`OwnMemoryError`.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message, rank)
        self.rank: int = rank


class OwnMemoryError(OutOfMemoryError, MemoryError):
    """This rank lacks memory for its part of an operation. It is also a :class:`MemoryError`."""


class AuthError(HerringboneError):
    """The other end of a connection does not hold the job's token."""


class ConfigError(HerringboneError):
    """A setting (environment variable, option, argument) is missing, malformed or impossible."""


class ReplayError(HerringboneError):
    """A program of :mod:`herringbone.rabit` cannot continue: no rank has the results that it needs, or its calls differ."""


class RendezvousError(HerringboneError):
    """The ranks did not find each other.

    ``ranks`` are the missing ranks, where a reconfigured group of torch knows them.
    """

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, tuple(ranks))
        self.ranks: tuple[int, ...] = tuple(ranks)


class ConnectionLostError(HerringboneError):
    """The operating system refused something: a connection, a socket, memory."""


class ProtocolError(HerringboneError):
    """The other end of a connection sent something that no Herringbone process of this version sends."""


class CorruptError(HerringboneError):
    """Bytes changed on the way (a checksum failed)."""


class LinkLostError(HerringboneError):
    """Two ranks, ``ranks``, cannot reach each other, although both are running. All ranks of the group get this error.

    The group stays usable, and the link is made again when it is needed.
    """

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message, tuple(ranks))
        self.ranks: tuple[int, ...] = tuple(ranks)


class ForkedError(HerringboneError):
    """A communicator was used in a child of ``fork()``; only the parent can use it."""


class ClosedError(HerringboneError):
    """The communicator is closed, or was aborted while the operation was running."""


class ArgumentError(HerringboneError, ValueError):
    """Tensors or ranks in one call of torch do not fit together.

    It is also a :class:`ValueError`.
    """


class UnsupportedError(HerringboneError, NotImplementedError):
    """The request is valid, but this version does not support it. The text names an alternative."""
