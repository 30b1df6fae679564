"""Elastic training through Horovod's interface: a rank dies, the others go on, and a new process joins.

Usage: horovod_elastic.py VICTIM FOLDER [corrected]. Each rank writes what it saw to the folder. With `corrected` gradients are coded by
shares that fall during the steps, with momentum before the codec.
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
DIES_AT, STEPS, STEPS_TOGETHER = 10, 20, 3

hvd.init()
torch.manual_seed(OWN)
model = torch.nn.Linear(4, 1)
CORRECTED = sys.argv[3:] == ["corrected"]
compression = hvd.Compression.none
if CORRECTED:
    compression = hvd.Compression.corrected(hvd.Compression.topk(0.01), momentum=0.5, warmup_steps=16, follows_rate=True)
plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.0 if CORRECTED else 0.9)
optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters(), compression=compression)
sampler = hvd.elastic.ElasticSampler(torch.arange(60), shuffle=False)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0, seen=[], together=0)
sizes: list[tuple[int, int]] = []
state.register_reset_callbacks([lambda: sizes.append((hvd.size(), state.batch))])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    # The new process makes steps, too, after those that the other one has made alone.
    while state.batch < STEPS or state.together < STEPS_TOGETHER:
        if OWN == VICTIM and state.batch == DIES_AT and not (FOLDER / "died").exists():
            (FOLDER / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((3, 4), 1.0 + hvd.rank())).square().mean().backward()
        optimizer.step()
        if state.batch < DIES_AT:
            sampler.record_batch(state.batch, 1)
        state.batch += 1
        state.together += hvd.size() == 2 and (FOLDER / "died").exists()
        state.seen = [*state.seen, state.batch]
        time.sleep(0.02)
        state.commit()


train(state)
weights = hvd.allgather(model.weight.detach())
assert (weights == weights[0]).all()
assert state.seen == list(range(1, state.batch + 1)), state.seen
if CORRECTED:
    kept = optimizer.compression_state_dict()
    assert kept["steps"] == state.batch and kept["rates"] == [0.05], (kept, state.batch)
reported = {
    "sizes": sizes,
    "size": hvd.size(),
    "rank": hvd.rank(),
    "batch": state.batch,
    "processed": sampler.processed_num,
}
(FOLDER / f"{OWN}.json").write_text(json.dumps(reported))
