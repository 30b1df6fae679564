"""Fewer bytes for a gradient: what is done to it before it travels, and undone afterwards."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class Compressor:
    """What a compression does; programs may bring their own."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that travels, and what :meth:`decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor as the caller knows it."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is done."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class _Narrower(Compressor):
    """Floating point numbers travel as ``narrow``, and come back as what they were."""

    narrow: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor in the narrower type, and its own type."""
        return (tensor.to(cls.narrow) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor.to(ctx)


class FP16Compressor(_Narrower):
    """Floating point numbers travel as ``float16``."""

    narrow = torch.float16


class BF16Compressor(_Narrower):
    """Floating point numbers travel as ``bfloat16``: less exact than ``float16``, and with the range of ``float32``."""

    narrow = torch.bfloat16


class Compression:
    """The compressions that are there."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
