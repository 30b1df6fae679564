"""The last rank is killed while a stream of another one waits for the result: the stream goes on, and the program is told.

The program of rank 1 asks no work how it ended: a later call tells it.
"""

from __future__ import annotations

import os
import signal
import time
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
    if dist.get_rank() == 1:
        tell_unasked(tensor)
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


def tell_unasked(tensor: torch.Tensor) -> None:
    """Make calls until one tells that an earlier one has failed."""
    deadline = time.monotonic() + 60
    works = []
    while time.monotonic() < deadline:
        try:
            works.append(dist.all_reduce(tensor, async_op=True))
        except herringbone.PeerLostError as error:
            print(f"next call: {error}", flush=True)
            raise SystemExit(43) from None
        time.sleep(0.01)


if __name__ == "__main__":
    main()
