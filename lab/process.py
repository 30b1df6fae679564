"""A process of a job, forked or fresh: they are used alike."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from .rank import Request
from .server import LENGTH

PATIENCE_SECONDS = 240
"""Nothing that a test waits for takes longer. A start is 8 to 15 s on two busy cores."""


MOST_BYTES = 1 << 28
"""Of a process's output: nobody reads more, and this process has to hold it."""
READS, READ_BYTES = 16, 1 << 16
"""At once, of a process's output; a pipe holds less, so this is all that an ended one has left."""


class Output:
    """What a process prints, line by line."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.held = bytearray()
        self.taken, self.ended = 0, False
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        """Readable if there is more."""
        return self.descriptor

    def readline(self, seconds: float = PATIENCE_SECONDS) -> str:
        """The next line with its end; what there is of it at the end of the output.

        Raises:
            TimeoutError: there is none in time.
        """
        deadline = time.monotonic() + seconds
        while b"\n" not in self.held and not self.ended:
            if not select.select([self], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"no line within {seconds:.0f} s, after {bytes(self.held)!r}")
            self.take()
        return self._cut(self.held.find(b"\n") + 1 or len(self.held))

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    def take(self) -> None:
        """Take what there is, without waiting; of one who never stops printing, a part."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS):
                more = os.read(self.descriptor, READ_BYTES)
                self.held += more
                self.taken += len(more)
                self.ended = not more
        if self.taken > MOST_BYTES:
            raise OverflowError(f"a process has printed more than {MOST_BYTES} bytes, and goes on")

    def rest(self) -> str:
        """All that has been taken and not been read."""
        return self._cut(len(self.held))

    def _cut(self, length: int) -> str:
        """The beginning of what is held, which is held no longer."""
        text = self.held[:length].decode(errors="replace")
        del self.held[:length]
        return text

    def close(self) -> None:
        """Hear no more of it."""
        self.ended = True
        os.close(self.descriptor)


class Process:
    """One process, in a session of its own; its number is nobody else's until `close`."""

    def __init__(self, request: Request, output: Output) -> None:
        self.args, self.stdout = [sys.executable, *request.words], output
        self.returncode: int | None = None

    pid: int
    handle: int
    """Readable once the process has ended."""
    why: str | None = None
    """Why the server has not forked it, if it was asked to."""

    def poll(self) -> int | None:
        """Its exit status, or None while it runs."""
        if self.returncode is None and select.select([self.handle], [], [], 0)[0]:
            self.returncode = self._status()
        return self.returncode

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Its exit status.

        Raises:
            subprocess.TimeoutExpired: it has not ended.
        """
        if self.returncode is None and not select.select([self.handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        status = self.poll()
        assert status is not None
        return status

    def is_over(self, seconds: float = 0) -> bool:
        """Whether it has ended within a while; how, is not asked."""
        return self.handle < 0 or bool(select.select([self.handle], [], [], seconds)[0])

    def send_signal(self, what: int) -> None:
        """To the process, unless it has ended."""
        if not self.is_over():
            os.kill(self.pid, what)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def end_session(self) -> None:
        """End all that is in its session: itself and whatever it has left behind."""
        # One that has just begun may have no session yet.
        for process in {self.pid, *session(self.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """End what is left of it, and hear no more of it."""
        if self.handle >= 0:
            self.end_session()
            with contextlib.suppress(ServerEnded):
                self.wait()
            self._reap()
            os.close(self.handle)
            self.handle = -1
            self.stdout.close()

    def _status(self) -> int:
        raise NotImplementedError

    def _reap(self) -> None:
        raise NotImplementedError


class Fresh(Process):
    """A process that begins as a user's does."""

    def __init__(self, request: Request, output: Output, descriptors: list[int], why: str | None) -> None:
        super().__init__(request, output)
        self.why = why
        self._popen = subprocess.Popen(
            self.args if request.host is None else [*_entered(request.host), *self.args],
            cwd=request.folder,
            env=request.environment,
            stdin=descriptors[0],
            stdout=descriptors[1],
            stderr=descriptors[2],
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.handle = os.pidfd_open(self.pid)

    def _status(self) -> int:
        found = os.waitid(os.P_PIDFD, self.handle, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _reap(self) -> None:
        self._popen.wait()


class Refused(Exception):
    """The server cannot make this process; the text says why."""


class ServerEnded(Exception):
    """The server has ended, which no test asks for."""


class Asked:
    """A process that a server has forked for this one, with these descriptors."""

    def __init__(self, request: Request, descriptors: list[int], place: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(PATIENCE_SECONDS)
        text = json.dumps(asdict(request)).encode()
        try:
            self._connection.connect(place)
            socket.send_fds(self._connection, [len(text).to_bytes(LENGTH, "big")], descriptors)
            self._connection.sendall(text)
            data, handles, *_ = socket.recv_fds(self._connection, 1 << 16, 1)
        except OSError as error:
            data, why = b"", f"{place}: {error}"
        else:
            why = "its error is above"
        if not data:
            self._connection.close()
            raise ServerEnded(f"no rank can begin: the server of the lab has ended, or is stopped ({why})")
        answer = json.loads(data)
        if "refused" in answer:
            self._connection.close()
            raise Refused(answer["refused"])
        self.pid = int(answer["process"])
        [self.handle] = handles

    def status(self) -> int:
        """Once its handle is readable.

        Raises:
            ServerEnded: the server has, and has taken its ranks along.
        """
        if not (line := self._connection.makefile().readline()):
            raise ServerEnded(f"the server of the lab has ended, and process {self.pid} with it")
        return int(json.loads(line)["status"])

    def reap(self) -> None:
        """Let somebody else have its number."""
        with self._connection, contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.recv(1)


class Forked(Process):
    """A process that a server has forked."""

    def __init__(self, request: Request, output: Output, descriptors: list[int], place: str) -> None:
        super().__init__(request, output)
        self._asked = Asked(request, descriptors, place)
        self.pid, self.handle = self._asked.pid, self._asked.handle

    def _status(self) -> int:
        try:
            return self._asked.status()
        except ServerEnded:
            self.returncode = -signal.SIGKILL
            raise

    def _reap(self) -> None:
        self._asked.reap()


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name in brackets: state, parent, process group, session.
            if int(path.read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(path.parent.name))
    return found


def _entered(host: int) -> list[str]:
    """What enters a host. Only who needs it imports the package: a Python that stands in for another one begins without its folders."""
    from .hosts import entered

    return list(entered(host))
