"""Messages from one rank to another, and the barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from ..arguments import check_seconds, message_tag
from ..arrays import move_type, readable, writable
from ..kinds import BARRIER
from ..work import Work
from .calls import Calls

if TYPE_CHECKING:
    from .calls import Array, Scalar

__all__ = ["Messages"]


class Messages(Calls):
    """Calls between two ranks, and the barrier."""

    @overload
    def send(
        self, array: Array[Scalar], to: int, tag: int = 0, *, async_op: Literal[False] = False, timeout: float | None = None
    ) -> None: ...
    @overload
    def send(
        self, array: Array[Scalar], to: int, tag: int = 0, *, async_op: Literal[True], timeout: float | None = None
    ) -> Work[Array[Scalar]]: ...
    @overload
    def send(
        self, array: Array[Scalar], to: int, tag: int = 0, *, async_op: bool, timeout: float | None = None
    ) -> Work[Array[Scalar]] | None: ...
    def send(self, array: Array[Scalar], to: int, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send ``array`` to rank ``to``, which receives it by :meth:`recv` with the same tag; any type.

        Returns once the receiver has it, or has announced its buffer and the array has been sent. At most 16,384 messages
        announced to a rank can be unanswered; further ones wait here.

        Args:
            array: any shape; the receiver's array has the same number of elements and type.
            to: a rank of the group. With ``async_op`` it can be this one.
            tag: a whole number of 64 bits, by which the receiver distinguishes messages.
            async_op: return a :class:`Work` at once; do not change the array until it has finished.
            timeout: the most seconds that it can take.

        Raises:
            MismatchError: the receiver's array has another length or type; raised on both ranks.
        """
        dtype, scale = move_type("send", array)
        to, tag = self._root("send", to, "to"), message_tag("send", tag)
        source = readable("send", array)
        check_seconds("send", timeout)
        handle = self._native.send(to, (dtype, array.size * scale, tag, source, array, timeout))
        work = Work("send", handle, array)
        if async_op:
            return work
        work.wait()
        return None

    @overload
    def recv(
        self,
        array: Array[Scalar],
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: Literal[False] = False,
        timeout: float | None = None,
    ) -> int: ...
    @overload
    def recv(
        self,
        array: Array[Scalar],
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: Literal[True],
        timeout: float | None = None,
    ) -> Work[Array[Scalar]]: ...
    @overload
    def recv(
        self, array: Array[Scalar], source: int | None = None, tag: int = 0, *, async_op: bool, timeout: float | None = None
    ) -> int | Work[Array[Scalar]]: ...
    def recv(
        self,
        array: Array[Scalar],
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive into ``array`` a message with this tag from rank ``source``, or from any rank if it is ``None``.

        Receives with one tag are served in the order of their calls, and messages of one sender and tag in the order in
        which they were sent.

        Returns:
            The sender's rank, or a :class:`Work` whose ``source`` is the sender's rank.

        Raises:
            MismatchError: the sender's array has another length or type; raised on both ranks.
        """
        dtype, scale = move_type("recv", array)
        of = None if source is None else self._root("recv", source, "source")
        tag = message_tag("recv", tag)
        target = writable("recv", array)
        check_seconds("recv", timeout)
        handle = self._native.receive(of, (dtype, array.size * scale, tag, target, array, timeout))
        work = Work("recv", handle, array)
        if async_op:
            return work
        work.wait()
        return work.source

    @overload
    def barrier(self, *, async_op: Literal[False] = False, timeout: float | None = None) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True], timeout: float | None = None) -> Work[None]: ...
    @overload
    def barrier(self, *, async_op: bool, timeout: float | None = None) -> Work[None] | None: ...
    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called this."""
        return self._run(BARRIER, 0, 0, None, None, async_op, timeout, 0)
