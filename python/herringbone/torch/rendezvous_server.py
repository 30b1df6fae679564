"""The server where the members of a re-formed group meet, in the process of one of them.

torch's own store cannot be used here, for three reasons. Its host might have died. Its clients wait without end for a server
that is stopped, or whose port a forked child has kept. It does not notice the death of a waiting client.
"""

from __future__ import annotations

import hmac
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .frames import Frame, Inbox, pack, shared_with_no_child

__all__ = ["RendezvousServer"]

SEND_SECONDS = 2.0
"""A caller that does not read an answer for this time is dropped."""

LOOK_SECONDS = 0.5
"""How often a caller that watches a round is told the missing members."""

ROUNDS = 16
"""How many rounds are remembered, for late members, and for members that still read values of a round."""


@dataclass(eq=False)
class Caller:
    """A connection to this server."""

    stream: socket.socket
    inbox: Inbox = field(default_factory=Inbox)
    round: Round | None = None
    """The round that it has joined and not left."""
    rank: int = -1


@dataclass(eq=False)
class Round:
    """One attempt to meet."""

    number: str
    size: int
    digests: dict[str, int]
    """The members' digests from the arrived members, and who sent each first."""
    deadline: float
    seconds: float
    came: dict[int, Caller] = field(default_factory=dict)
    watcher: Caller | None = None
    reported_at: float = 0.0
    verdict: Frame | None = None
    """The answer to all, once the round is over."""
    lost: list[int] = field(default_factory=list)
    """The members that left after the rendezvous without reporting that they were done."""

    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.came]


@dataclass(eq=False)
class Waiting:
    """A caller that waits for a value."""

    caller: Caller
    round: str
    name: str
    deadline: float


class RendezvousServer:
    """Listens until it is closed. Callers need its ``secret``."""

    def __init__(self, host: str) -> None:
        self.secret = secrets.token_hex(16)
        self.host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = shared_with_no_child(socket.create_server((host, 0), family=family, backlog=1024))
        self.port: int = self._listener.getsockname()[1]
        self._waker, self._woken = map(shared_with_no_child, socket.socketpair())
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._woken.close)
        self._rounds: dict[str, Round] = {}
        self._values: dict[str, dict[str, bytes]] = {}
        self._waiting: list[Waiting] = []
        self._thread = threading.Thread(target=self._serve, name="herringbone-rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; connected clients see the end."""
        self._waker.close()
        if self._thread is not threading.current_thread():
            self._thread.join(SEND_SECONDS)

    def _serve(self) -> None:
        while self._woken.fileno() >= 0:
            for key, _ in self._selector.select(self._pause()):
                key.data()
            self._look_at_the_clock()
        callers = [key.fileobj for key in self._selector.get_map().values()]
        self._selector.close()
        for stream in callers:
            if isinstance(stream, socket.socket):
                stream.close()

    def _pause(self) -> float | None:
        waits = any(round.verdict is None for round in self._rounds.values()) or self._waiting
        return 0.05 if waits else None

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return
        caller = Caller(shared_with_no_child(stream))
        stream.settimeout(SEND_SECONDS)
        self._selector.register(stream, selectors.EVENT_READ, lambda: self._hear(caller))

    def _hear(self, caller: Caller) -> None:
        if caller.stream.fileno() < 0:
            return  # dropped while this turn's events were gone through
        try:
            received = caller.stream.recv(1 << 16)
            caller.inbox.add(received)
            while (frame := caller.inbox.take()) is not None:
                self._answer(caller, frame)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            received = b""  # broken, or none of ours
        if not received:
            self._drop(caller)

    def _drop(self, caller: Caller) -> None:
        if caller.stream.fileno() < 0:
            return
        self._selector.unregister(caller.stream)
        caller.stream.close()
        self._waiting = [waiting for waiting in self._waiting if waiting.caller is not caller]
        round, caller.round = caller.round, None
        if round is None:
            return
        if round.verdict is None:
            self._end(round, {"failed": "died", "ranks": [caller.rank]})
        else:
            round.lost.append(caller.rank)

    def _tell(self, caller: Caller, frame: Frame) -> None:
        try:
            caller.stream.sendall(pack(frame))
        except OSError:
            self._drop(caller)

    def _answer(self, caller: Caller, frame: Frame) -> None:
        if not hmac.compare_digest(str(frame["secret"]), self.secret):
            raise ValueError("a caller that does not know the secret")
        answers: dict[str, Callable[[Caller, Frame], None]] = {
            "come": self._come,
            "gone": self._gone,
            "done": self._done,
            "lost": self._say_who_is_lost,
            "get": self._get,
        }
        answer = answers.get(frame["do"])
        if answer is not None:
            answer(caller, frame)
        else:
            self._tell(caller, self._change(frame))

    # The rounds.

    def _come(self, caller: Caller, frame: Frame) -> None:
        number, rank, digest = str(frame["round"]), int(frame["rank"]), str(frame["digest"])
        round = self._rounds.get(number)
        if round is None or (round.verdict is not None and digest not in round.digests):
            round = self._begin(number, int(frame["size"]), digest, rank, float(frame["seconds"]))
        if round.verdict is not None:
            self._tell(caller, {"failed": "used", "ranks": []} if "met" in round.verdict else round.verdict)
            return
        if digest not in round.digests:
            round.digests[digest] = rank
            self._end(round, {"failed": "differ", "ranks": list(round.digests.values())})
            self._tell(caller, round.verdict or {})
            return
        if rank in round.came:
            self._tell(caller, {"failed": "used", "ranks": [rank]})
            return
        caller.round, caller.rank = round, rank
        round.came[rank] = caller
        left = float(frame["seconds"])
        if time.monotonic() + left < round.deadline:
            round.deadline, round.seconds = time.monotonic() + left, left
        if frame.get("watches"):
            round.watcher = caller
        if not round.missing():
            self._values[number] = {}
            self._end(round, {"met": True})

    def _begin(self, number: str, size: int, digest: str, rank: int, seconds: float) -> Round:
        self._forget(number)
        while len(self._rounds) >= ROUNDS:
            self._forget(next(iter(self._rounds)))
        round = Round(number, size, {digest: rank}, time.monotonic() + seconds, seconds)
        self._rounds[number] = round
        return round

    def _forget(self, number: str) -> None:
        round = self._rounds.pop(number, None)
        if round is not None:
            self._end(round, {"failed": "used", "ranks": []})
        self._values.pop(number, None)

    def _end(self, round: Round, verdict: Frame) -> None:
        if round.verdict is not None:
            return
        round.verdict = verdict
        for caller in list(round.came.values()):
            if "failed" in verdict:
                caller.round = None
            self._tell(caller, verdict)

    def _gone(self, caller: Caller, frame: Frame) -> None:
        round, ranks = caller.round, [int(rank) for rank in frame["ranks"]]
        if round is not None and round.verdict is None and not set(ranks) & set(round.came):
            self._end(round, {"failed": "died", "ranks": ranks})

    def _done(self, caller: Caller, _: Frame) -> None:
        caller.round = None

    def _say_who_is_lost(self, caller: Caller, frame: Frame) -> None:
        round = self._rounds.get(str(frame["round"]))
        self._tell(caller, {"value": [] if round is None else round.lost})

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for round in [round for round in self._rounds.values() if round.verdict is None]:
            if now >= round.deadline:
                self._end(round, {"failed": "missing", "ranks": round.missing(), "seconds": round.seconds})
            elif round.watcher is not None and now - round.reported_at >= LOOK_SECONDS:
                round.reported_at = now
                self._tell(round.watcher, {"missing": round.missing()})
        for waiting in self._waiting.copy():
            self._look_for(waiting, now)

    # The values.

    def _get(self, caller: Caller, frame: Frame) -> None:
        if frame["round"] not in self._values:
            raise KeyError("a round that is over")
        deadline = time.monotonic() + float(frame["seconds"])
        waiting = Waiting(caller, str(frame["round"]), str(frame["name"]), deadline)
        self._waiting.append(waiting)
        self._look_for(waiting, time.monotonic())

    def _look_for(self, waiting: Waiting, now: float) -> None:
        value = self._values.get(waiting.round, {}).get(waiting.name)
        round = self._rounds.get(waiting.round)
        if value is not None:
            answer: Frame = {"value": value.decode("latin-1")}
        elif round is not None and round.lost and waiting.caller.round is round:
            answer = {"failed": "died", "ranks": round.lost}
        elif now >= waiting.deadline:
            answer = {"value": None}
        else:
            return
        self._waiting.remove(waiting)
        self._tell(waiting.caller, answer)

    def _change(self, frame: Frame) -> Frame:
        """Handle a request that needs no waiting."""
        values = self._values[str(frame["round"])]  # none: of a formation that is over
        names: list[str] = frame["names"]
        name = names[0] if names else ""

        def bytes_of(key: str) -> bytes:
            text: str = frame[key]
            return text.encode("latin-1")

        def put(value: bytes) -> Any:
            values[name] = value
            return value.decode("latin-1")

        match frame["do"]:
            case "set":
                return {"value": put(bytes_of("value"))}
            case "add":
                return {"value": put(str(int(values.get(name, b"0")) + int(frame["amount"])).encode())}
            case "check":
                return {"value": all(name in values for name in names)}
            case "delete":
                return {"value": values.pop(name, None) is not None}
            case "swap":
                old, expected = values.get(name, b""), bytes_of("expected")
                return {"value": put(bytes_of("value")) if old == expected else (old or expected).decode("latin-1")}
            case other:
                raise ValueError(f"{other}: unknown request")
