"""The hosts of a job: what is asked for, and where each rank goes."""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Slot", "address_of", "discovered", "is_here", "place_again", "slots_of"]


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
        """What Horovod's launcher tells a process about its place."""
        numbers = {
            "RANK": self.rank,
            "SIZE": size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
        }
        return {f"HOROVOD_{name}": str(number) for name, number in numbers.items()} | {"HOROVOD_HOSTNAME": self.host}


def slots_of(options: argparse.Namespace) -> list[Slot]:
    """A place for each rank: the first host is filled first.

    Raises:
        ValueError: the hosts do not have so many slots, or cannot be read.
    """
    hosts = _asked(options)
    wanted = options.num_proc
    if not hosts:
        hosts = [("localhost", wanted or options.slots_per_host or os.cpu_count() or 1)]
    wanted = wanted or sum(slots for _, slots in hosts)
    places: list[tuple[str, int, int]] = []
    for host, slots in hosts:
        here = min(slots, wanted - len(places))
        places += [(host, at, here) for at in range(here)]
    if len(places) < wanted:
        there = sum(slots for _, slots in hosts)
        raise ValueError(
            f"-np {wanted}: the hosts have {there} slots; say how many each has, as in -H localhost:{wanted}"
        )
    across = {at: [host for host, local, _ in places if local == at] for _, at, _ in places}
    return [
        Slot(host, rank, at, here, across[at].index(host), len(across[at]))
        for rank, (host, at, here) in enumerate(places)
    ]


def _asked(options: argparse.Namespace) -> list[tuple[str, int]]:
    default = options.slots_per_host or 1
    if options.hosts:
        return _read(options.hosts.split(","), default)
    if options.hostfile:
        return _read(Path(options.hostfile).read_text().splitlines(), default)
    if options.host_discovery_script:
        return discovered(options)
    return []


def discovered(options: argparse.Namespace) -> list[tuple[str, int]]:
    """What the script for hosts says now.

    Raises:
        ValueError: it failed, or its lines are no hosts.
        OSError: it cannot be run.
    """
    script = options.host_discovery_script
    found = subprocess.run([script], capture_output=True, text=True)
    if found.returncode != 0:
        raise ValueError(f"{script} ended with exit status {found.returncode}: {found.stderr.strip()}")
    return _read(found.stdout.splitlines(), options.slots_per_host or 1)


def place_again(slot: Slot, others: Sequence[Slot], hosts: Sequence[tuple[str, int]]) -> Slot | None:
    """Where a rank goes that has ended, beside the others: its own host if that is still there; ``None`` if no slot is free."""
    for host, slots in sorted(hosts, key=lambda each: each[0] != slot.host):
        taken = {other.local_rank for other in others if other.host == host}
        if len(taken) < slots:
            free = next(at for at in range(len(taken) + 1) if at not in taken)
            return slot if host == slot.host else replace(slot, host=host, local_rank=free, local_size=len(taken) + 1)
    return None


def _read(lines: list[str], default: int) -> list[tuple[str, int]]:
    hosts = []
    for line in lines:
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = re.fullmatch(r"([\w.\-]+)(?:(?::|\s+slots\s*=\s*)(\d+))?", text)
        if found is None:
            raise ValueError(f"{text!r} is not a host and its slots, as in host1:2 or host1 slots=2")
        hosts.append((found[1], int(found[2] or default)))
    return hosts


def is_here(host: str) -> bool:
    """Whether a name is this machine's."""
    return host in ("localhost", "127.0.0.1", socket.gethostname(), socket.getfqdn())


def address_of(host: str, others: list[str]) -> str:
    """Where processes on ``others`` reach ``host``."""
    remote = [other for other in others if not is_here(other)]
    if not remote:
        return "127.0.0.1"
    if not is_here(host):
        return host
    # The address from which this machine would speak to another one. No packet is sent.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((remote[0], 9))
        return str(probe.getsockname()[0])
