"""A rank that dies, and starts again when the other one has made all rounds: `averaging_late.py FOLDER`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from herringbone.optim import LocalSGD

ROUNDS = 6
started_again, all_made = Path(sys.argv[1], "started-again"), Path(sys.argv[1], "all-made")


def wait_for(marker: Path) -> None:
    while not marker.exists():
        time.sleep(0.02)


if os.environ["DMLC_NUM_ATTEMPT"] != "0":
    print("starts again", flush=True)
    started_again.touch()
    wait_for(all_made)

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
with LocalSGD(net, optimizer, 2, elastic=True) as averaging:
    while averaging.rounds < ROUNDS:
        if averaging.rounds == ROUNDS - 1 and averaging.communicator.rank == 0:
            wait_for(started_again)  # a launcher starts no process after the others have left
        if averaging.rounds == 2 and averaging.communicator.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        net(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
all_made.touch()
