"""What a process has of the machine, and what a job may have left there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

NAME = "herringbone"


@dataclass(frozen=True)
class Taken:
    """What a process has."""

    descriptors: int
    sockets: int
    threads: int
    kib: int
    """Resident memory."""

    @classmethod
    def of(cls, process: int | str = "self") -> Taken:
        """What a process of this machine has now."""
        folder = Path("/proc") / str(process)
        found = []
        for number in os.listdir(folder / "fd"):
            try:
                found.append(os.readlink(folder / "fd" / number))
            except FileNotFoundError:
                # The listing's own descriptor.
                continue
        pages = int((folder / "statm").read_text().split()[1])
        return cls(
            descriptors=len(found),
            sockets=sum(name.startswith("socket:") for name in found),
            threads=len(os.listdir(folder / "task")),
            kib=pages * os.sysconf("SC_PAGE_SIZE") >> 10,
        )

    def more_than(self, before: Taken) -> dict[str, int]:
        """By how much each is more than before."""
        return {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}


def left_on_the_machine() -> list[str]:
    """Shared memory and unix sockets that are named as this program's are."""
    memory = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if NAME in name]
    lines = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()
    sockets = [line[line.index("@") :] for line in lines if f"@{NAME}" in line]
    return sorted(memory + sockets)


def left_since(before: Iterable[str], seconds: float) -> list[str]:
    """What is on the machine, was not before, and stays: what another job has that runs beside this goes when that ends."""
    until = time.monotonic() + seconds
    left = set(left_on_the_machine()) - set(before)
    while left and time.monotonic() < until:
        time.sleep(0.2)
        left &= set(left_on_the_machine())
    return sorted(left)
