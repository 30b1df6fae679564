"""The last rank is killed while a stream of another one waits for the result: the stream goes on, and the program is told."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from simulated import StandIn

import herringbone


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    accelerator = StandIn(seed=3)
    tensor = torch.ones(2_000_000)
    dist.all_reduce(tensor)
    accelerator.synchronize()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        # It only queues, so the error comes later unless the death is known by now.
        work.wait()
    except herringbone.PeerLostError as error:
        print(f"wait: {error}", flush=True)
    accelerator.synchronize()
    while work.exception() is None:
        pass
    assert isinstance(work.exception(), herringbone.PeerLostError), work.exception()
    try:
        dist.all_reduce(tensor, async_op=True).wait(timedelta(seconds=60))
    except herringbone.PeerLostError as error:
        print(f"next call: {error}", flush=True)
        assert accelerator.native.fake_hazards() == []
        raise SystemExit(42) from None


if __name__ == "__main__":
    main()
