"""A rank of `shards_figures.py`: steps of the example's transformer by shards, and by DDP with gradient accumulation, in turns."""

import copy
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "examples"))

import herringbone.torch
from model import BYTES, Transformer

SHARDS, SAMPLES, CONTEXT = 8, 8, 64
WARM_UP = 3


def main():
    """Trains both ways, and prints the seconds of each step."""
    rounds = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("herringbone")
    torch.manual_seed(0)
    shards = herringbone.torch.Shards(SHARDS, seed=1)
    by_shards = Transformer(128, 4, 4, CONTEXT)
    wrapped = DistributedDataParallel(copy.deepcopy(by_shards))
    of_shards, of_ddp = (torch.optim.AdamW(model.parameters(), 1e-3) for model in (by_shards, wrapped))
    data = torch.randint(BYTES, (SHARDS, SAMPLES, CONTEXT + 1))
    # DDP's share of the shards is the mean one: where nodes are not even, workers by shards have more or less to do.
    share = max(1, SHARDS // dist.get_world_size())
    carried = len(shards.mine)

    def loss(model, number):
        values = data[number % SHARDS]
        return F.cross_entropy(model(values[:, :-1]).reshape(-1, BYTES), values[:, 1:].reshape(-1))

    def accumulated():
        of_ddp.zero_grad(set_to_none=True)
        with wrapped.no_sync():
            for number in range(share - 1):
                (loss(wrapped, number) / share).backward()
        (loss(wrapped, share - 1) / share).backward()
        of_ddp.step()

    steps = shards.steps(by_shards, of_shards)
    step = next(steps)

    def sharded():
        nonlocal step
        for shard in step:
            loss(by_shards, shard.number).backward()
        step = next(steps)

    spent = {"ddp": [], "shards": []}
    meeting = torch.zeros(1)
    for turn in range(WARM_UP + rounds):
        contenders = [("ddp", accumulated), ("shards", sharded)]
        for name, run in contenders if turn % 2 else reversed(contenders):
            dist.all_reduce(meeting)
            began = time.perf_counter()
            run()
            spent[name].append(time.perf_counter() - began)
    steps.close()
    if os.environ["RANK"] == "0":
        print(
            json.dumps({"carried": carried, "share": share, **{name: each[WARM_UP:] for name, each in spent.items()}}), flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
