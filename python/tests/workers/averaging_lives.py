"""A rank that trains by rounds while others die and come: `averaging_lives.py KIND ROUNDS WAITS [ROUND STEP [PAUSE]]`.

It prints the digest of what all ranks have alike after each round. Rank 0 waits after the round WAITS for a new process. This
process dies in the round and at the step that it is given,
and pauses for so many seconds in each step, or, if it is of the kind "wide", before its death.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

import herringbone
from herringbone.optim import DiLoCo, LocalSGD, PostLocalSGD

STEPS = 4
"""Inner steps of a round; of two fragments each."""


def make(kind: str, net: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    options: dict[str, Any] = {"elastic": True, "on_change": report}
    if kind == "local":
        return LocalSGD(net, optimizer, STEPS, **options)
    if kind == "post":
        return PostLocalSGD(net, optimizer, STEPS, 6, **options)
    if kind == "wide":
        # Many all-reduces in each exchange, so that a rank dies among them.
        return DiLoCo(net, optimizer, sync_every=STEPS, fragment_sync_delay=1, bucket_bytes=1 << 16, **options)
    if kind == "streaming":
        options |= {"fragments": 2, "fragment_sync_delay": 2}
        return DiLoCo(net, optimizer, sync_every=2 * STEPS, wire="int8", feedback=False, **options)
    return DiLoCo(net, optimizer, sync_every=STEPS, **options)


def report(group: herringbone.Communicator) -> None:
    print(f"is rank {group.rank} of {group.size} after {group.completed_before} calls", flush=True)


def digest(averaging: Any) -> str:
    """Of what ranks have alike between rounds."""
    whole = hashlib.sha256()
    state = averaging.state_dict()
    for values in state.get("common") or [state["border"]]:
        for tensor in values:
            whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()[:16]


def wait_for_a_newcomer(group: herringbone.Communicator) -> None:
    """So that a new process comes within the training, and not after it."""
    until = time.monotonic() + 60
    while not group.newcomers():
        assert time.monotonic() < until, "nobody comes"
        time.sleep(0.02)


def main() -> None:
    kind, rounds, waits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dies, pause = tuple(map(int, sys.argv[4:6])), float(sys.argv[6]) if len(sys.argv) > 6 else 0.0
    own = int(os.environ["RANK"])
    torch.manual_seed(own)
    width = 200_000 if kind == "wide" else 64
    net = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5)
    with make(kind, net, optimizer) as averaging:
        print(f"begins in round {averaging.rounds}", flush=True)
        steps, round = 0, averaging.rounds
        while averaging.rounds < rounds:
            if (round, steps) == dies:
                # At once, or in the exchange that the step starts.
                threading.Timer(pause, os.kill, (os.getpid(), signal.SIGKILL)).start()
                time.sleep(0 if pause else 60)
            x = torch.randn(16, 10)
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), x[:, :3].sum(1, keepdim=True).sin()).backward()
            optimizer.step()
            steps += 1
            if kind != "wide":
                time.sleep(pause)
            if averaging.rounds != round:
                steps, round = 0, averaging.rounds
                print(f"round {round} {digest(averaging)} of {averaging.communicator.size}", flush=True)
                if round == waits and averaging.communicator.rank == 0:
                    wait_for_a_newcomer(averaging.communicator)
    print("done", flush=True)


if __name__ == "__main__":
    main()
