"""A process's part in a rendezvous of a group's members, and the store that the group has after it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store

from ..errors import HerringboneError, MismatchError, OperationTimeoutError, PeerLostError, RendezvousError
from .frames import Frame, Inbox, pack, shared_with_no_child
from .handles import Handle, digest

__all__ = ["RendezvousStore", "meet"]

GRACE_SECONDS = 3.0
"""How long, after the deadline, a server has to report that the time is over."""

ATTENTIVE_SECONDS = 0.5
"""The most seconds between two checks for signals in a waiting thread."""

PROBE_SECONDS = 0.25
PROBED_AT_ONCE = 4
"""How many missing members are checked before the server's next message is read."""

STORE_SECONDS = 300.0


class Rendezvous:
    """A connection to the server where the members meet."""

    def __init__(self, round: int, handles: list[Handle], rank: int, seconds: float) -> None:
        """Connect to it.

        Raises:
            HerringboneError: the server does not answer, or is gone.
        """
        self.round, self.handles, self.rank, self.seconds = round, handles, rank, seconds
        self.name = f"reconfigure {round}, on rank {rank}"
        # The server does not depend on the order of handles, so that members with different orders meet and get an error.
        self.host = min(range(len(handles)), key=lambda rank: handles[rank].secret)
        self.server = handles[self.host]
        self._inbox = Inbox()
        self._unreachable: set[int] = set()
        try:
            stream = socket.create_connection((self.server.host, self.server.port), timeout=seconds)
        except ConnectionRefusedError:
            raise self._lost([self.host]) from None
        except OSError as error:
            raise self._silent(error) from None
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = shared_with_no_child(stream)

    def come(self) -> None:
        """Return once all members have come.

        Raises:
            PeerLostError: a member has died.
            RendezvousError: members have not come in time, or the server does not answer.
            MismatchError: the members do not agree on the new group's members.
        """
        frame = {"rank": self.rank, "size": len(self.handles), "digest": digest(self.handles)}
        answer = self.ask("come", self.seconds, watches=self.rank == self.host, **frame)
        deadline = time.monotonic() + self.seconds + GRACE_SECONDS
        while "missing" in answer:
            gone = self._gone(answer["missing"])
            if gone:
                self._send("gone", ranks=gone)
            answer = self._receive(deadline - time.monotonic())

    def done(self) -> None:
        self._send("done")

    def lost(self) -> HerringboneError | None:
        """The error of a formation in which members have died, if any have."""
        try:
            ranks = self.ask("lost", 0.0)["value"]
        except HerringboneError as error:
            return error
        return self._lost(sorted(ranks)) if ranks else None

    def ask(self, what: str, seconds: float, **values: Any) -> Frame:
        """Send a request, and return the answer, for which the server has at most ``seconds``."""
        self._send(what, seconds=seconds, **values)
        return self._receive(seconds + GRACE_SECONDS)

    def close(self) -> None:
        # Not only this reference: a thread that waits here has to see the end.
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()

    def _send(self, what: str, **values: Any) -> None:
        frame = pack({"secret": self.server.secret, "do": what, "round": str(self.round), **values})
        try:
            self._stream.sendall(frame)
        except TimeoutError as error:
            raise self._silent(error) from None
        except OSError:
            raise self._lost([self.host]) from None

    def _receive(self, seconds: float) -> Frame:
        deadline = time.monotonic() + seconds
        while (frame := self._inbox.take()) is None:
            left = deadline - time.monotonic()
            self._stream.settimeout(min(max(left, 0.001), ATTENTIVE_SECONDS))
            try:
                received = self._stream.recv(1 << 16)
            except TimeoutError as error:
                if left > ATTENTIVE_SECONDS:
                    continue
                raise self._silent(error) from None
            except OSError:
                received = b""
            if not received:
                raise self._lost([self.host])
            self._inbox.add(received)
        if "failed" in frame:
            raise self._error(frame["failed"], frame["ranks"], frame.get("seconds", self.seconds))
        return frame

    def _gone(self, missing: list[int]) -> list[int]:
        """The missing ranks whose addresses refuse connections, because their processes have ended."""
        gone = []
        for rank in [rank for rank in missing if rank not in self._unreachable][:PROBED_AT_ONCE]:
            try:
                socket.create_connection((self.handles[rank].host, self.handles[rank].port), PROBE_SECONDS).close()
            except ConnectionRefusedError:
                gone.append(rank)
            except OSError:
                self._unreachable.add(rank)
        return gone

    def _silent(self, error: OSError) -> HerringboneError:
        return RendezvousError(
            f"{self.name}: rank {self.host} of the new group does not answer at {self.server.address} ({error}); is its process "
            "stopped, or unreachable? Reconfigure without it, with another uuid",
            [self.host],
        )

    def _lost(self, ranks: list[int]) -> HerringboneError:
        known = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        addresses = ", ".join(self.handles[rank].address for rank in ranks)
        return PeerLostError(
            f"{self.name}: {known} of the new group ({addresses}) died or left; reconfigure without, with another uuid", ranks
        )

    def _error(self, what: str, ranks: list[int], seconds: float) -> HerringboneError:
        ranks = sorted(ranks)
        some = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        match what:
            case "died":
                return self._lost(ranks)
            case "missing":
                return RendezvousError(
                    f"{self.name}: {some} of the {len(self.handles)} of the new group did not come within {seconds:.3g} s; every "
                    "member has to call reconfigure with the same uuid and handles. Reconfigure without, with another uuid",
                    ranks,
                )
            case "differ":
                those = some if len(set(ranks)) > 1 else f"two members for rank {ranks[0]}"
                return MismatchError(
                    f"{self.name}: the ranks disagree: {those} of the new group passed other handles, or in another order; pass "
                    "every member the same list, with handles from the same time"
                )
            case _:
                return RendezvousError(
                    f"{self.name}: the uuid {self.round} has been used with these handles; pass a new one every time"
                )


class RendezvousStore(Store):
    """A store of torch's kind for one formation of a group. It is in the process where the members met, and ends with it."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        super().__init__()
        self.host = rendezvous.server.host
        self._rendezvous = rendezvous
        self._lock = threading.Lock()
        self._limit = timedelta(seconds=STORE_SECONDS)

    def formed(self) -> None:
        """Note that the group is formed: if this process ends later, that does not harm the formation."""
        self._rendezvous.done()

    def failed(self) -> HerringboneError | None:
        """Note that the group could not be formed, although all members have met; returns the error, if members have died
        meanwhile."""
        error = self._rendezvous.lost()
        with contextlib.suppress(HerringboneError):
            self._rendezvous.done()  # this one has not died
        return error

    def close(self) -> None:
        """Close the store."""
        self._rendezvous.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Store ``value`` under ``key``."""
        self._ask("set", names=[key], value=_text(value))

    def get(self, key: str) -> bytes:
        """The value of ``key``, once it is there."""
        return self._find(key, self._limit)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return once all ``keys`` are there."""
        deadline = time.monotonic() + (timeout or self._limit).total_seconds()
        for key in keys:
            self._find(key, timedelta(seconds=max(0.0, deadline - time.monotonic())))

    def _find(self, key: str, limit: timedelta) -> bytes:
        seconds = limit.total_seconds()
        value = self._ask("get", seconds, name=key)["value"]
        if value is None:
            raise OperationTimeoutError(f"the store of the group: timeout: no rank has set {key} within {seconds:g} s")
        return bytes(value, "latin-1")

    def add(self, key: str, amount: int) -> int:
        """Add to the number under ``key``, and return the sum."""
        return int(self._ask("add", names=[key], amount=amount)["value"])

    def check(self, keys: list[str]) -> bool:
        """Whether all ``keys`` are there."""
        return bool(self._ask("check", names=list(keys))["value"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Replace ``expected`` by ``desired``; returns the value after this."""
        answer = self._ask("swap", names=[key], expected=_text(expected), value=_text(desired))
        return bytes(answer["value"], "latin-1")

    def delete_key(self, key: str) -> bool:
        """Delete ``key``; returns whether it existed."""
        return bool(self._ask("delete", names=[key])["value"])

    def set_timeout(self, timeout: timedelta) -> None:
        """How long :meth:`get` and :meth:`wait` wait."""
        self._limit = timeout

    def _ask(self, what: str, seconds: float = 0.0, **values: Any) -> Frame:
        with self._lock:
            return self._rendezvous.ask(what, seconds, **values)


def _text(value: str | bytes) -> str:
    return (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")


def meet(round: int, handles: list[Handle], rank: int, seconds: float) -> RendezvousStore:
    """Wait for all members at the first one's server, and return their common store.

    Raises:
        HerringboneError: they do not come together within ``seconds``; the text names the missing ones.
    """
    deadline = time.monotonic() + seconds
    rendezvous = Rendezvous(round, handles, rank, seconds)
    try:
        rendezvous.seconds = max(0.0, deadline - time.monotonic())
        rendezvous.come()
    except BaseException:
        with contextlib.suppress(OSError):
            rendezvous.close()
        raise
    return RendezvousStore(rendezvous)
