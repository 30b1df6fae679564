"""Finds out which ranks share a host."""

from __future__ import annotations

import hashlib
import pathlib
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator import Communicator

__all__ = ["host_key", "hosts_of"]

BOOT = pathlib.Path("/proc/sys/kernel/random/boot_id")


def host_key(name: str | None = None) -> bytes:
    """What this rank's host is called: 32 bytes, which ranks of other hosts have not.

    Args:
        name: what a launcher calls the host; else it is the machine's own name.
    """
    machine = BOOT.read_text() if BOOT.exists() else ""
    return hashlib.sha256(f"{name or socket.gethostname()} {machine}".encode()).digest()


def hosts_of(communicator: Communicator, name: str | None = None) -> list[bytes]:
    """A name of each rank's host, equal where ranks share it. All ranks call it.

    Args:
        name: the launcher's name for this rank's host; by default the machine's own name.
    """
    import numpy as np

    own = np.frombuffer(host_key(name), np.uint8)
    everybody: Any = communicator.all_gather(own)
    return [part.tobytes() for part in everybody.reshape(communicator.size, own.size)]
