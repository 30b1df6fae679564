"""The other inputs of a shard's computation: random numbers, buffers, threads, and the machine."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from ..errors import UnsupportedError

__all__ = ["Buffers", "machine", "probe"]


class Buffers:
    """A model's buffers within a step: every shard starts with the buffers that the step began with."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._own = dict(model.named_buffers())
        # Their bytes are sent, with any strides.
        plain = torch.contiguous_format
        self._before = [buffer.detach().clone(memory_format=plain) for buffer in self._own.values()]
        self._begun = [buffer.clone() for buffer in self._before]
        self._kept = [buffer.clone() for buffer in self._before]
        self.names = list(self._own)

    def are_of(self, model: nn.Module) -> bool:
        """Whether the model still has the same buffers."""
        present = dict(model.named_buffers())
        own = self._own.items()
        return list(present) == self.names and all(_are_alike(present[name], buffer) for name, buffer in own)

    def begin(self) -> None:
        """Called when a step begins: if it fails, the buffers get their present values again."""
        self._copy(self._before, self._values())

    def begin_shards(self) -> None:
        """Let every shard begin with the present values, which the step's body can have changed."""
        self._copy(self._begun, self._values())

    def begin_shard(self) -> None:
        """Reset the buffers for the next shard."""
        self._copy(self._values(), self._begun)

    def undo(self) -> None:
        """Undo the effects of the step."""
        self._copy(self._values(), self._before)

    def keep(self) -> None:
        """Set the buffers to shard 0's values, for the next step."""
        self._copy(self._kept, self._values())

    def changed(self) -> list[bool]:
        """The buffers that shard 0 has changed."""
        return [not _are_equal(kept, begun) for kept, begun in zip(self._kept, self._begun)]

    def packed(self, which: list[bool]) -> torch.Tensor:
        """The bytes of these buffers after shard 0."""
        parts = [_bytes_of(kept) for kept, is_changed in zip(self._kept, which) if is_changed]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)

    def size_of(self, which: list[bool]) -> int:
        """The number of bytes of these buffers."""
        return sum(kept.numel() * kept.element_size() for kept, is_changed in zip(self._kept, which) if is_changed)

    def unpack(self, which: list[bool], values: torch.Tensor) -> None:
        """Set these buffers from shard 0's worker; the others keep the values that the step began with."""
        offset = 0
        for kept, begun, is_changed in zip(self._kept, self._begun, which):
            if is_changed:
                length = kept.numel() * kept.element_size()
                _bytes_of(kept).copy_(values[offset : offset + length])
                offset += length
            else:
                kept.copy_(begun)

    def apply(self) -> None:
        """Set the buffers to shard 0's values, for the next step."""
        self._copy(self._values(), self._kept)

    def _values(self) -> list[torch.Tensor]:
        """The buffers, which modules can have replaced by others of the same kind."""
        present = dict(self._model.named_buffers())
        if present.keys() != self._own.keys():
            names = sorted(present.keys() ^ self._own.keys())
            raise UnsupportedError(
                f"Shards: buffers {names} were added or removed within a step; make them before the first step"
            )
        for name, own in self._own.items():
            if not _are_alike(present[name], own):
                raise UnsupportedError(f"Shards: buffer {name} has changed its shape or type within a step")
        return [present[name].detach() for name in self._own]

    @staticmethod
    def _copy(into: list[torch.Tensor], values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for one, other in zip(into, values):
                one.copy_(other)


def _are_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(_bytes_of(one), _bytes_of(other))


def machine() -> dict[str, Any]:
    """The properties of the machine that determine bits, for all processes to compare."""
    return {
        "default type": str(torch.get_default_dtype()),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch": torch.__version__,
        "processor level": torch.backends.cpu.get_cpu_capability(),
        "probe of arithmetic": probe(),
    }


def probe() -> str:
    """A digest of some arithmetic by the libraries under torch, whose choices also depend on other features and on settings."""
    generator = torch.Generator().manual_seed(53)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32)

    digest = hashlib.blake2b(digest_size=8)
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        weights = [drawn(37, 61), drawn(61, 64), drawn(4, 3, 3, 3)]
        for weight in weights:
            weight.requires_grad_()
        hidden = nn.functional.gelu(drawn(33, 37) @ weights[0])
        hidden = nn.functional.layer_norm(hidden, (61,)) @ weights[1]
        image = nn.functional.conv2d(drawn(2, 3, 16, 16), weights[2], padding=1)
        result = hidden.softmax(1).log().sum() + image.exp().mean() + image.sigmoid().std()
        gradients = torch.autograd.grad(result, weights)
    # These are zero if denormal numbers are flushed.
    tiny = drawn(9) * 1e-39
    for tensor in (result.detach(), tiny, *gradients):
        digest.update(tensor.contiguous().view(-1).numpy().tobytes())
    return digest.hexdigest()
