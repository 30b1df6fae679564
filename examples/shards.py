"""Training with the same bits on any number of workers: the small transformer.

Start it alone, ``python examples/shards.py``, or on any number of workers, ``herringbone launch -n 3 -- python
examples/shards.py``: every step has the same digest. With ``--elastic`` you can kill workers, and restart them by hand, during
the training. With ``--checkpoint FILE`` a new job continues where the last one was, on another number of workers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
from typing import Any

import herringbone
import herringbone.torch
import torch
from model import BYTES, Text, Transformer
from torch import nn

CONTEXT, SAMPLES = 64, 4096


class Pieces(torch.utils.data.Dataset):
    """Pieces of the text, each as bytes and the byte after each."""

    def __init__(self, text: Text) -> None:
        self.bytes, self.apart = text.bytes, (text.trained - CONTEXT - 1) // SAMPLES

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Each epoch starts a piece elsewhere: the number drawn here does not depend on the process that loads it.
        place = index * self.apart + int(torch.randint(self.apart, ()))
        piece = self.bytes[place : place + CONTEXT + 1].long()
        return piece[:-1], piece[1:]


class WithDropout(nn.Module):
    """The transformer, which sees its bytes through dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Transformer(width=64, blocks=2, heads=4, context=CONTEXT)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.model(values), 0.1, self.training)


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A digest of the bits of model and optimizer after a step."""
    digest = hashlib.blake2b(digest_size=6)
    states = [state[name] for state in optimizer.state.values() for name in sorted(state)]
    for tensor in [*model.parameters(), *model.buffers(), *states]:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4, help="samples of a shard at one step")
    parser.add_argument("--loading", type=int, default=0, help="processes that read ahead")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="a file to continue from, which is written every 5 steps")
    parser.add_argument("--elastic", action="store_true", help="continue when workers die, and take in new ones")
    parser.add_argument("--wait", type=float, default=0, help="with --elastic, seconds to wait for a new process")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = WithDropout()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    saved = torch.load(options.checkpoint) if options.checkpoint and options.checkpoint.exists() else None
    if saved:
        load(saved)
    # A new worker of a running job gets the others' state, which is newer than a checkpoint's.
    job = herringbone.Elastic(save, load, wait=options.wait) if options.elastic else None
    shards = herringbone.torch.Shards(options.shards, seed=1, job=job)
    batches = shards.loader(Pieces(Text(CONTEXT, seed=0)), options.batch, options.loading)
    if saved:
        shards.load_state_dict(saved["shards"])

    for step in shards.steps(model, optimizer, until=options.steps):
        losses = []
        for shard in step:
            values, following = shard.batch(batches)
            loss = nn.functional.cross_entropy(model(values).view(-1, BYTES), following.reshape(-1))
            loss.backward()
            losses.append(loss)
        mean = shards.mean(losses)
        step.reduce()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not step.apply():
            print(f"step {step.number} is repeated", flush=True)
            continue
        carried = f"{len(shards.mine)} of {options.shards} shards"
        print(
            f"step {shards.step}: loss {mean:.4f}, digest {digest_of(model, optimizer)}, {carried}, process {os.getpid()}",
            flush=True,
        )
        if options.checkpoint and shards.step % 5 == 0 and 0 in shards.mine:
            new = options.checkpoint.with_suffix(".new")
            torch.save({**save(), "shards": shards.state_dict()}, new)
            new.replace(options.checkpoint)
    shards.close()


if __name__ == "__main__":
    main()
