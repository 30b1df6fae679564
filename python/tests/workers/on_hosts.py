"""Runs a command once per rank on hosts of their own: network namespaces with a router between them.

Usage: on_hosts.py HOSTS RANKS_PER_HOST REDUCERS COMMAND... Reducers have hosts of their own. Exits with 77 where the
system does not allow namespaces, and says why; else with the worst exit status of the ranks. All is gone with this
process: nothing of the system is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REFUSED = 77
INSIDE = "ON_HOSTS_INSIDE"


def enter() -> None:
    """Start again in namespaces of our own, where we may make more of them."""
    for tool in ("unshare", "ip"):
        if shutil.which(tool) is None:
            refuse(f"no {tool} (packages util-linux and iproute2)")
    spaces = ["--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run(["unshare", *spaces, "true"], capture_output=True).returncode != 0:
        refuse("the system does not allow new network namespaces")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", *spaces, sys.executable, *sys.argv])


def refuse(reason: str) -> None:
    print(reason)
    sys.exit(REFUSED)


def connect(hosts: int) -> None:
    """Make the hosts, each with a link to this namespace, which passes packets on."""
    do("mount", "-t", "tmpfs", "none", "/run")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for host in range(hosts):
        name, link = f"host{host}", f"link{host}"
        ip("netns", "add", name)
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"10.78.{host}.1/24", "dev", link)
        ip("link", "set", link, "up")
        ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
        for interface in ("lo", "eth0"):
            ip("-n", name, "link", "set", interface, "up")
        ip("-n", name, "route", "add", "default", "via", f"10.78.{host}.1")


def address(host: int) -> str:
    return f"10.78.{host}.2"


def ip(*words: str) -> None:
    do("ip", *words)


def do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        refuse(f"{' '.join(words)}: {done.stderr.strip()}")


def main() -> int:
    hosts, each, reducers = map(int, sys.argv[1:4])
    command = sys.argv[4:]
    connect(hosts + reducers)
    served = [f"{address(hosts + reducer)}:7070" for reducer in range(reducers)]
    common = {
        "WORLD_SIZE": str(hosts * each),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": "29500",
        "HERRINGBONE_STORE": f"{address(0)}:29501",
        "HERRINGBONE_REDUCERS": ",".join(served),
        "HERRINGBONE_TOKEN": "hosts",
    }
    servers = [
        on(hosts + reducer, {**os.environ, **common}, sys.executable, "-m", "herringbone", "serve", "--listen", at)
        for reducer, at in enumerate(served)
    ]
    ranks = []
    for rank in range(hosts * each):
        host, local = divmod(rank, each)
        environment = {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(local)}
        ranks.append(on(host, environment, *command))
    worst = max(abs(rank.wait()) for rank in ranks)
    for server in servers:
        server.terminate()
        server.wait()
    return worst


def on(host: int, environment: dict[str, str], *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["ip", "netns", "exec", f"host{host}", *command], env=environment)


if __name__ == "__main__":
    if INSIDE not in os.environ:
        enter()
    sys.exit(main())
