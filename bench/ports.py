"""Ports for jobs of one host, which may run beside each other: no two get the same one."""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

LOWEST = 10_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""What the system picks a port from if a program names none."""


def own_ports() -> list[int]:
    """Ports that the system gives nobody who names none, in an order that begins somewhere else in each process."""
    highest = int(RANGE.read_text().split()[0]) if RANGE.exists() else LOWEST
    ports = list(range(LOWEST, highest))
    first = random.SystemRandom().randrange(len(ports)) if ports else 0
    return ports[first:] + ports[:first]


PORTS = itertools.cycle(own_ports() or [0])


def free_port() -> int:
    """A port of the loopback interface that nobody listens on, and that nobody gets who names no port.

    It is for a process that is still to start. Until that listens, others come and go, and each may ask for any port.
    """
    while True:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", next(PORTS)))
            except OSError:
                continue
            return int(listener.getsockname()[1])
