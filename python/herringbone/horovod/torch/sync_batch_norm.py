"""Batch normalisation over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ..common.basics import size
from ..common.operations import Sum
from .moves import allgather
from .reductions import allreduce

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """``BatchNorm`` of any dimension; in training it uses the mean and variance over all ranks' batches.

    The ranks' batches can differ in size. It runs on the device of its input: Herringbone's tensors are on the CPU.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``input``, of shape ``(N, C, ...)``."""
        self._check_input_dim(input)
        own_batch = self.training or not self.track_running_stats
        if not own_batch or size() == 1:
            return super().forward(input)
        factor = self.momentum if self.momentum is not None else 0.0
        if self.training and self.track_running_stats:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        running = (self.running_mean, self.running_var) if self.training and self.track_running_stats else (None, None)
        normalised: torch.Tensor = _Normalise.apply(input, self.weight, self.bias, *running, self.eps, factor)
        return normalised


class _Normalise(torch.autograd.Function):
    """Ioffe and Szegedy, 2015, with the sums of all ranks; partial variances are joined as by Chan et al., 1979."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        eps: float,
        factor: float,
    ) -> Any:
        others = [at for at in range(x.dim()) if at != 1]
        count = x.numel() // x.size(1)
        if count:
            own_mean, own_var = x.mean(others), x.var(others, unbiased=False)
        else:
            own_mean, own_var = x.new_zeros(x.size(1)), x.new_zeros(x.size(1))
        statistics = torch.cat([own_mean.double(), own_var.double(), torch.tensor([float(count)], dtype=torch.float64)])
        everybody = allgather(statistics.unsqueeze(0))
        channels = x.size(1)
        means, variances, counts = everybody[:, :channels], everybody[:, channels:-1], everybody[:, -1:]
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        if running_mean is not None:
            unbiased = variance * total / (total - 1) if total > 1 else variance
            running_mean.lerp_(mean.to(running_mean.dtype), factor)
            running_var.lerp_(unbiased.to(running_var.dtype), factor)
        shape = [1, channels] + [1] * (x.dim() - 2)
        inverse = torch.rsqrt(variance + eps).to(x.dtype).view(shape)
        normal = (x - mean.to(x.dtype).view(shape)) * inverse
        ctx.save_for_backward(normal, inverse, weight)
        ctx.total, ctx.others, ctx.shape = float(total), others, shape
        scaled = normal if weight is None else normal * weight.view(shape)
        return scaled if bias is None else scaled + bias.view(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (dy,) = gradients
        normal, inverse, weight = ctx.saved_tensors
        own_bias, own_weight = dy.sum(ctx.others), (dy * normal).sum(ctx.others)
        dx = None
        if ctx.needs_input_grad[0]:
            sums = allreduce(torch.stack([own_bias, own_weight]), op=Sum) / ctx.total
            dx = (dy - sums[0].view(ctx.shape) - normal * sums[1].view(ctx.shape)) * inverse
            dx = dx if weight is None else dx * weight.view(ctx.shape)
        to_weight = own_weight if weight is not None and ctx.needs_input_grad[1] else None
        to_bias = own_bias if ctx.needs_input_grad[2] else None
        return dx, to_weight, to_bias, None, None, None, None
