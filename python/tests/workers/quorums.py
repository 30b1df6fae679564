"""A replica of torchft's kind that cannot use a setting in one quorum: the other one is told at once, and the next quorum forms."""

from __future__ import annotations

import os
import sys
import types
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=600)
"""Longer than the test waits: nobody waits for it."""


class Wrapper:
    """What torchft's class keeps for a subclass: this machine may not have torchft."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout, self._pg = timeout, None


def main() -> None:
    rank = int(os.environ["RANK"])
    module: Any = types.ModuleType("torchft.process_group")
    module.ProcessGroupWrapper = Wrapper
    sys.modules["torchft.process_group"] = module
    from herringbone.torchft import ProcessGroupHerringbone

    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, TIMEOUT, wait_for_workers=False)
    replica: Any = ProcessGroupHerringbone(TIMEOUT)
    for quorum, is_refused in enumerate((False, True, False)):
        os.environ["HERRINGBONE_TRANSPORT"] = "tpc" if is_refused and rank == 1 else "tcp"
        try:
            group = replica._create_pg(dist.PrefixStore(f"quorum {quorum}", store), rank, 2)
        except RuntimeError as error:
            print(f"quorum {quorum}: {error}", flush=True)
            continue
        ones = torch.ones(3)
        group.allreduce([ones]).wait()
        print(f"quorum {quorum}: {ones.tolist()}", flush=True)
        group.shutdown()
    # Rank 0 has the store, and ends last.
    if rank == 0:
        store.wait(["done"], TIMEOUT)
    else:
        store.set("done", "")


if __name__ == "__main__":
    main()
