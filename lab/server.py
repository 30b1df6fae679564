"""A process without threads that has imported torch, and forks a rank for each request.

It listens at a socket of its owner's and ends with its owner. A request comes on a connection of its own, with the three
descriptors of the process to be. The answer is a line of JSON: the process, or why it has to begin as a fresh one. The next
line, at its end, is its status, as `subprocess` has it. Its number is nobody else's until the connection is closed; if that
happens before its end, the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import re
import selectors
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from . import rank
from .rank import Request
from .shelf import Shelf

OWN = re.compile(
    r"(HERRINGBONE|HOROVOD|DMLC|MASTER|GLOO|DDP|TORCHELASTIC|TORCH_NCCL|TORCH_FR|LOCAL|GROUP|ROLE|BENCH|LAB)_|RANK$|WORLD_SIZE$"
    r"|(PYTHON_EXEC|PYTHONUNBUFFERED|PATH|PWD|OLDPWD|SHLVL|_)$"
    r"|(RESULTS|HOST_ADDRESS|OTHER_LINKS|PATIENCE|SULKS|WAY|JOIN_SECONDS|BACKEND|INIT_METHOD|STORE_FILE)$"
)
"""Variables of Herringbone and of launchers, of shells, and of the programs of our tests.

Any other one may be read while torch is imported, by a C library for one. Those that Python's modules read are known.
"""
OWNER, LENGTH = 0, 4
"""The descriptor that ends with the owner, and the bytes that say how long a request is."""


@dataclass
class Forked:
    """A rank that has not been taken note of to the end."""

    process: int
    connection: socket.socket
    handle: int | None
    """None once it has ended."""


class Server:
    """The ranks, by the descriptors that tell of them."""

    def __init__(self, listener: socket.socket, shelf: Shelf, kept: set[int], environment: dict[str, str]) -> None:
        self.listener, self.shelf, self.kept, self.environment = listener, shelf, kept, environment
        self.selector = selectors.DefaultSelector()
        self.ranks: list[Forked] = []

    def serve(self) -> None:
        """Until the owner ends. It returns in each rank, too, at the end of the program."""
        self.selector.register(OWNER, selectors.EVENT_READ)
        self.selector.register(self.listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fd == OWNER:
                    return
                if key.fd == self.listener.fileno():
                    if self.accept():
                        return
                elif key.data.handle == key.fd:
                    self.ended(key.data)
                elif key.data in self.ranks:
                    self.closed(key.data)

    def accept(self) -> bool:
        """Whether this process is now a rank, whose program has ended."""
        connection, _ = self.listener.accept()
        descriptors: list[int] = []
        try:
            data, descriptors, *_rest = socket.recv_fds(connection, LENGTH, 3)
            request = Request(**json.loads(received(connection, int.from_bytes(data, "big"))))
            refusal = self.refusal(request)
            server, process = os.getpid(), os.fork() if refusal is None else None
        except (OSError, EOFError, ValueError, TypeError) as error:
            refusal, process = str(error), None
        if process == 0:
            self.forget(connection)
            rank.become(request, descriptors, self.kept, self.shelf, server)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        if process is None:
            say(connection, refused=refusal)
            connection.close()
            return False
        handle = os.pidfd_open(process)
        forked = Forked(process, connection, handle)
        with contextlib.suppress(OSError):  # who has asked is gone, which `closed` sees to
            socket.send_fds(connection, [json.dumps({"process": process}).encode() + b"\n"], [handle])
        self.ranks.append(forked)
        self.selector.register(handle, selectors.EVENT_READ, forked)
        self.selector.register(connection, selectors.EVENT_READ, forked)
        return False

    def forget(self, connection: socket.socket) -> None:
        """In a rank: what is the server's."""
        self.selector.close()
        self.listener.close()
        connection.close()
        for forked in self.ranks:
            forked.connection.close()

    def ended(self, forked: Forked) -> None:
        """A rank has; its number stays taken."""
        assert forked.handle is not None
        found = os.waitid(os.P_PIDFD, forked.handle, os.WEXITED | os.WNOWAIT)
        self.let_go(forked)
        assert found is not None
        say(forked.connection, status=found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)

    def closed(self, forked: Forked) -> None:
        """Nobody asks for the rank any more."""
        if forked.handle is not None:
            with contextlib.suppress(ProcessLookupError):  # it is no leader yet
                os.killpg(forked.process, signal.SIGKILL)
            os.kill(forked.process, signal.SIGKILL)
            self.let_go(forked)
        os.waitpid(forked.process, 0)
        self.ranks.remove(forked)
        self.selector.unregister(forked.connection)
        forked.connection.close()

    def let_go(self, forked: Forked) -> None:
        """Its end has been seen."""
        assert forked.handle is not None
        self.selector.unregister(forked.handle)
        os.close(forked.handle)
        forked.handle = None

    def refusal(self, request: Request) -> str | None:
        """Why a process has to begin as a fresh one, or None."""
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            return f"the server has {threads} threads, whose locks a fork would keep for ever"
        return other_environment(request, self.environment, self.shelf.asked) or other_script(request)


def other_environment(request: Request, own: dict[str, str], asked: set[str]) -> str | None:
    """The variables that differ and may have been read by an import, as a refusal."""
    differ = {name for name in {*own, *request.environment} if own.get(name) != request.environment.get(name)}
    read = sorted(name for name in differ if name in asked or not OWN.match(name))
    return f"an import may have read {', '.join(read)}" if read else None


def other_script(request: Request) -> str | None:
    """What is with the script or what lies beside it, as a refusal: a module that the server has from elsewhere, for one."""
    folder, first = Path(request.folder), (request.program or ["-"])[0]
    if first not in ("-c", "-m"):
        script = folder / first
        if not script.is_file() or not os.access(script, os.R_OK):
            return f"{first} is no script that can be read"
        folder = script.parent
    modules = [path for path in folder.iterdir() if path.suffix in (".py", ".so") or (path / "__init__.py").exists()]
    beside = {path.name.partition(".")[0] for path in modules} & sys.modules.keys() - {__package__}
    return f"{folder} has its own {', '.join(sorted(beside))}" if beside else None


def received(connection: socket.socket, length: int) -> bytes:
    """So many bytes.

    Raises:
        EOFError: there are fewer, because the one who asks has ended.
    """
    data = bytearray()
    while more := connection.recv(length - len(data)):
        data += more
    if not data or len(data) < length:
        raise EOFError("the request is not complete")
    return bytes(data)


def say(connection: socket.socket, **what: object) -> None:
    """Tell the one who asked, unless it has gone."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def open_descriptors() -> set[int]:
    """Of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            found.add(int(name))
    return found


def main() -> None:
    """Serve at the socket whose descriptor is the argument."""
    before, environment = open_descriptors(), dict(os.environ)
    shelf = Shelf()
    # What is registered first is called last.
    atexit.register(shelf.leave)
    shelf.fill()
    kept = open_descriptors() - before
    gc.collect()
    gc.freeze()
    Server(socket.socket(fileno=int(sys.argv[1])), shelf, kept, environment).serve()
