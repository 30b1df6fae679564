"""The trained networks and their samples, which need no download. It needs torch."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .digits import digits
from .options import WORKLOADS

__all__ = ["Workload", "workload"]

BYTES, CONTEXT, TEXT_BYTES = 256, 64, 2_000_000
"""For the transformer: its tokens, how many it sees at once, and the most bytes of text."""
HELD_OUT = 5
"""One in this many samples is a test sample."""
TESTS = 256
"""The most test samples."""


@dataclass(frozen=True)
class Samples:
    """Inputs and labels by their index. The first ``tests`` are test samples; the others are trained on."""

    count: int
    tests: int
    at: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    """The inputs and labels of these indices."""


@dataclass(frozen=True)
class Workload:
    """A network to train, its samples and its settings."""

    make: Callable[[], nn.Module]
    samples: Samples
    batch: int
    """Samples of one worker in a step."""
    learning_rate: float
    momentum: float
    seed: int
    about: str

    def model(self) -> nn.Module:
        """A network, whose first parameters depend only on the seed."""
        torch.manual_seed(self.seed)
        return self.make()

    def batch_of(self, step: int, part: int, parts: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Part ``part`` of ``parts`` of the ``total`` samples of a step.

        All workers draw the same samples by seed and step, and each takes its part, so every architecture sees the same
        samples.

        Raises:
            ValueError: there are more parts than samples.
        """
        if parts > total:
            raise ValueError(f"the {total} samples of a step cannot be cut into {parts} shards: use at most {total}")
        drawing = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        samples = self.samples
        drawn = torch.randint(samples.tests, samples.count, (total,), generator=drawing)
        return samples.at(drawn[total * part // parts : total * (part + 1) // parts])

    def loss_of(self, model: nn.Module, step: int, part: int, parts: int, total: int) -> torch.Tensor:
        """The mean loss of a part of a step's samples."""
        inputs, labels = self.batch_of(step, part, parts, total)
        return nn.functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())

    def accuracy(self, model: nn.Module) -> float:
        """The fraction of test samples that the model classifies correctly."""
        inputs, labels = self.samples.at(torch.arange(min(self.samples.tests, TESTS)))
        with torch.no_grad():
            return float((model(inputs).argmax(-1) == labels).float().mean().item())


def workload(name: str, seed: int) -> Workload:
    """The workload with a name from :data:`~herringbone.compare.options.WORKLOADS`."""
    return {"digits": _digits, "transformer": _transformer}[name](seed)


def _digits(seed: int) -> Workload:
    images, labels, about = digits()
    inputs, wanted = torch.from_numpy(images), torch.from_numpy(labels)

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    samples = Samples(len(inputs), len(inputs) // HELD_OUT, lambda indices: (inputs[indices], wanted[indices]))
    return Workload(network, samples, WORKLOADS["digits"].batch, 0.05, 0.9, seed, f"{WORKLOADS['digits'].about}; {about}")


class Transformer(nn.Module):
    """From bytes (batch, length) to the logits of the byte after each of them (batch, length, 256)."""

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(BYTES, width), nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.logits = nn.Linear(width, BYTES)

    def forward(self, values: torch.Tensor) -> Any:
        """Each place sees itself and earlier places."""
        length = values.shape[1]
        hidden = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.bytes(values) + self.places.weight[:length]
        return self.logits(self.layers(x, mask=hidden, is_causal=True))


def _transformer(seed: int) -> Workload:
    text = torch.frombuffer(_text(), dtype=torch.uint8)
    reach = torch.arange(CONTEXT + 1)

    def at(indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = text[indices[:, None] + reach].long()
        return pieces[:, :-1], pieces[:, 1:]

    count = len(text) - CONTEXT
    samples = Samples(count, count // HELD_OUT, at)
    about = f"{WORKLOADS['transformer'].about}; {len(text):,} bytes of this Python's library"
    return Workload(Transformer, samples, WORKLOADS["transformer"].batch, 0.1, 0.9, seed, about)


def _text() -> bytearray:
    """The sources of this Python's standard library, in the order of their names."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), bytearray()
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_BYTES:
            break
    if len(text) < 100 * CONTEXT:
        raise ValueError(f"{folder} has {len(text)} bytes of Python sources: use a Python with its library, or --model digits")
    return text[:TEXT_BYTES]
