"""Four ranks of torch whose flight records are looked at: after calls that fit, after planted mistakes, and while a call waits.

``RESULTS`` is the folder for what rank 0 gathers: ``well`` and ``planted``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from cases import error_of

import herringbone

RESULTS = Path(os.environ["RESULTS"])
ALL = [0, 1, 2, 3]


def gather(name: str) -> None:
    """Have rank 0 write the records of all into a folder, while nobody calls anything."""
    dist.barrier()
    if dist.get_rank() == 0:
        address = dist.group.WORLD.address
        command = [sys.executable, "-m", "herringbone", "status", address, "--dump", str(RESULTS / name), "--format", "torch"]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, flush=True)
    # The others wait without a call of the group of all ranks.
    done = RESULTS / f"{name}.done"
    if dist.get_rank() == 0:
        done.touch()
    while not done.exists():
        time.sleep(0.01)


def calls_that_fit() -> None:
    """Of each kind, in groups of all and of some, and messages."""
    rank = dist.get_rank()
    some = dist.new_group([0, 2], group_desc="some")
    ones = torch.ones(8)
    dist.all_reduce(ones)
    dist.reduce(ones, 1)
    dist.broadcast(ones, 2)
    dist.all_gather_into_tensor(torch.empty(32), ones)
    dist.reduce_scatter_tensor(torch.empty(2), ones)
    dist.all_to_all_single(torch.empty(8), ones)
    dist.all_to_all_single(torch.empty(4 * (rank + 1)), torch.ones(10), [rank + 1] * 4, [1, 2, 3, 4])
    dist.gather(ones, [torch.empty(8) for _ in ALL] if rank == 3 else None, 3)
    dist.scatter(ones, [torch.ones(8) for _ in ALL] if rank == 3 else None, 3)
    for length in (3, 100_000):
        for tag in (0, 7):
            if rank == 0:
                dist.send(torch.ones(length), 3, tag=tag)
            elif rank == 3:
                dist.recv(torch.empty(length), 0, tag=tag)
    if rank in (0, 2):
        dist.all_reduce(ones, group=some)
        dist.barrier(some)


def planted() -> None:
    """Rank 2 makes a mistake in each group."""
    rank = dist.get_rank()
    names = ("size", "kind", "absent", "order")
    size, kind, absent, order = (dist.new_group(ALL, group_desc=name, timeout=timedelta(seconds=30)) for name in names)
    is_wrong = rank == 2
    for group in (size, kind, absent, order):
        dist.all_reduce(torch.ones(2), group=group)
    error_of(herringbone.MismatchError, lambda: dist.all_reduce(torch.ones(9 if is_wrong else 8), group=size))

    def of_another_kind() -> None:
        if is_wrong:
            dist.broadcast(torch.ones(8), 0, group=kind)
        else:
            dist.all_reduce(torch.ones(8), group=kind)

    error_of(herringbone.MismatchError, of_another_kind)
    calls = [lambda: dist.all_reduce(torch.ones(3), group=order), lambda: dist.broadcast(torch.ones(3), 0, group=order)]
    with contextlib.suppress(herringbone.MismatchError):
        for call in calls[::-1] if is_wrong else calls:
            call()
    if not is_wrong:
        late = dist.all_reduce(torch.ones(4), group=absent, async_op=True)
    gather("planted")
    if is_wrong:
        dist.all_reduce(torch.ones(4), group=absent)
    else:
        late.wait()


def written_on_a_signal() -> None:
    """While rank 0's main thread waits in a call that rank 3 has not made."""
    file = Path(os.environ["HERRINGBONE_FLIGHT"] + "0")
    process = torch.tensor([os.getpid() if dist.get_rank() == 0 else 0])
    dist.broadcast(process, 0)
    if dist.get_rank() == 3:
        time.sleep(0.2)
        file.unlink()
        os.kill(int(process.item()), signal.SIGUSR1)
        while not file.exists():
            time.sleep(0.01)
    dist.all_reduce(torch.ones(5))


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=30))
    calls_that_fit()
    gather("well")
    planted()
    dist.barrier()
    written_on_a_signal()
    dist.destroy_process_group()
    print("the program ends", flush=True)


if __name__ == "__main__":
    main()
