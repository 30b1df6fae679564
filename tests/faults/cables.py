"""Hosts whose links come to harm: network namespaces with a router between them, in which cables can be pulled."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))

from lab.hosts import Namespaces, NoNamespaces, entered

__all__ = ["PROXY_PORT", "Hosts", "NoNamespaces"]

PROXY_PORT = 1500
"""Where the router's proxy listens, if there is one."""


class Hosts(Namespaces):
    """Hosts without limits of rate, and what can happen to their links. `ip` is needed, and `nft` for the proxy."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)

    def _connect(self, host: int) -> None:
        super()._connect(host)
        # Away from these hosts there is nothing: a name is asked for in vain at once, and not after seconds.
        own, router = self.hosts[host], f"10.78.{host}.1"
        self._run(own, *f"ip route add 10.78.0.0/16 via {router}".split())
        self._run(own, "ip", "route", "del", "default")

    def network(self, host: int | None) -> int:
        """A process in the network of a host, or of the router (`None`)."""
        return self.router if host is None else self.hosts[host]

    def pull(self, host: int) -> None:
        """Pulls the cable of a host: nothing gets there or comes from there, and nobody is told."""
        self._ip(f"link set link{host} down")

    def plug(self, host: int) -> None:
        """Plugs it in again."""
        self._ip(f"link set link{host} up")

    def silence(self, host: int) -> None:
        """Loses in the network what a host sends; what is sent to it still arrives."""
        self._ip(f"rule add from {self.address(host)} blackhole")

    def unsilence(self, host: int) -> None:
        """Loses it no longer."""
        self._ip(f"rule del from {self.address(host)} blackhole")

    def deafen(self, host: int) -> None:
        """Loses in the network what is sent to a host; what it sends still arrives."""
        self._ip(f"rule add to {self.address(host)} blackhole")

    def undeafen(self, host: int) -> None:
        """Loses it no longer."""
        self._ip(f"rule del to {self.address(host)} blackhole")

    def part(self, one: int, other: int) -> None:
        """Loses in the network what two hosts send each other; all else arrives."""
        for start, end in ((one, other), (other, one)):
            self._ip(f"rule add from {self.address(start)} to {self.address(end)} blackhole")

    def unpart(self, one: int, other: int) -> None:
        """Loses it no longer."""
        for start, end in ((one, other), (other, one)):
            self._ip(f"rule del from {self.address(start)} to {self.address(end)} blackhole")

    def redirect(self) -> None:
        """From now on connections between hosts go to the router's proxy; it finds out where they were meant to go."""
        rules = f"""
            table ip proxied {{
                chain sent {{
                    type nat hook prerouting priority dstnat
                    ip daddr 10.78.0.0/16 tcp dport != {PROXY_PORT} redirect to :{PROXY_PORT}
                }}
            }}
        """
        done = self._nft(rules)
        if done.returncode != 0:
            raise NoNamespaces(f"nft cannot send connections to a proxy here ({' '.join(done.stderr.split())})")

    def direct(self) -> None:
        """Connections go to each other again."""
        self._nft("delete table ip proxied")

    def _ip(self, words: str) -> None:
        self._run(self.router, "ip", *words.split())

    def _nft(self, rules: str) -> Any:
        command = ["env", f"PATH={self.path}", "nft", "-f", "-"]
        return subprocess.run([*entered(self.router), *command], input=rules, capture_output=True, text=True)
