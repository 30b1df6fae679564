"""A rank that dies, and starts again when the other one has made all rounds: `averaging_late.py MARKER`."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

from herringbone.optim import LocalSGD

marker = Path(sys.argv[1])
if os.environ["DMLC_NUM_ATTEMPT"] != "0":
    while not marker.exists():
        time.sleep(0.02)
    print("starts again", flush=True)

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
with LocalSGD(net, optimizer, 2, elastic=True) as averaging:
    while averaging.rounds < 6:
        if averaging.rounds == 2 and averaging.communicator.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        net(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
marker.touch()
