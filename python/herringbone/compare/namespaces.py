"""Hosts on this machine: network namespaces with a router between them, and links of limited rate where wanted.

Hosts can be in sites: each site has its own router, and all hosts of a site share that router's uplink to the central router.

It works as root and, if the system lets users make namespaces, without root. The namespaces have no names: each lives as long
as a process in it, and its first process ends with this one, even if this one is killed. Nothing else in the system changes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

PACKAGES = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "tc": "iproute2"}
ADMINISTRATION = ":/usr/sbin:/sbin"
"""Folders in which these programs can be; a user's PATH might not contain them."""
LARGEST_FRAME = 9000
LARGEST_PACKET = 1 << 14
"""The most bytes that the kernel passes to a link at once. A bucket has to hold them; a small bucket makes a steady link."""
BURST = LARGEST_PACKET + 2 * LARGEST_FRAME
QUEUES = {"host": 8_000_000, "router": 1_000_000}
"""The queue of a link in bytes, on the host and in the router, which has the queue of a switch's port."""


KINDS = {"user": 0x1000_0000, "net": 0x4000_0000}
"""Namespaces of a host in the order in which they are entered, with their flags from <linux/sched.h>."""

PARENT_DIES = 1
"""PR_SET_PDEATHSIG from <linux/prctl.h>."""


class NoNamespaces(Exception):
    """This machine does not allow such hosts; the text gives the reason."""


def entered(process: int) -> list[str]:
    """The prefix of a command that runs it on the host of a process."""
    with open(f"/proc/{process}/ns/user") as there, open("/proc/self/ns/user") as here:
        as_user = [] if os.path.sameopenfile(there.fileno(), here.fileno()) else ["--user", "--preserve-credentials"]
    return ["nsenter", "--target", str(process), *as_user, "--net"]


def end_with_parent() -> None:
    """Let the system end this process when its parent ends, even if that is killed.

    If the parent has ended already, nothing happens: check for that afterwards.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


def enter(process: int) -> None:
    """Move this process onto the host of another one. It must have one thread, like a forked process.

    Raises:
        OSError: the system does not allow it.
    """
    with contextlib.ExitStack() as opened:
        there = {kind: opened.enter_context(open(f"/proc/{process}/ns/{kind}")) for kind in KINDS}
        own = opened.enter_context(open("/proc/self/ns/user"))
        if os.path.sameopenfile(there["user"].fileno(), own.fileno()):
            del there["user"]
        for kind, file in there.items():
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), KINDS[kind]) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"cannot enter the {kind} namespace of process {process}: {os.strerror(number)}")


@dataclass(frozen=True)
class Uplinks:
    """The sites of hosts, and the rate of each site's uplink."""

    sites: Sequence[int]
    """The number of each host's site, from 0 up."""

    rate: float
    """Mbit/s of each uplink, each way."""


class Namespaces:
    """A number of hosts. A link carries at most `rate` Mbit/s each way, without `rate` as much as the machine can; `slow` has
    other rates.

    With `uplinks`, all hosts of a site share its uplink.
    """

    interface = "eth0"

    def __init__(
        self,
        hosts: int,
        rate: float | None = None,
        slow: Mapping[int, float] | None = None,
        uplinks: Uplinks | None = None,
    ) -> None:
        self.count, self.rate, self.slow, self.uplinks = hosts, rate, slow or {}, uplinks
        if uplinks is not None and len(uplinks.sites) != hosts:
            raise ValueError(f"{len(uplinks.sites)} numbers of sites for {hosts} hosts: give each host one")
        self.user = os.geteuid() != 0
        self.path = os.environ.get("PATH", os.defpath) + ADMINISTRATION
        self.router = 0
        self.hosts: list[int] = []
        """A process in the network of each host; ``router`` is the one for the router."""
        self.routers: list[int] = []
        """A process in the network of each site's router."""
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self.stack:
            self._check_tools()
            as_root = ["--user", "--map-root-user"] if self.user else []
            self.router = self._namespace(["unshare", *as_root])
            self._forward(self.router)
            for site in range(max(self.uplinks.sites) + 1 if self.uplinks else 0):
                self.routers.append(self._namespace([*entered(self.router), "unshare"]))
                self._forward(self.routers[site])
                self._connect_site(site)
            for host in range(self.count):
                self.hosts.append(self._namespace([*entered(self.router), "unshare"]))
                self._connect(host)
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.78.{host}.2"

    def command(self, host: int, words: list[str]) -> list[str]:
        """The command that runs `words` on a host."""
        return [*entered(self.hosts[host]), *words]

    def carried(self, site: int) -> dict[str, int]:
        """Bytes that the uplink of a site has carried out and in since it was made, headers included."""
        command = [*entered(self.routers[site]), "cat", "/proc/net/dev"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        fields = next(line for line in lines if line.strip().startswith("uplink:")).partition(":")[2].split()
        return {"into": int(fields[0]), "out": int(fields[8])}

    def _check_tools(self) -> None:
        for tool in ["unshare", "nsenter", "ip", *(["tc"] if self.rate or self.slow or self.uplinks else [])]:
            if shutil.which(tool, path=self.path) is None:
                raise NoNamespaces(f"the program {tool} is missing (package {PACKAGES[tool]})")

    def _namespace(self, unshare: list[str]) -> int:
        """The process id of a new namespace's first process, which ends when its standard input does."""
        first = subprocess.Popen(
            [*unshare, "--net", "sh", "-c", "echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.stack.callback(first.communicate)
        assert first.stdout is not None and first.stderr is not None
        if first.stdout.readline() != "ready\n":
            why = " ".join(first.stderr.read().split())
            raise NoNamespaces(f"the system does not allow new network namespaces ({why})")
        return first.pid

    def _run(self, process: int, *words: str) -> None:
        command, environment = [*entered(process), *words], os.environ | {"PATH": self.path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise NoNamespaces(f"`{' '.join(words)}` failed ({' '.join(done.stderr.split())})")

    def _forward(self, router: int) -> None:
        """Lets a router forward packets."""
        self._run(router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def _connect_site(self, site: int) -> None:
        """Gives a site's router its uplink to the router between the sites."""
        own, link, router = self.routers[site], f"site{site}", f"10.79.{site}.1"
        for process, command in (
            (self.router, f"ip link add {link} type veth peer name uplink netns {own}"),
            (self.router, f"ip addr add {router}/24 dev {link}"),
            (self.router, f"ip link set {link} up"),
            (own, f"ip addr add 10.79.{site}.2/24 dev uplink"),
            (own, "ip link set lo up"),
            (own, "ip link set uplink up"),
            (own, f"ip route add default via {router}"),
        ):
            self._run(process, *command.split())
        assert self.uplinks is not None
        self._limit(own, "uplink", self.uplinks.rate, QUEUES["router"])
        self._limit(self.router, link, self.uplinks.rate, QUEUES["router"])

    def _connect(self, host: int) -> None:
        """Gives a host its link to the router, or to its site's router."""
        own, link, router = self.hosts[host], f"link{host}", f"10.78.{host}.1"
        place = self._place(host)
        if self.uplinks is not None:
            site = self.uplinks.sites[host]
            self._run(self.router, *f"ip route add 10.78.{host}.0/24 via 10.79.{site}.2".split())
        for process, command in (
            (place, f"ip link add {link} type veth peer name eth0 netns {own}"),
            (place, f"ip addr add {router}/24 dev {link}"),
            (place, f"ip link set {link} up"),
            (own, f"ip addr add {self.address(host)}/24 dev eth0"),
            (own, "ip link set lo up"),
            (own, "ip link set eth0 up"),
            (own, f"ip route add default via {router}"),
        ):
            self._run(process, *command.split())
        if rate := self.slow.get(host, self.rate):
            self.limit(host, rate)

    def limit(self, host: int, rate: float) -> None:
        """Limit the link of a host to `rate` Mbit/s each way from now on, even while it is in use."""
        self._limit(self.hosts[host], "eth0", rate, QUEUES["host"])
        self._limit(self._place(host), f"link{host}", rate, QUEUES["router"])

    def _place(self, host: int) -> int:
        """The router at the end of a host's link: the common one, or its site's."""
        return self.router if self.uplinks is None else self.routers[self.uplinks.sites[host]]

    def _limit(self, process: int, interface: str, rate: float, queue: int) -> None:
        """Limits an interface's outgoing traffic to `rate` Mbit/s, with a token bucket."""
        sizes = f"mtu {LARGEST_FRAME} gso_max_size {LARGEST_PACKET}"
        self._run(process, *f"ip link set {interface} {sizes}".split())
        bucket = f"tbf rate {rate:g}mbit burst {BURST} limit {queue}"
        self._run(process, *f"tc qdisc replace dev {interface} root {bucket}".split())
