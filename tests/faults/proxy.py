"""A TCP proxy that harms what it passes on: it flips bits, sends frames twice, late, or those of another job.

It knows as much of the protocol as it needs: where a handshake ends, what a connection is for, and where a frame ends
(`crates/core/src/wire.rs`, `crates/core/src/session/handshake`). Of a program that it does not know it flips bits of
the plain stream.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

MAGIC = b"\xa8HRB"
PREFIX_BYTES = 8
KIND, HELLO = 4, 1
PURPOSE = PREFIX_BYTES + 4
HEADER_BYTES, FINGERPRINT_BYTES = 64, 52
FINGERPRINT_FLAG, DATA_KIND = 2, 1
GREETINGS = 2
"""Messages of a handshake in each direction: Hello and Proof, Challenge and Welcome. A client ends some with a Ready."""
PURPOSES = {1: "join", 2: "control", 3: "data", 4: "segment", 5: "greeting", 6: "enlist", 7: "status"}
STAYING = "data"
"""The purpose of connections whose handshake ends with a Ready."""
READ_BYTES = 1 << 16
SO_ORIGINAL_DST = 80


class Harm:
    """What happens to the bytes of one direction of one connection; without change by itself."""

    done = ""
    """What was done, in words, once it is."""

    def greeting(self, data: bytes) -> bytes:
        """Passes on bytes of the handshake."""
        return data

    def frames(self, data: bytes) -> bytes:
        """Passes on bytes that follow it; what it keeps back it may pass on later."""
        return data


class Flip(Harm):
    """Flips one bit: of byte `at` of the handshake, or of what follows it."""

    def __init__(self, at: int, bit: int, in_greeting: bool = False) -> None:
        self.at, self.bit, self.in_greeting = at, bit, in_greeting
        self.passed = 0

    def greeting(self, data: bytes) -> bytes:
        return self._flipped(data) if self.in_greeting else data

    def frames(self, data: bytes) -> bytes:
        return data if self.in_greeting else self._flipped(data)

    def _flipped(self, data: bytes) -> bytes:
        place, self.passed = self.at - self.passed, self.passed + len(data)
        if not 0 <= place < len(data):
            return data
        self.done = f"bit {self.bit} of byte {self.at}{' of the handshake' if self.in_greeting else ''} flipped"
        return data[:place] + bytes([data[place] ^ 1 << self.bit]) + data[place + 1 :]


class Framed(Harm):
    """Works on whole frames."""

    def __init__(self) -> None:
        self.held = b""

    def frames(self, data: bytes) -> bytes:
        self.held += data
        passed = []
        while (length := length_of(self.held)) is not None and length <= len(self.held):
            frame, self.held = self.held[:length], self.held[length:]
            passed.append(self.frame(frame, frame[4] == DATA_KIND))
        return b"".join(passed)

    def frame(self, frame: bytes, is_data: bool) -> bytes:
        """Passes on a frame."""
        raise NotImplementedError


def length_of(held: bytes) -> int | None:
    """How long the frame is that begins here, if that can be said yet."""
    if len(held) < HEADER_BYTES:
        return None
    fingerprint = FINGERPRINT_BYTES if held[5] & FINGERPRINT_FLAG else 0
    return HEADER_BYTES + fingerprint + int(struct.unpack_from("<I", held, 32)[0])


class Recorded(Framed):
    """Keeps all that passes, for another connection."""

    def __init__(self) -> None:
        super().__init__()
        self.greeted = b""
        self.messages: list[bytes] = []

    def greeting(self, data: bytes) -> bytes:
        self.greeted += data
        return data

    def frame(self, frame: bytes, is_data: bool) -> bytes:
        if is_data:
            self.messages.append(frame)
        return frame


class Doubled(Framed):
    """Sends the data frame number `number` twice, `later` frames later."""

    def __init__(self, number: int, later: int = 0) -> None:
        super().__init__()
        self.number, self.later, self.seen, self.copy = number, later, 0, b""

    def frame(self, frame: bytes, is_data: bool) -> bytes:
        if not is_data:
            return frame
        if self.seen == self.number:
            self.copy = frame
        again = self.seen == self.number + self.later
        self.seen += 1
        if not again:
            return frame
        self.done = f"data frame {self.number} sent again after {self.later} others"
        return frame + self.copy


class Swapped(Framed):
    """Swaps two data frames that come together: the first such pair from number `number` on."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.seen, self.kept = number, 0, b""

    def frames(self, data: bytes) -> bytes:
        passed = super().frames(data)
        # Nobody waits for a frame that nothing follows.
        kept, self.kept = self.kept, b""
        return passed + kept

    def frame(self, frame: bytes, is_data: bool) -> bytes:
        kept, self.kept = self.kept, b""
        if not is_data:
            return kept + frame
        self.seen += 1
        if kept:
            self.done = f"data frames {self.seen - 2} and {self.seen - 1} swapped"
        elif self.seen > self.number and not self.done:
            self.kept = frame
            return b""
        return frame + kept


class Foreign(Framed):
    """Puts frames of another connection in front of the data frame number `number`."""

    def __init__(self, number: int, frames: list[bytes]) -> None:
        super().__init__()
        self.number, self.foreign, self.seen = number, frames, 0

    def frame(self, frame: bytes, is_data: bool) -> bytes:
        if not is_data:
            return frame
        self.seen += 1
        if self.seen - 1 != self.number:
            return frame
        self.done = f"{len(self.foreign)} frames of another job in front of data frame {self.number}"
        return b"".join(self.foreign) + frame


class Way:
    """One direction of a connection: how much of the handshake is to come, and what is to happen to it."""

    def __init__(self, source: socket.socket, target: socket.socket, speaks: bool) -> None:
        self.source, self.target = source, target
        self.greetings, self.held = GREETINGS if speaks else 0, b""
        self.harm = Harm()

    def read(self) -> bytes:
        """The next bytes; none at the end, however it comes."""
        try:
            return self.source.recv(READ_BYTES)
        except OSError:
            return b""

    def messages(self, data: bytes) -> tuple[list[bytes], bytes]:
        """The whole messages of the handshake so far, and what follows the handshake."""
        self.held += data
        messages = []
        while self.greetings and self.held:
            if self.held[: len(MAGIC)] != MAGIC[: len(self.held)]:
                # It is another protocol's, such as that of torch's store.
                self.greetings = 0
                break
            length = PREFIX_BYTES + int.from_bytes(self.held[6:PREFIX_BYTES], "little")
            if len(self.held) < max(length, PREFIX_BYTES):
                break
            message, self.held = self.held[:length], self.held[length:]
            self.greetings -= 1
            if message[KIND] == HELLO and PURPOSES.get(message[PURPOSE]) == STAYING:
                self.greetings += 1
            messages.append(message)
        if self.greetings:
            return messages, b""
        rest, self.held = self.held, b""
        return messages, rest

    def send(self, data: bytes) -> bool:
        """Whether there is still somebody to send to."""
        try:
            self.target.sendall(data)
        except OSError:
            return False
        return True


class Connection:
    """A connection that passes through: what it is for, and both of its directions."""

    def __init__(self, caller: socket.socket, called: socket.socket, speaks: bool) -> None:
        self.purpose = "unknown"
        self.to = called.getpeername()
        self.up, self.down = Way(caller, called, speaks), Way(called, caller, speaks)


class Proxy:
    """Listens at `address` and calls `target`, or where the caller meant to go if the network sends it here.

    `choose` gets each connection as soon as it is known what the connection is for, and may set the harm of its ways. If
    callers do not speak Herringbone (`speaks`), that is at once.
    """

    def __init__(
        self,
        target: tuple[str, int] | None,
        choose: Callable[[Connection], None],
        address: tuple[str, int] = ("127.0.0.1", 0),
        speaks: bool = True,
    ) -> None:
        self.target, self.choose, self.speaks = target, choose, speaks
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(address, backlog=64)
        host, port = self.listener.getsockname()
        self.address = f"{host}:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self.listener, *self.open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        try:
            called = socket.create_connection(self.target or meant_for(caller))
        except OSError:
            caller.close()
            return
        self.open += [caller, called]
        for each in (caller, called):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(caller, called, self.speaks)
        if not self.speaks:
            self.choose(connection)
        down = threading.Thread(target=self._pump, args=(connection, connection.down), daemon=True)
        down.start()
        self._pump(connection, connection.up)

    def _pump(self, connection: Connection, way: Way) -> None:
        """Passes one direction on until it ends; then the other side hears of that."""
        while data := way.read():
            messages, rest = way.messages(data) if way.greetings else ([], data)
            passed = b""
            for message in messages:
                if way is connection.up and connection.purpose == "unknown":
                    connection.purpose = PURPOSES.get(message[PURPOSE], "unknown")
                    self.choose(connection)
                passed += way.harm.greeting(message)
            if rest:
                passed += way.harm.frames(rest)
            if passed and not way.send(passed):
                break
        for each in (way.source, way.target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def meant_for(caller: socket.socket) -> tuple[str, int]:
    """Where a caller wanted to go whom the network has sent here."""
    raw = caller.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port
