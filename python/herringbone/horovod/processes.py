"""A rank's process, started here or by ssh: its output is copied, and it ends together with all processes that it has
started."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from .common.launched import PLAN
from .hosts import Slot, is_here

__all__ = ["END_SECONDS", "Ends", "Process", "StartError", "end", "say"]

END_SECONDS = 5.0
"""How long processes have to end by themselves after they are told to."""
READS_SECONDS = 3.0
"""How long after its start the shell on another host is assumed to have read its program; later input is for the process."""
OF_A_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")
"""Variables in which a shell describes itself."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit statuses of shells."""


class StartError(Exception):
    """A program cannot be started; ``status`` is a shell's exit status for this."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class Process:
    """A program that runs as one rank."""

    def __init__(
        self, slot: Slot, command: Sequence[str], environment: Mapping[str, str], options: Namespace, plan: str | None
    ) -> None:
        """Start it.

        Args:
            plan: the first line of the process's file ``plan``, if it gets a folder on another host.

        Raises:
            StartError: the program does not exist, or is not executable.
        """
        self.slot, self._options = slot, options
        self._is_here = is_here(slot.host)
        self._began = time.monotonic()
        self._unsent: str | None = None
        given = b""
        words = list(command)
        if not self._is_here:
            words, given = _by_ssh(slot.host, words, environment, options, plan)
        if options.verbose:
            say(f"rank {slot.rank} on {slot.host}: {shlex.join(words)}")
        try:
            self._popen = subprocess.Popen(
                words,
                env=environment,
                stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _refused(words[0], slot, error) from error
        self._write(given)
        self._readers: list[threading.Thread] = []
        streams = ((self._popen.stdout, "stdout", sys.stdout), (self._popen.stderr, "stderr", sys.stderr))
        for pipe, name, terminal in streams:
            assert pipe is not None
            reader = threading.Thread(target=self._copy, args=(pipe, name, terminal), daemon=True)
            reader.start()
            self._readers.append(reader)

    @property
    def pid(self) -> int:
        """Its process number, which is also its process group's."""
        return self._popen.pid

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def ended(self) -> int | None:
        """The exit status, or minus the signal; ``None`` while it runs."""
        return self._popen.poll()

    def status(self) -> int:
        """The exit status, or minus the signal, of an ended process."""
        return self._popen.wait()

    def look(self) -> None:
        """Write the line that its shell has not received yet, once the shell reads it."""
        if self._unsent is not None and self.age > READS_SECONDS:
            self._write(self._unsent.encode() + b"\n")
            self._unsent = None

    def tell(self, line: str) -> None:
        """Let the shell on another host replace the file ``plan`` in the process's folder there."""
        if not self._is_here:
            self._unsent = line

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to all processes that it has started."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, number)

    def wait(self, seconds: float) -> bool:
        """Whether it ends in time."""
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self) -> None:
        """Wait a short time until its output is copied; processes that it has started can hold the output open."""
        if self._popen.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.close()
        for reader in self._readers:
            reader.join(END_SECONDS)

    def _write(self, data: bytes) -> None:
        if data:
            assert self._popen.stdin is not None
            # If it has ended, its status tells why.
            with contextlib.suppress(BrokenPipeError):
                self._popen.stdin.write(data)
                self._popen.stdin.flush()

    def _copy(self, pipe: IO[bytes], name: str, terminal: TextIO) -> None:
        """Copy its output, line by line. If the output cannot be written any more, it is read and dropped, so that the process
        can end."""
        try:
            self._copy_lines(pipe, name, terminal)
        except (OSError, ValueError) as error:
            if isinstance(error, BrokenPipeError):
                drop_output(terminal)
            else:
                say(f"the {name} of rank {self.slot.rank} cannot be written: {error}")
        for _ in pipe:
            pass

    def _copy_lines(self, pipe: IO[bytes], name: str, terminal: TextIO) -> None:
        folder = self._options.output_filename
        if folder:
            rank = Path(folder) / f"rank.{self.slot.rank}"
            rank.mkdir(parents=True, exist_ok=True)
            with (rank / name).open("ab") as file:
                for line in pipe:
                    file.write(line)
                    file.flush()
            return
        for line in pipe:
            at = time.strftime("%Y-%m-%d %H:%M:%S ") if self._options.prefix_output_with_timestamp else ""
            text = line.decode(errors="replace").removesuffix("\n")
            terminal.write(f"{at}[{self.slot.rank}]<{name}>:{text}\n")
            terminal.flush()


class Ends:
    """The order in which processes end: the kernel queues the watched ones, so this process learns the order even later."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._numbers: dict[int, int] = {}
        self._unwatched: dict[int, Process] = {}
        self._ended: list[list[int]] = []

    def watch(self, number: int, process: Process) -> None:
        """Report this process by this number. If it has ended already, its place in the order is not known."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            # The kernel is too old, or its container forbids the call.
            self._unwatched[number] = process
            return
        self._numbers[descriptor] = number
        self._epoll.register(descriptor, select.EPOLLIN)
        ended = self._look(0)
        self._ended += [ended] if number in ended else [[other] for other in ended]

    def next(self, seconds: float) -> list[list[int]]:
        """Wait for processes to end, for at most this long.

        Returns:
            Lists of their numbers, the first one first; the order within a list is not known.
        """
        ended = self._ended + [[number] for number in self._look(0 if self._ended else seconds)]
        self._ended = []
        together = [number for number, process in self._unwatched.items() if process.ended() is not None]
        for number in together:
            del self._unwatched[number]
        return ended + ([together] if together else [])

    def _look(self, seconds: float) -> list[int]:
        ended = []
        for descriptor, _ in self._epoll.poll(seconds):
            ended.append(self._numbers.pop(descriptor))
            # Closing it is not enough: a process that is being started holds a copy until it runs its program.
            self._epoll.unregister(descriptor)
            os.close(descriptor)
        return ended

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._numbers:
            os.close(descriptor)
        self._numbers.clear()
        self._epoll.close()


def end(processes: Sequence[Process]) -> None:
    """End the running processes, first with SIGTERM."""
    for process in processes:
        process.signal(signal.SIGTERM)
    until = time.monotonic() + END_SECONDS
    for process in processes:
        if not process.wait(max(0.0, until - time.monotonic())):
            process.signal(signal.SIGKILL)
            process.wait(END_SECONDS)


def drop_output(terminal: TextIO) -> None:
    """Drop the pending output of a stream, which would be an error at the end and give the launcher the exit status 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, terminal.fileno())
    os.close(nowhere)


def say(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"herringbone: {text}\n")
    sys.stderr.flush()


def _by_ssh(
    host: str, command: Sequence[str], environment: Mapping[str, str], options: Namespace, plan: str | None
) -> tuple[list[str], bytes]:
    """The command, and its input: variables are not passed on the command line, because others can see that."""
    port = ["-p", str(options.ssh_port)] if options.ssh_port else []
    identity = ["-i", options.ssh_identity_file] if options.ssh_identity_file else []
    names = [name for name in environment if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in OF_A_SHELL]
    lines = [f"export {name}={shlex.quote(environment[name])}" for name in names]
    lines += [f"cd {shlex.quote(os.getcwd())} || exit 1"]
    program, rest = shlex.join(command), "cat <&3"
    after = "exit $?"
    if plan is not None:
        lines += ["HOROVOD_FOLDER=$(mktemp -d) || exit 1", "export HOROVOD_FOLDER"]
        lines += [f"printf '%s\\n' {shlex.quote(plan)} >$HOROVOD_FOLDER/{PLAN}"]
        put = f'printf "%s\\n" "$line" >$HOROVOD_FOLDER/new && mv $HOROVOD_FOLDER/new $HOROVOD_FOLDER/{PLAN}'
        rest = f"while IFS= read -r line <&3; do {put}; done"
        after = "status=$?; rm -rf $HOROVOD_FOLDER; exit $status"
    # The input ends with the connection, and so does the program then. The waiting loop holds no output open.
    lines += [f"exec 3<&0; {program} </dev/null & rank=$!; ({rest}; kill $rank) >/dev/null 2>&1 & wait $rank; {after}"]
    return ["ssh", "-o", "BatchMode=yes", *port, *identity, host, "sh", "-s"], ("\n".join(lines) + "\n").encode()


def _refused(program: str, slot: Slot, error: OSError | ValueError) -> StartError:
    """An error with advice for a program that does not start."""
    if not is_here(slot.host):
        return StartError(f"{slot.host} is another host, and `{program}` cannot be started here: {error}", NOT_FOUND)
    is_script = Path(program).suffix == ".py" and Path(program).is_file()
    as_script = f"; to run a Python file, write: python {program}" if is_script else ""
    if isinstance(error, FileNotFoundError):
        there = shutil.which(program)
        if there is not None:
            text = f"the first line of {there} names an interpreter that does not exist"
        elif "/" in program:
            text = "the file does not exist"
        else:
            text = f"no folder of PATH has it{as_script or '; to run a file of this folder, write ./ before its name'}"
        return StartError(f"cannot start {program!r}: {text}", NOT_FOUND)
    if isinstance(error, PermissionError):
        text = "it is a folder" if Path(program).is_dir() else f"it is not executable{as_script or '; check its permissions'}"
        return StartError(f"cannot start {program!r}: {text}", NOT_EXECUTABLE)
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        text = f"it is not a program; a script's first line has to begin with #!{as_script}"
        return StartError(f"cannot start {program!r}: {text}", NOT_EXECUTABLE)
    return StartError(f"cannot start {program!r}: {error}", NOT_EXECUTABLE)
