"""The model of `train.py`: a small transformer over bytes, and the text of Python's standard library."""

import hashlib
import pathlib
import sysconfig

import torch
from torch import nn

BYTES = 256
HELD_OUT = 20
"""The divisor for the held-out part: this fraction of the text, at its end, is never trained on."""


class Block(nn.Module):
    """Attention to the bytes before, then two linear layers; each adds to its input."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrower(nn.functional.gelu(self.wider(self.norm(x))))


class Transformer(nn.Module):
    """From bytes (batch, length) to the logits of the byte after each of them (batch, length, 256)."""

    def __init__(self, width, blocks, heads, context):
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, BYTES)
        for embedding in (self.byte, self.place):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, values):
        x = self.byte(values) + self.place.weight[: values.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


class Text:
    """The sources of this Python's standard library as bytes, about 5 MB, in the order of their names.

    A batch depends only on the seed, the step and the rank, so a resumed training sees the same batches as an
    uninterrupted one.
    """

    def __init__(self, context, seed):
        folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
        text = b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        if len(text) < 2 * HELD_OUT * (context + 1):
            raise ValueError(f"{folder} has {len(text)} bytes of Python sources: use a Python with its library")
        self.digest = hashlib.sha256(text).hexdigest()[:16]
        self.bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.trained = len(text) - len(text) // HELD_OUT
        self.context, self.seed = context, seed

    def batch(self, step, size, rank, world):
        """This rank's part of a step: bytes, and the byte after each. All ranks draw the same places and take turns."""
        drawing = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        places = torch.randint(self.trained - self.context, (size * world,), generator=drawing)
        return self._at(places[rank * size :][:size])

    def held_out(self, size, rank, world):
        """This rank's part of the text that is never trained on: the same places each time."""
        places = torch.linspace(self.trained, len(self.bytes) - self.context - 1, size * world, dtype=torch.float64)
        return self._at(places.long()[rank * size :][:size])

    def _at(self, places):
        cut = torch.stack([self.bytes[place : place + self.context + 1] for place in places.tolist()]).long()
        return cut[:, :-1], cut[:, 1:]
