"""torch's tensors whose memory is not their values.

Nothing here imports torch, so that modules which also take tensors can use this without it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["unlike_its_memory"]


def unlike_its_memory(tensor: Any) -> str | None:
    """A description of a CPU tensor whose memory is not its values, and what to pass in its place; ``None`` for other
    tensors."""
    if tensor.is_nested:
        return (
            "a nested tensor, whose parts can have other lengths on each rank; pass the parts, tensor.unbind(), one by one, "
            "or tensor.to_padded_tensor(0)"
        )
    if tensor.is_quantized:
        return (
            f"a quantized tensor ({tensor.dtype}), whose scale and zero point would stay behind; pass tensor.dequantize(), or "
            "tensor.int_repr() and the scale separately"
        )
    layout = str(tensor.layout)
    if layout != "torch.strided":
        return f"a {layout} tensor; pass tensor.to_dense() (for an Embedding's gradients: sparse=False)"
    kind, plain = type(tensor), sys.modules["torch"].Tensor
    if kind.__torch_dispatch__ is not plain.__torch_dispatch__ and not _has_memory(tensor):
        return (
            f"a {kind.__name__}, which has no memory of its own; pass the tensor that it wraps (of a DTensor: tensor.to_local())"
        )
    return None


def _has_memory(tensor: Any) -> bool:
    """Whether a tensor of a class that implements its operations itself still has memory."""
    try:
        return bool(tensor.data_ptr())
    except RuntimeError:
        return False
