"""The last rank is killed while hosts add up: every other rank is told who was lost, and no stream waits without end.

Usage: rails_killed.py RANKS_PER_HOST MOMENT, which is "before" the last rank's call, or "after" it, while its streams rest.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from simulated import LanedStandIn

import herringbone


def main(each: int, moment: str) -> None:
    os.environ["NCCL_HOSTID"] = f"host {int(os.environ['RANK']) // each}"
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    accelerator = LanedStandIn(seed=3)
    tensor = torch.ones(100_003)
    dist.all_reduce(tensor)
    accelerator.synchronize()
    assert "add up first" in dist.group.WORLD.member.on_hosts()[0]
    if dist.get_rank() == dist.get_world_size() - 1:
        if moment == "after":
            accelerator.rest()
            dist.all_reduce(tensor, async_op=True)
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(2)]
    for work in works:
        try:
            work.wait()
        except herringbone.PeerLostError as error:
            print(f"wait: {error}", flush=True)
        while work.exception() is None:
            time.sleep(0.01)
        assert isinstance(work.exception(), herringbone.PeerLostError), work.exception()
    accelerator.synchronize()
    try:
        dist.all_reduce(tensor)
    except herringbone.PeerLostError as error:
        print(f"next call: {error}", flush=True)
        raise SystemExit(42) from None


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
