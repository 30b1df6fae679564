"""Elastic training through Horovod's interface in which operations fail and no rank is lost."""

from __future__ import annotations

import torch

import herringbone.horovod.torch as hvd

hvd.init()
state = hvd.elastic.TorchState(torch.nn.Linear(2, 1), batch=0)
failed: set[int] = set()
rounds: list[tuple[int, int]] = []
state.register_reset_callbacks([lambda: rounds.append((hvd.size(), state.batch))])


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while state.batch < 30:
        if state.batch in (10, 20) and state.batch not in failed:
            failed.add(state.batch)
            if state.batch == 10:
                hvd.allreduce(torch.ones(2 + hvd.rank()), name="another shape")
            elif hvd.rank() == 1:
                raise hvd.HorovodInternalError("only this rank has failed")
        hvd.allreduce(torch.ones(3), name="gradient")
        state.batch += 1
        state.commit()


train(state)
assert rounds == [(3, 10), (3, 20)], rounds
