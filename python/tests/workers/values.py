"""Tensors that all ranks can compute, and what collectives make of them."""

from __future__ import annotations

import torch
import torch.distributed as dist

Op = dist.ReduceOp


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


def pieces(shape: tuple[int, ...] | int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """All ranks' inputs: small whole numbers, whose sums and products every type holds exactly."""
    generator = torch.Generator().manual_seed(1000 + seed)
    shape = (shape,) if isinstance(shape, int) else shape
    return [torch.randint(0, 3, shape, generator=generator).to(dtype) for _ in range(size())]


def fold(tensors: list[torch.Tensor], op: Op.RedOpType) -> torch.Tensor:
    wide = torch.stack([tensor.to(torch.float64) for tensor in tensors])
    if op == Op.SUM:
        result = wide.sum(0)
    elif op == Op.PRODUCT:
        result = wide.prod(0)
    elif op == Op.MIN:
        result = wide.amin(0)
    elif op == Op.MAX:
        result = wide.amax(0)
    else:
        result = wide.sum(0) / len(tensors)
        if not tensors[0].is_floating_point():
            result = result.trunc()
    return result.to(tensors[0].dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert torch.equal(actual, expected), (actual, expected)


def all_gathered(value: torch.Tensor) -> list[torch.Tensor]:
    outputs = [torch.empty_like(value) for _ in range(size())]
    dist.all_gather(outputs, value)
    return outputs
