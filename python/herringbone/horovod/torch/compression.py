"""Fewer bytes for a gradient: it is compressed before it is sent, and restored afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...torch.corrector import Corrector
from ...torch.tensors import or_lacking
from ..common.operations import Average, Sum

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor", "codec_of", "coded"]


class Compressor:
    """The interface of a compression; programs can define their own."""

    codec: str | None = None
    """The codec with which the engine compresses inside of the operation, if it does."""
    correction: Mapping[str, Any] | None = None
    """The correction that an optimizer applies to gradients before the codec, if any: see :meth:`Compression.corrected`."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor to send, and a context for :meth:`decompress`."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """No compression."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor itself."""
        return tensor


class _Narrower(Compressor):
    """Floating-point numbers are sent as ``narrow``, and then have their own type again."""

    narrow: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor in the narrower type, and its own type."""
        if not tensor.dtype.is_floating_point:
            return tensor, tensor.dtype
        return or_lacking(lambda: tensor.to(cls.narrow), tensor, cls.narrow), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor.to(ctx)


class FP16Compressor(_Narrower):
    """Floating-point numbers are sent as ``float16``."""

    narrow = torch.float16


class BF16Compressor(_Narrower):
    """Floating-point numbers are sent as ``bfloat16``: less exact than ``float16``, but with the range of ``float32``."""

    narrow = torch.bfloat16


def codec_of(compression: Any, tensor: torch.Tensor, op: int) -> str:
    """The codec for an allreduce of this tensor; types other than float32 and other operations are sent uncompressed.

    Raises:
        ValueError: the compression keeps state from step to step, so only an optimizer can use it.
    """
    if getattr(compression, "correction", None) is not None:
        raise ValueError(
            "allreduce: Compression.corrected keeps momentum and steps, so it is for DistributedOptimizer; pass the compression in it"
        )
    codec: str | None = getattr(compression, "codec", None)
    return codec if codec is not None and tensor.dtype == torch.float32 and op in (Average, Sum) else "none"


def coded(codec: str) -> type[Compressor]:
    """A compression inside of the operation: tensors stay float32 outside of it."""
    return type("CodedCompressor", (NoneCompressor,), {"__doc__": f"The engine's codec {codec}.", "codec": codec})


class Compression:
    """The available compressions.

    ``none``, ``fp16`` and ``bf16`` are Horovod's: tensors are converted to the narrower type before they are sent. All others
    are codecs of the engine, for sums and averages of float32; other tensors are sent uncompressed. Messages become shorter,
    sums stay float32, and each named tensor has error feedback. ``docs/compression.md`` describes the codecs.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = coded("int8")
    sign = coded("sign")
    exact = coded("exact")

    @staticmethod
    def onebit(threshold: float = 0.0) -> type[Compressor]:
        """+1 for elements above the threshold, else -1."""
        return coded(f"onebit:{float(threshold)!r}")

    @staticmethod
    def twobit(threshold: float = 0.5) -> type[Compressor]:
        """Plus or minus the threshold for elements that reach it, else 0."""
        return coded(f"twobit:{float(threshold)!r}")

    @staticmethod
    def topk(share: float = 0.01) -> type[Compressor]:
        """This share of the elements: the largest ones."""
        return coded(f"topk:{float(share)!r}")

    @staticmethod
    def randomk(share: float = 0.01) -> type[Compressor]:
        """This share of the elements, drawn at random but the same on all ranks."""
        return coded(f"randomk:{float(share)!r}")

    @staticmethod
    def corrected(
        compression: type[Compressor],
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        warmup_steps: int = 0,
        follows_rate: bool = False,
        masking: bool = False,
    ) -> type[Compressor]:
        """A codec of the engine for :func:`DistributedOptimizer`, with corrections of gradients before it.

        Args:
            compression: the codec, such as ``Compression.topk(0.01)``.
            momentum: each rank accumulates its gradients with it before they are coded (momentum correction of Deep Gradient
                Compression). The optimizer must be ``torch.optim.SGD`` without momentum, and no ``GradScaler`` may scale
                gradients.
            nesterov: Nesterov's momentum, as in BytePS.
            warmup_steps: the number of steps in which the share of ``topk`` or ``randomk`` falls from 1/4, in four stages.
            follows_rate: if the optimizer's learning rate falls, residuals grow by the old rate over the new one, as in BytePS.
            masking: with ``topk`` or ``randomk`` the velocity of a sent element restarts from zero (momentum factor masking).

        Raises:
            TypeError, ValueError: a number makes no sense, or the compression is no codec of the engine or has
                corrections already.
        """
        if getattr(compression, "codec", None) is None:
            raise ValueError(
                "Compression.corrected: the compression is not a codec of the engine; pass one, such as Compression.topk(0.01)"
            )
        if getattr(compression, "correction", None) is not None:
            raise ValueError(
                "Compression.corrected: the compression has corrections already; pass the codec alone, with all corrections in one call"
            )
        correction: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "warmup_steps": warmup_steps,
            "follows_rate": follows_rate,
            "masking": masking,
        }
        Corrector("Compression.corrected", str(compression.codec), **correction)
        return type("CorrectedCompressor", (compression,), {"__doc__": compression.__doc__, "correction": correction})
