"""Elastic training through Horovod's interface, on hosts whose slots become more and then fewer again.

Usage: horovod_grows.py FOLDER HOSTS. Rank 0 writes what the script for hosts says: HOSTS with the number of slots, and one
less, in the places of {0} and {1}. Each process writes what it saw to the folder.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path

import torch

import herringbone.horovod.torch as hvd

FOLDER, HOSTS = Path(sys.argv[1]), sys.argv[2]
WORKER = os.environ["HOROVOD_WORKER"]
GROWS_AT, STEPS_TOGETHER = 5, 5

hvd.init()
torch.manual_seed(int(WORKER))
model = torch.nn.Linear(4, 1)
plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, batch=0, seen=[], sizes=[hvd.size()])
own: list[tuple[int, int]] = []
"""How many ranks there were in each of this process's steps, and which batch it was."""


def has_room_for(slots: int) -> None:
    """Let the script for hosts say so."""
    (FOLDER / "new").write_text(HOSTS.format(slots, slots - 1))
    (FOLDER / "new").replace(FOLDER / "hosts")


def remember() -> None:
    """Write down what this process saw, also if it has to leave."""
    (FOLDER / f"{WORKER}.json").write_text(json.dumps({"own": own, "sizes": state.sizes, "seen": state.seen}))


atexit.register(remember)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.sizes != [2, 3, 2]:
        optimizer.zero_grad()
        model(torch.full((3, 4), 1.0 + hvd.rank())).square().mean().backward()
        optimizer.step()
        own.append((hvd.size(), state.batch))
        state.batch += 1
        state.seen = [*state.seen, state.batch]
        if state.sizes[-1] != hvd.size():
            state.sizes = [*state.sizes, hvd.size()]
        if hvd.rank() == 0:
            if state.batch == GROWS_AT:
                has_room_for(3)
            if sum(size == 3 for size, _ in own) == STEPS_TOGETHER:
                has_room_for(2)
        time.sleep(0.02)
        state.commit()


train(state)
weights = hvd.allgather(model.weight.detach())
assert (weights == weights[0]).all()
assert state.seen == list(range(1, state.batch + 1)), state.seen
