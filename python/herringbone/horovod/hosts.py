"""The hosts of a job: the requested ones, and the place of each rank."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .._herringbone import read_user_text

__all__ = ["Discovery", "Hosts", "Slot", "address_of", "is_here", "place_again", "slots_of", "surplus"]

ASK_SECONDS = 1.0
"""The pause between two runs of the script for hosts."""
SCRIPT_SECONDS = 60.0
"""The timeout of the script: scripts that ask a cluster take seconds."""

Hosts = Sequence[tuple[str, int]]
"""Names, and how many slots each has."""


@dataclass(frozen=True)
class Slot:
    """Where one rank runs."""

    host: str
    rank: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def variables(self, size: int) -> dict[str, str]:
        """The variables with which Horovod's launcher describes a process's place."""
        numbers = {
            "RANK": self.rank,
            "SIZE": size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
        }
        return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()} | {"HOROVOD_HOSTNAME": self.host}


def slots_of(options: argparse.Namespace, say: Callable[[str], None] = lambda text: None) -> list[Slot]:
    """A place for each rank; the first host is filled first. If a script names too few hosts, this waits for more.

    Raises:
        ValueError: the hosts have too few slots, or cannot be read.
        OSError: a file cannot be read, or a script cannot be run.
    """
    hosts, until = _asked(options), time.monotonic() + (options.elastic_timeout or 600.0)
    least = options.min_np or options.num_proc or 1
    while options.host_discovery_script and _count(hosts) < least:
        there = f"the hosts have {_count(hosts)} slots, and the job needs {least} to begin"
        if time.monotonic() > until:
            raise ValueError(f"{there}; no others came in time. Lower --min-np, or raise --elastic-timeout")
        say(f"{there}; asking {options.host_discovery_script} again")
        time.sleep(ASK_SECONDS)
        hosts = _asked(options)
    if not hosts:
        hosts = [("localhost", options.num_proc or options.slots_per_host or os.cpu_count() or 1)]
    wanted = options.num_proc or min(_count(hosts), options.max_np or _count(hosts))
    if options.host_discovery_script and options.min_np:
        wanted = min(wanted, _count(hosts))
    places: list[tuple[str, int, int]] = []
    for host, slots in hosts:
        here = min(slots, wanted - len(places))
        places += [(host, at, here) for at in range(here)]
    if len(places) < wanted:
        raise ValueError(
            f"-np {wanted}: the hosts have {_count(hosts)} slots; give each host's number of slots, such as -H localhost:{wanted}"
        )
    across = {at: [host for host, local, _ in places if local == at] for _, at, _ in places}
    return [Slot(host, rank, at, here, across[at].index(host), len(across[at])) for rank, (host, at, here) in enumerate(places)]


def _count(hosts: Hosts) -> int:
    return sum(slots for _, slots in hosts)


def _asked(options: argparse.Namespace) -> list[tuple[str, int]]:
    default = options.slots_per_host or 1
    if options.hosts is not None:
        return _read(options.hosts.split(","), default, "-H")
    if options.hostfile is not None:
        try:
            text = read_user_text(options.hostfile)
        except ValueError as error:
            raise ValueError(f"-hostfile {error}; write lines such as: host1 slots=2") from None
        return _read(text.splitlines(), default, options.hostfile)
    if options.host_discovery_script:
        return _discovered(options)
    return []


def _discovered(options: argparse.Namespace) -> list[tuple[str, int]]:
    """The hosts that the script prints now; there can be none.

    Raises:
        ValueError: it failed, or its lines are not hosts.
        OSError: it cannot be run.
    """
    return _read(_said_by(options.host_discovery_script).splitlines(), options.slots_per_host or 1)


def _said_by(script: str) -> str:
    """The output of the script for hosts. If it does not end, it is killed, with all processes that it has started.

    Raises:
        ValueError: it cannot be run, fails or does not end.
    """
    try:
        running = subprocess.Popen(
            [script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
        )
    except OSError as error:
        raise ValueError(
            f"--host-discovery-script {script}: {error.strerror}; pass the path of an executable program, with its folder"
        ) from error
    with running:
        try:
            said, errors = running.communicate(timeout=SCRIPT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            raise ValueError(
                f"{script} has not ended within {SCRIPT_SECONDS:g} s: it has to print the present hosts, and end"
            ) from None
    if running.returncode != 0:
        raise ValueError(f"{script} ended with exit status {running.returncode}: {errors.strip()}")
    return said


class Discovery:
    """The script for hosts, run again and again in a thread, because it can be slow."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        """Begin to run the script; each problem is reported once."""
        self._options, self._say = options, say
        self._answer: tuple[float, Hosts] | None = None
        self._ends = threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def answer(self, after: float = 0.0) -> Hosts | None:
        """The script's last answer, if it was asked after this moment."""
        answer = self._answer
        return answer[1] if answer is not None and answer[0] >= after else None

    def end(self) -> None:
        """Stop running the script."""
        self._ends.set()

    def _ask(self) -> None:
        said = ""
        while not self._ends.wait(ASK_SECONDS):
            began = time.monotonic()
            try:
                self._answer, said = (began, _discovered(self._options)), ""
            except ValueError as error:
                if str(error) != said:
                    said = str(error)
                    self._say(f"{said}; asking it again")


def place_again(slot: Slot, others: Sequence[Slot], hosts: Hosts) -> Slot | None:
    """The place for a rank, given the others' places: on its own host if that has room; ``None`` if no slot is free."""
    for host, slots in sorted(hosts, key=lambda each: each[0] != slot.host):
        taken = {other.local_rank for other in others if other.host == host}
        if len(taken) < slots:
            free = next(at for at in range(len(taken) + 1) if at not in taken)
            if host == slot.host and slot.local_rank not in taken:
                return slot
            return replace(slot, host=host, local_rank=free, local_size=len(taken) + 1)
    return None


def surplus(slots: Sequence[Slot], hosts: Hosts, least: int) -> list[int]:
    """The indices of slots for which hosts no longer have room, the last ones first; at least ``least`` slots remain."""
    room, going = dict[str, int](), []
    for host, number in hosts:
        room[host] = room.get(host, 0) + number
    for at, slot in enumerate(slots):
        room[slot.host] = room.get(slot.host, 0) - 1
        if room[slot.host] < 0:
            going.append(at)
    return going[max(0, least - (len(slots) - len(going))) :]


def _read(lines: list[str], default: int, given: str | None = None) -> list[tuple[str, int]]:
    """The hosts that some lines describe.

    Raises:
        ValueError: a line is not a host; or there are no hosts, although the user has ``given`` a source.
    """
    hosts = []
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = re.fullmatch(r"([\w.\-]+)(?:(?::|\s+slots\s*=\s*)(\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a host and its slots, such as host1:2 or host1 slots=2")
        hosts.append((found[1], int(found[2] or default)))
    if given is not None and not _count(hosts):
        raise ValueError(f"{given}: no host has a slot; write for example localhost:2")
    return hosts


def is_here(host: str) -> bool:
    """Whether a name belongs to this machine."""
    return host in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn())


def address_of(host: str, others: list[str]) -> str:
    """The address at which processes on ``others`` reach ``host``.

    Raises:
        ValueError: one of them has no address.
    """
    remote = [other for other in others if not is_here(other)]
    if not remote:
        return "127.0.0.1"
    if not is_here(host):
        return host
    # The address from which this machine would send to another one. No packet is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((remote[0], 9))
        except OSError as error:
            raise ValueError(f"the host {remote[0]!r} is unknown here or unreachable: {error}") from error
        return str(probe.getsockname()[0])
