"""Trains small models by shards, and prints a digest of all that a step leaves: the same for any number of workers."""

from __future__ import annotations

import hashlib
import os
import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import herringbone.torch

SHARDS, BATCH, SAMPLES = 8, 3, 80


class Digits(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Images that follow from their number, and from what is drawn when they are loaded."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        noise = torch.rand(()) + np.random.rand() + random.random()
        return torch.randn(2, 6, 6, generator=generator) + 0.1 * noise, index % 10


class Convolutional(nn.Module):
    """Statistics of batches, random numbers, a layer that few shards use and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.linear, self.rare, self.never = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = F.relu(self.norm(self.convolution(images))).flatten(1)
        x = self.linear(F.dropout(x, 0.3, self.training))
        draws = float(torch.rand(())) + float(np.random.rand()) + random.random()
        return self.rare(x) if draws < 1.0 else x


class Transformer(nn.Module):
    """Dropout, attention, and one weight that two layers use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        self.logits = nn.Linear(16, 10, bias=False)
        self.logits.weight = self.embedding.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = (images.flatten(1)[:, :12].float() * 3).long() % 10
        return self.logits(self.block(self.embedding(tokens))).mean(1)


class Checkpointed(nn.Module):
    """One layer, used twice and computed again in the backward pass: its gradient comes in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.logits = nn.Linear(72, 72), nn.Linear(72, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.tied(images.flatten(1)), 0.2)
        twice = torch.utils.checkpoint.checkpoint(lambda x: self.tied(F.gelu(x)), x, use_reentrant=True)
        return self.logits(twice)


class Habits(nn.Module):
    """What old programs do: a buffer in another order, one that the loop changes, one that shows a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(72, 10)
        self.register_buffer("seen", torch.zeros(10, 72).t())
        self.register_buffer("heat", torch.ones(()))
        self.register_buffer("shown", self.linear.bias.data)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.flatten(1)
        with torch.no_grad():
            self.seen += x.mean(0)[:, None]
        return self.linear(x - 0.01 * self.seen[:, 0]) / self.heat


def made(kind: str) -> nn.Module:
    """A new model; every rank makes another one, and all get that of rank 0."""
    torch.manual_seed(7 if os.environ["RANK"] == "0" else 8)
    model = {"transformer": Transformer, "checkpointed": Checkpointed, "habits": Habits}.get(kind, Convolutional)()
    return model.to({"bf16": torch.bfloat16, "double": torch.float64}.get(kind, torch.float32))


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of parameters, buffers and the optimizer's state."""
    found = hashlib.blake2b(digest_size=8)
    states = [state[key] for state in optimizer.state.values() for key in sorted(state)]
    for tensor in [*model.parameters(), *model.buffers(), *states]:
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def train(kind: str, steps: int, passes: int, runs: str) -> None:
    model = made(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    shards = herringbone.torch.Shards(SHARDS, seed=3, runs=runs)
    loader = shards.loader(Digits(), BATCH, rule="weigh")
    dtype = next(model.parameters()).dtype
    own = torch.get_rng_state()
    for step in shards.steps(model, optimizer, until=steps):
        losses = []
        if kind == "habits":
            model.heat *= 0.9
        for shard in step:
            images, targets = shard.batch(loader)
            for few, wanted in zip(images.to(dtype).chunk(passes), targets.chunk(passes)):
                loss = F.cross_entropy(model(few).float(), wanted) / passes
                loss.backward()
            if kind == "habits":
                for parameter in model.parameters():
                    parameter.grad.data.clamp_(-0.01, 0.01)
            losses.append(loss)
        mean = shards.mean(losses)
        if kind == "transformer":
            step.reduce()
            mean += float(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        step.apply()
        print(f"step {kind}/{passes} {step.number} {digest(model, optimizer)} {mean!r}", flush=True)
    assert torch.equal(own, torch.get_rng_state()), "the program's generator has moved"
    assert not hasattr(model, "never") or model.never.weight.grad is None
    print(f"state {kind}/{passes} {shards.state_dict()['step']} {len(str(shards.state_dict()))}", flush=True)


def main() -> None:
    dist.init_process_group("herringbone")
    for kind in sys.argv[2:]:
        name, passes, runs = kind.split("/") if "/" in kind else (kind, "1", "auto")
        train(name, int(sys.argv[1]), int(passes), runs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
