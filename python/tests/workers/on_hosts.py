"""Runs a command once per rank on hosts of their own: network namespaces with a router between them.

Usage: on_hosts.py HOSTS RANKS_PER_HOST REDUCERS COMMAND... Reducers have hosts of their own. Exits with 77 where the
system does not allow namespaces, and says why; else with the worst exit status of the ranks. All is gone with this
process: nothing of the system is changed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

from namespaces import Namespaces, NoNamespaces
from processes import Processes

REFUSED = 77


def run(spaces: Namespaces, hosts: int, each: int, reducers: int, command: list[str]) -> int:
    served = [f"{spaces.address(hosts + reducer)}:7070" for reducer in range(reducers)]
    common = {
        **os.environ,
        "WORLD_SIZE": str(hosts * each),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": spaces.address(0),
        "MASTER_PORT": "29500",
        "HERRINGBONE_STORE": f"{spaces.address(0)}:29501",
        "HERRINGBONE_REDUCERS": ",".join(served),
        "HERRINGBONE_TOKEN": "hosts-of-these-tests",
    }
    with Processes(spaces) as processes:
        for reducer, at in enumerate(served):
            serve = [sys.executable, "-m", "herringbone", "serve", "--listen", at]
            processes.start(serve, hosts + reducer, env=common)
        ranks = []
        for rank in range(hosts * each):
            host, local = divmod(rank, each)
            place = {"RANK": str(rank), "LOCAL_RANK": str(local), "HOST_ADDRESS": spaces.address(host)}
            ranks.append(processes.start(command, host, env={**common, **place}))
        return max(abs(rank.wait()) for rank in ranks)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    hosts, each, reducers = map(int, sys.argv[1:4])
    try:
        with Namespaces(hosts + reducers) as spaces:
            return run(spaces, hosts, each, reducers, sys.argv[4:])
    except NoNamespaces as reason:
        print(reason)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main())
