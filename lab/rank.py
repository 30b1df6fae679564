"""What makes a fork of the server the process that it would be if Python had just started it.

What stays different: its parent is the server, and it has the server's addresses of libraries and its hash seed, unless
PYTHONHASHSEED is set. So ranks of one job agree about the order of a set, which fresh ones do not. The collector of garbage
does not look at the modules of the shelf, and what their libraries do at the end of a process, a third of a second of a core,
is left out. Modules of Python itself that torch imports are there from the start, as are the loggers of what is on the shelf. Below
the program's first frame lie ours, which a warning of a `stacklevel` beyond it names. `/proc` has the server's command line.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import os
import resource
import runpy
import signal
import sys
import threading
import time
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from types import TracebackType
from typing import Any

from .shelf import Shelf

LIMITS = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
FIXED_SEED = 67280421310721
"""What torch's numbers begin with, in versions that do not draw it."""
END_WITH_PARENT = 1
UNBUFFERED = "-u"
NEW_SPACES = {"user": 0x10000000, "net": 0x40000000}


@dataclass(frozen=True)
class Request:
    """A process to be: what a parent gives its child."""

    words: list[str]
    """Behind the interpreter: ``-u`` or not; ``-c`` with a program, ``-m`` with a module, or a script; then its arguments."""
    folder: str
    environment: dict[str, str]
    umask: int
    limits: dict[str, tuple[int, int]]
    host: int | None = None
    """A process whose network it gets."""

    @property
    def program(self) -> list[str]:
        """The words without the option that torchrun gives, which is what PYTHONUNBUFFERED says: output is not buffered."""
        return self.words[1:] if self.words[:1] == [UNBUFFERED] else self.words

    @staticmethod
    def of(words: list[str], environment: dict[str, str], folder: str | None, host: int | None) -> Request:
        """What this process would give a child."""
        umask = os.umask(0)
        os.umask(umask)
        limits = {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS}
        return Request(words, folder or os.getcwd(), environment, umask, limits, host)


def become(request: Request, descriptors: list[int], kept: set[int], shelf: Shelf, server: int) -> None:
    """Be the process of a request to a server, and run its program to its end."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in set(map(int, os.listdir("/proc/self/fd"))) - kept - {0, 1, 2}:
        try:
            os.close(descriptor)
        except OSError:
            pass  # the one that has listed them
    if request.host is not None:
        enter(request.host)
    # It would not outlast a change of the user.
    ctypes.CDLL(None).prctl(END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    os.umask(request.umask)
    for name, limits in request.limits.items():
        resource.setrlimit(getattr(resource, name), limits)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.orig_argv[1:] = request.words
    begin_anew(shelf)
    end_early()
    begin_streams(unbuffered=request.program != request.words or bool(os.environ.get("PYTHONUNBUFFERED")))
    run(request.program)


def enter(host: int) -> None:
    """From here on this process is on the host of that one, which has its user's rights there."""
    for space, kind in NEW_SPACES.items():
        with open(f"/proc/{host}/ns/{space}") as there, open(f"/proc/self/ns/{space}") as here:
            if os.path.sameopenfile(there.fileno(), here.fileno()):
                continue
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(there.fileno(), kind) != 0:
                raise OSError(ctypes.get_errno(), f"the {space} namespace of process {host} cannot be entered")


def begin_anew(shelf: Shelf) -> None:
    """Undo what differs in this process because it is not a new one."""
    clock: Any = logging
    clock._startTime = time.time_ns() if isinstance(clock._startTime, int) else time.time()
    # Python before 3.12 does not see to it where it forks.
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)
    # `random` sees to itself.
    sys.modules["numpy"].random.seed()
    torch = sys.modules.get("torch")
    if torch is not None and torch.initial_seed() != FIXED_SEED:
        torch.default_generator.seed()
    for name in [name for name in sys.modules if name.partition(".")[0] == __package__]:
        del sys.modules[name]
    shelf.open()


def end_early() -> None:
    """Have the end of this process leave out what the C library was asked for up to now: its streams go out, and that is all.

    What is registered last is called first.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)
    all_streams = None
    libc.__cxa_atexit(ctypes.cast(libc.fflush, ctypes.c_void_p), all_streams, None)


def begin_streams(unbuffered: bool) -> None:
    """Open the standard streams as Python does at its begin. They stay the same objects, of which libraries have taken note."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        assert isinstance(stream, io.TextIOWrapper)
        mode, at_once = ("wb", unbuffered) if number else ("rb", False)
        buffer: Any = os.fdopen(number, mode, 0 if at_once else -1, closefd=False)
        raw = buffer if at_once else buffer.raw
        raw.name = stream.name
        in_lines = not unbuffered and (stream is sys.stderr or raw.isatty())
        io.TextIOWrapper.__init__(stream, buffer, stream.encoding, stream.errors, "\n", in_lines, unbuffered)


def run(words: list[str]) -> None:
    """What Python does with its command line, and what it does if the program fails."""
    try:
        if words[0] == "-m":
            renew_main()
            sys.argv, sys.path[0] = ["-m", *words[2:]], os.getcwd()
            runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        elif words[0] == "-c":
            sys.argv, sys.path[0] = ["-c", *words[2:]], ""
            exec(compile(words[1], "<string>", "exec", dont_inherit=True), renew_main())
        else:
            path = os.path.abspath(words[0])
            sys.argv, sys.path[0] = words, os.path.dirname(os.path.realpath(path))
            loader = SourceFileLoader("__main__", path)
            whole = renew_main(__loader__=loader, __file__=path, __cached__=None)
            try:
                exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), whole)
            finally:
                flush()
    except SystemExit:
        raise
    except BaseException as error:
        show_without_us(error, error.__traceback__ and error.__traceback__.tb_next)
        raise


def flush() -> None:
    """As Python does behind a script, and before it shows its error."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(Exception):
            stream.flush()


def renew_main(**more: object) -> dict[str, Any]:
    """The names of the main module, which are now those of a program that is still to begin."""
    names = sys.modules["__main__"].__dict__
    kept = {name: names[name] for name in ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__builtins__")}
    names.clear()
    names.update(kept, __annotations__={}, **more)
    return names


def show_without_us(error: BaseException, trace: TracebackType | None) -> None:
    """Let Python print the error without the frames of this module."""
    hook = sys.excepthook

    def shown(kind: type[BaseException], value: BaseException, _: Any) -> None:
        hook(kind, value.with_traceback(trace) if value is error else value, trace)

    sys.excepthook = shown
