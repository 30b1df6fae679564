"""The processes of a job: started here or by ssh, watched, and ended together."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from .hosts import Slot, address_of, discovered, is_here, place_again

__all__ = ["Job"]

LOOK_SECONDS = 0.05
END_SECONDS = 5.0
"""How long the others have to end by themselves once one has failed."""
END_SECONDS_ELSEWHERE = 600.0
"""How long a process on another host has to end, if it was started again, so that it may not take part at all."""
START_AGAIN_SECONDS = 1.0
"""The pause before a process is started again."""
PLACES = re.compile(
    r"(HERRINGBONE_(RANK|WORLD_SIZE|STORE|JOB)|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT))$|TORCHELASTIC_"
)
"""What tells a process of its place in a job; that of the launcher itself is none of its ranks'."""
OF_A_SHELL = ("PWD", "OLDPWD", "SHLVL", "_")
"""What a shell says about itself."""


class Job:
    """All ranks of one start."""

    def __init__(self, slots: Sequence[Slot], options: Namespace, variables: Mapping[str, str]) -> None:
        """Of these places, with these variables beside those of this process."""
        self._slots, self._options = list(slots), options
        self._elastic = options.min_np is not None or options.host_discovery_script is not None
        hosts = [slot.host for slot in slots]
        inherited = {name: value for name, value in os.environ.items() if not PLACES.match(name)}
        self._common = inherited | dict(variables)
        self._common |= {
            "HERRINGBONE_STORE": f"{address_of(hosts[0], hosts)}:{_free_port()}",
            "HERRINGBONE_JOB": secrets.token_hex(8),
            "HERRINGBONE_WORLD_SIZE": str(len(slots)),
            "PYTHONUNBUFFERED": "1",
        }
        if not {"HERRINGBONE_TOKEN", "HERRINGBONE_TOKEN_FILE"} & set(self._common):
            self._common["HERRINGBONE_TOKEN"] = secrets.token_hex(32)
        if self._elastic:
            self._common |= {"HOROVOD_ELASTIC": "1", "HOROVOD_ELASTIC_MIN_NP": str(options.min_np or 1)}
        if len(slots) > 1:
            self._common.setdefault("OMP_NUM_THREADS", "1")
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._readers: list[threading.Thread] = []
        self._restarted: set[int] = set()
        self._restarts = 0
        self._homeless: list[int] = []
        """Ranks that are to be started again and wait for a slot."""
        self._next_look = 0.0
        self._joined = Path(tempfile.mkdtemp(prefix="horovodrun-"))
        """Where processes that are started again leave a file once they take part."""
        self._stopped: int | None = None

    def run(self) -> int:
        """Start all ranks, and return the exit status once all have ended: the first that is not 0."""
        previous = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for slot in self._slots:
                self._start(slot)
            return self._watch()
        finally:
            self._end_all()
            for reader in self._readers:
                reader.join(END_SECONDS)
            shutil.rmtree(self._joined, ignore_errors=True)
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        self._stopped = 128 + number

    def _watch(self) -> int:
        """Until all have ended, or one fails that is not started again."""
        succeeded: float | None = None
        while self._processes and self._stopped is None:
            ended = {rank: process for rank, process in self._processes.items() if process.poll() is not None}
            for rank, process in ended.items():
                del self._processes[rank]
                status = process.returncode
                if status == 0:
                    succeeded = succeeded or time.monotonic()
                elif succeeded and rank in self._restarted:
                    # It came too late to take part.
                    _say(f"rank {rank} ended {_told(status)} after other ranks had finished")
                elif self._may_start_again(succeeded is not None):
                    self._restarts += 1
                    self._restarted.add(rank)
                    _say(f"rank {rank} ended {_told(status)}; it is started again")
                    time.sleep(START_AGAIN_SECONDS)
                    (self._joined / str(rank)).unlink(missing_ok=True)
                    self._homeless.append(rank)
                else:
                    _say(f"rank {rank} failed first, {_told(status)}; its own message is above, if it left one")
                    return status if status > 0 else 128 - status
            if self._homeless and not succeeded and time.monotonic() >= self._next_look:
                self._house()
            if succeeded and all(self._came_too_late(rank, succeeded) for rank in self._processes):
                break
            if not ended:
                time.sleep(LOOK_SECONDS)
        return self._stopped or 0

    def _house(self) -> None:
        """Start processes again for which there is a slot: where the script for hosts says, if there is one."""
        self._next_look = time.monotonic() + START_AGAIN_SECONDS
        hosts = None
        if self._options.host_discovery_script:
            try:
                hosts = discovered(self._options)
            except (ValueError, OSError) as error:
                _say(f"{error}; it is asked again")
                return
        for rank in list(self._homeless):
            others = [self._slots[other] for other in self._processes]
            slot = self._slots[rank] if hosts is None else place_again(self._slots[rank], others, hosts)
            if slot is not None:
                self._homeless.remove(rank)
                self._slots[rank] = slot
                self._start(slot)

    def _came_too_late(self, rank: int, succeeded: float) -> bool:
        """Whether a process that was started again still waits for the others, who have finished."""
        if rank not in self._restarted:
            return False
        if is_here(self._slots[rank].host):
            return not (self._joined / str(rank)).exists()
        return time.monotonic() - succeeded > END_SECONDS_ELSEWHERE

    def _may_start_again(self, succeeded: bool) -> bool:
        """Others have to be there who know the state, and none may have finished."""
        limit = self._options.reset_limit
        return self._elastic and not succeeded and bool(self._processes) and (limit is None or self._restarts < limit)

    def _start(self, slot: Slot) -> None:
        own = slot.variables(len(self._slots)) | {"HERRINGBONE_RANK": str(slot.rank)}
        if self._elastic and is_here(slot.host):
            own["HOROVOD_JOINED_FILE"] = str(self._joined / str(slot.rank))
        environment = self._common | own
        command = list(self._options.command)
        given = b""
        if not is_here(slot.host):
            command, given = self._by_ssh(slot, environment, command)
        if self._options.verbose:
            _say(f"rank {slot.rank} on {slot.host}: {shlex.join(command)}")
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE if given else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        if given:
            assert process.stdin is not None
            process.stdin.write(given)
            process.stdin.flush()
        self._processes[slot.rank] = process
        for pipe, name, terminal in ((process.stdout, "stdout", sys.stdout), (process.stderr, "stderr", sys.stderr)):
            assert pipe is not None
            reader = threading.Thread(target=self._copy, args=(pipe, slot.rank, name, terminal), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _by_ssh(self, slot: Slot, environment: Mapping[str, str], command: Sequence[str]) -> tuple[list[str], bytes]:
        """The command, and what it reads: variables do not stand on a command line, which others can see."""
        port = ["-p", str(self._options.ssh_port)] if self._options.ssh_port else []
        identity = ["-i", self._options.ssh_identity_file] if self._options.ssh_identity_file else []
        names = [name for name in environment if re.fullmatch(r"[A-Za-z_]\w*", name) and name not in OF_A_SHELL]
        lines = [f"export {name}={shlex.quote(environment[name])}" for name in names]
        lines += [f"cd {shlex.quote(os.getcwd())} || exit 1"]
        # The input ends with the connection, and so does the program then.
        program = f"{shlex.join(command)} </dev/null & rank=$!"
        lines += [f"exec 3<&0; {program}; (cat <&3 >/dev/null; kill $rank 2>/dev/null) & wait $rank; exit $?"]
        return ["ssh", "-o", "BatchMode=yes", *port, *identity, slot.host, "sh", "-s"], (
            "\n".join(lines) + "\n"
        ).encode()

    def _copy(self, pipe: IO[bytes], rank: int, name: str, terminal: TextIO) -> None:
        """Copy a rank's output, line by line."""
        file = None
        if self._options.output_filename:
            folder = Path(self._options.output_filename) / f"rank.{rank}"
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / name).open("a")
        for line in pipe:
            text = line.decode(errors="replace")
            text = text if text.endswith("\n") else text + "\n"
            if file is not None:
                file.write(text)
                file.flush()
                continue
            at = time.strftime("%Y-%m-%d %H:%M:%S ") if self._options.prefix_output_with_timestamp else ""
            terminal.write(f"{at}[{rank}]<{name}>:{text}")
            terminal.flush()
        if file is not None:
            file.close()

    def _end_all(self) -> None:
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _told(status: int) -> str:
    return f"with exit status {status}" if status > 0 else f"by signal {-status}"


def _say(text: str) -> None:
    sys.stderr.write(f"herringbone: {text}\n")
    sys.stderr.flush()
