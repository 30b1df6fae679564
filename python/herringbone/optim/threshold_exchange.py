"""Sends updates to all peers and receives theirs, without common steps. Needs only numpy.

A worker sends each update as two messages, its length and its bytes. It takes the arrived updates of each peer, in the peer's
order, and waits for a peer only if that one is more steps behind than the bound. A length of -1 means that a worker makes no
more steps, and -2 that it has left without the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..closing import at_exit
from ..communicator import before_close
from ..errors import HerringboneError, PeerLostError, ProtocolError
from .threshold_messages import Handle, Messages

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["GONE", "Exchange", "under_way"]

END, LEFT = -1, -2
DRAIN_SECONDS, LOOK_SECONDS = 2.0, 0.001
GONE = (HerringboneError, RuntimeError)
"""Errors of calls after the group or one of its ranks is gone; torch's calls also raise RuntimeError."""
FIRST_TAG = -7001
"""The highest tag: tags go down from here, two for each space. Programs are unlikely to use such tags themselves."""


class Exchange:
    """This worker's updates and its peers', from the first step to the last."""

    def __init__(self, messages: Messages, staleness: int, most_bytes: int, space: int = 0) -> None:
        """``most_bytes`` is the length of the longest possible update: no peer can make a worker reserve more.

        ``space``, from 0, separates the messages from other exchanges' over the group. It is the same on all ranks.
        """
        self._messages, self._staleness = messages, staleness
        self._tags = FIRST_TAG - 2 * space, FIRST_TAG - 2 * space - 1
        self._step, self._has_ended = 0, False
        self._sending: list[tuple[Handle, Array]] = []
        ranks = [rank for rank in range(messages.size) if rank != messages.rank]
        self._peers = {rank: _Peer(messages, rank, most_bytes, self._tags) for rank in ranks}

    def step(self, update: bytes) -> Iterator[bytes]:
        """Send an update, and return the updates to apply: this worker's and the peers'.

        With a bound of 0 these are one from each rank, in the order of ranks, so all ranks apply the same updates in the same
        order.
        """
        self._step += 1
        self._send(len(update), update)
        if self._staleness == 0:
            for rank in range(self._messages.size):
                taken = update if rank == self._messages.rank else self._peers[rank].take(waits=True)
                if taken is not None:
                    yield taken
            return
        yield update
        for peer in self._peers.values():
            while (taken := peer.take(waits=False)) is not None:
                yield taken
        for peer in self._peers.values():
            while peer.is_too_late(self._step, self._staleness):
                taken = peer.take(waits=True)
                if taken is not None:
                    yield taken

    def finish(self) -> Iterator[bytes]:
        """Make no more steps, and return all updates that peers send until they do the same. All ranks call it.

        The updates come step by step, in the order of ranks: with a bound of 0, ranks that continue have applied them in the
        same order.
        """
        self._send(END, b"")
        self._has_ended = True
        while any(not peer.has_ended for peer in self._peers.values()):
            for peer in self._peers.values():
                if (taken := peer.take(waits=True)) is not None:
                    yield taken
        for handle, _ in self._sending:
            handle.wait()
        under_way.discard(self)

    def leave(self) -> None:
        """Make no more steps; peers that wait for one fail.

        A group waits at its end for running messages. So this receives the peers' messages until they leave, too, or nothing
        has come for :data:`DRAIN_SECONDS`.
        """
        under_way.discard(self)
        if not self._has_ended:
            with suppress(*GONE):
                self._send(LEFT, b"")
        waiting, until = list(self._peers.values()), time.monotonic() + DRAIN_SECONDS
        while (waiting := [peer for peer in waiting if not (peer.has_ended or peer.has_left)]) and time.monotonic() < until:
            for peer in waiting:
                try:
                    while peer.take(waits=False) is not None:
                        until = time.monotonic() + DRAIN_SECONDS
                except GONE:
                    peer.has_left = True
            time.sleep(LOOK_SECONDS)

    def _send(self, length: int, update: bytes) -> None:
        """Send to all peers, and release messages that have arrived."""
        self._sending = [sent for sent in self._sending if not sent[0].done()]
        said, data = np.array([length], np.int64), np.frombuffer(bytearray(update), np.uint8)
        for rank in self._peers:
            self._sending.append((self._messages.send(said, rank, self._tags[0]), said))
            if length > 0:
                self._sending.append((self._messages.send(data, rank, self._tags[1]), data))


class _Peer:
    """The updates from one rank."""

    def __init__(self, messages: Messages, rank: int, most_bytes: int, tags: tuple[int, int]) -> None:
        """``tags``: the tag of its lengths, and of its bytes."""
        self._messages, self._rank, self._most, self._tags = messages, rank, most_bytes, tags
        self._length = np.zeros(1, np.int64)
        self._bytes: Array | None = None
        self._receiving = messages.receive(self._length, rank, tags[0])
        self._steps = 0
        self.has_ended = False
        """Whether it makes no more steps."""
        self.has_left = False
        """Whether it has left without the others: a rank that needs a step from it fails, and no other rank."""

    def is_too_late(self, step: int, staleness: int) -> bool:
        """Whether a worker that has made this number of steps waits for it."""
        return not self.has_ended and self._steps < step - staleness

    def take(self, waits: bool) -> bytes | None:
        """Its next update; ``None`` if it makes no more steps, or if none has come and this does not wait (``waits``).

        Raises:
            ProtocolError: it announces a length that no update of this model has.
            PeerLostError: it has left, and this ``waits``.
        """
        if self.has_left and waits:
            raise PeerLostError(
                f"rank {self._rank} has left the training of a ThresholdSGD without finish(): its program has failed or ended there, or "
                "called close(); call finish() on all ranks after the last step",
                [self._rank],
            )
        if self.has_ended or self.has_left or not self._is_here(waits):
            return None
        if self._bytes is None:
            length = int(self._length[0])
            if length == END:
                self.has_ended = True
                return None
            if length == LEFT:
                self.has_left = True
                return self.take(waits)
            if not 0 < length <= self._most:
                what = f"an update of {length} bytes, but the longest of this model has {self._most}"
                raise ProtocolError(f"rank {self._rank} announces {what}: do all peers train the same model?")
            self._bytes = np.empty(length, np.uint8)
            self._receiving = self._messages.receive(self._bytes, self._rank, self._tags[1])
            if not self._is_here(waits):
                return None
        taken = self._bytes.tobytes()
        self._bytes = None
        self._receiving = self._messages.receive(self._length, self._rank, self._tags[0])
        self._steps += 1
        return taken

    def _is_here(self, waits: bool) -> bool:
        """Whether the next message has come. A failure is raised."""
        if waits or self._receiving.done():
            self._receiving.wait()
            return True
        return False


under_way: set[Exchange] = set()
"""Exchanges that their owners leave to this module: each waits for a message from every peer until it has ended."""


def _leave_all(group: Any = None) -> list[Exception]:
    """Leave the exchanges over a group that is about to be closed, or all of them."""
    for exchange in list(under_way):
        if group is None or exchange._messages.group is group:
            exchange.leave()
    return []


before_close.append(_leave_all)
at_exit(_leave_all)
