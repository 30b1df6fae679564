"""Elastic training through Horovod's interface: a rank dies, the others go on, and a new process joins.

Usage: horovod_elastic.py VICTIM FOLDER. Each rank writes what it saw to the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import herringbone.horovod.torch as hvd

VICTIM, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
OWN = int(os.environ["HOROVOD_RANK"])
DIES_AT, STEPS = 10, 20

hvd.init()
torch.manual_seed(OWN)
model = torch.nn.Linear(4, 1)
plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(torch.arange(60), shuffle=False)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0, seen=[])
sizes: list[tuple[int, int]] = []
state.register_reset_callbacks([lambda: sizes.append((hvd.size(), state.batch))])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.batch < STEPS or hvd.size() < 2:
        if OWN == VICTIM and state.batch == DIES_AT and not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((3, 4), 1.0 + hvd.rank())).square().mean().backward()
        optimizer.step()
        if state.batch < DIES_AT:
            sampler.record_batch(state.batch, 1)
        state.batch += 1
        state.seen = [*state.seen, state.batch]
        time.sleep(0.02)
        state.commit()


train(state)
weights = hvd.allgather(model.weight.detach())
assert (weights == weights[0]).all()
assert state.seen == list(range(1, state.batch + 1)), state.seen
reported = {
    "sizes": sizes,
    "size": hvd.size(),
    "rank": hvd.rank(),
    "batch": state.batch,
    "processed": sampler.processed_num,
}
(FOLDER / f"{OWN}.json").write_text(json.dumps(reported))
