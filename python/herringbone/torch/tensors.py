"""How torch's tensors, types and options are put to the engine.

The engine sees memory: an address, a number of elements, one of its eight types. What torch allows beyond that
is translated here or refused with the alternative named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import UnsupportedError

__all__ = [
    "BY_HASH",
    "FOLDED",
    "Finish",
    "adjacent",
    "check_cpu",
    "fold_type",
    "in_order",
    "move_type",
    "reduce_op",
    "source",
    "target",
    "timeout_of",
]

Finish = list[Callable[[], object]]
"""The steps that follow a collective's success."""

FOLDED = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
"""The types that the engine can fold."""

OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}
"""torch's ops that the engine has."""

BY_HASH = {hash(kind): name for kind, name in OPS.items()}
"""The same by hash, which a ``ReduceOp`` and its kind share, and no two kinds: to compare them takes much longer."""

NO_TIME = timedelta(0)

INSTEAD_OF_OP = {
    "BAND": 'all_gather and fold, or MIN for booleans, or a dist.new_group(backend="gloo")',
    "BOR": 'all_gather and fold, or MAX for booleans, or a dist.new_group(backend="gloo")',
    "BXOR": 'all_gather and fold, or a dist.new_group(backend="gloo")',
    "PREMUL_SUM": "SUM of a tensor that you have multiplied",
}

INSTEAD_OF_TYPE = {
    torch.bool: "use op MIN (logical and) or MAX (logical or), or convert it with .to(torch.uint8)",
    torch.int16: "convert it with .to(torch.int32)",
    torch.uint16: "convert it with .to(torch.int32)",
    torch.uint32: "convert it with .to(torch.int64)",
    torch.uint64: "convert it with .to(torch.int64)",
    torch.complex32: "pass torch.view_as_real(tensor) for sum or average",
    torch.complex64: "pass torch.view_as_real(tensor) for sum or average",
    torch.complex128: "pass torch.view_as_real(tensor) for sum or average",
}


def reduce_op(opts: Any) -> str:
    """The engine's name of the op in ``opts``, which is torch's options, a ``ReduceOp``, or ``None`` (sum).

    Raises:
        UnsupportedError: the engine has no such op.
    """
    if opts is None:
        return "sum"
    op = getattr(opts, "reduceOp", opts)
    known = BY_HASH.get(hash(op))
    if known is None:
        op = getattr(op, "op", op)
        alternative = INSTEAD_OF_OP.get(op.name, "one of " + ", ".join(kind.name for kind in OPS))
        raise UnsupportedError(f"herringbone does not reduce with ReduceOp.{op.name}; use {alternative}")
    return known


def timeout_of(opts: Any, timeout: timedelta | None, default: float) -> float:
    """Seconds that an operation may take: of the argument or the options where they say more than zero."""
    given = timeout if timeout is not None else getattr(opts, "timeout", None)
    return given.total_seconds() if isinstance(given, timedelta) and given > NO_TIME else default


def fold_type(tensor: torch.Tensor, op: str) -> str:
    """The engine's type for folding ``tensor`` with ``op``.

    Raises:
        UnsupportedError: the tensor is not on the CPU, is sparse, or the engine does not fold its type.
    """
    check_cpu(tensor)
    known = FOLDED.get(tensor.dtype)
    if known is not None:
        return known
    if tensor.dtype == torch.bool and op in ("product", "min", "max"):
        return "u8"
    alternative = INSTEAD_OF_TYPE.get(tensor.dtype, "convert it with .to(torch.float32)")
    raise UnsupportedError(f"herringbone does not reduce {tensor.dtype} with {op}; {alternative}")


def move_type(tensor: torch.Tensor) -> tuple[str, int]:
    """The type and its elements per element of ``tensor`` for moving it unchanged: every type can be moved.

    Raises:
        UnsupportedError: the tensor is not on the CPU or is sparse.
    """
    check_cpu(tensor)
    if tensor.dtype in FOLDED:
        return FOLDED[tensor.dtype], 1
    return "u8", tensor.element_size()


def check_cpu(tensor: torch.Tensor) -> None:
    """Refuse what has no memory of the CPU that the engine could read."""
    if not tensor.is_cpu:
        device = tensor.device.type
        if device == "meta":
            raise UnsupportedError("herringbone moves CPU tensors, and a meta tensor has no values to move")
        backend = "nccl" if device == "cuda" else "..."
        raise UnsupportedError(
            f"herringbone moves CPU tensors and got one on {tensor.device}; pass tensor.cpu(), or give that "
            f'device a backend of its own: init_process_group("cpu:herringbone,{device}:{backend}")'
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"herringbone does not move {tensor.layout} tensors; pass tensor.to_dense() "
            "(for an Embedding's gradients: sparse=False)"
        )


def in_order(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is its values in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def source(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` where its memory is its values in order, else a copy that is."""
    if in_order(tensor):
        return tensor
    staged = torch.empty(tensor.shape, dtype=tensor.dtype)
    return staged.copy_(tensor.detach())


def target(tensor: torch.Tensor, staged: torch.Tensor, finish: Finish) -> None:
    """Let ``tensor`` receive the values of ``staged`` in the end, where that is another tensor."""
    if staged is tensor:
        return
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape)):
        raise ValueError("an expanded tensor can not receive a result; pass tensor.contiguous()")
    finish.append(lambda: tensor.detach().copy_(staged))


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """``tensors`` (of one type) as one flat tensor, if they lie one after the other in memory."""
    if len({tensor.numel() for tensor in tensors}) > 1:
        # An empty one has no address, so those before and after it would have to be compared; it is not worth it.
        return None
    first = tensors[0]
    step = first.numel() * first.element_size()
    storage = first.untyped_storage().data_ptr()
    for place, tensor in enumerate(tensors):
        if not in_order(tensor) or tensor.untyped_storage().data_ptr() != storage:
            return None
        if tensor.data_ptr() != first.data_ptr() + place * step:
            return None
    return first.detach().as_strided((first.numel() * len(tensors),), (1,))
