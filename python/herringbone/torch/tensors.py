"""How torch's tensors, types and options are described to the engine.

The engine sees memory: an address, a number of elements, one of its types. Everything else that torch allows is
translated here, or refused with an alternative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version

from .. import arrays
from .._herringbone import Kind
from ..arguments import check_seconds
from ..errors import ArgumentError, UnsupportedError
from ..kinds import Span, kind_of
from ..unlike import unlike_its_memory
from .devices import accelerator_of

__all__ = [
    "BY_HASH",
    "FOLDED",
    "Finish",
    "Folding",
    "Lacking",
    "Reduction",
    "adjacent",
    "check_cpu",
    "check_place",
    "contiguous",
    "folding",
    "in_order",
    "joined",
    "like",
    "move_type",
    "or_lacking",
    "packed",
    "reduce_op",
    "room",
    "seconds_of",
    "source",
    "span",
    "target",
    "timeout_of",
    "written",
]

Finish = list[Callable[[], object]]
"""The steps that follow a collective's success."""

FOLDED = {getattr(torch, name): kind for name, kind in arrays.FOLDED.items()}
"""The types that the engine can fold."""

PAIRS = {torch.complex32: "f16", torch.complex64: "f32", torch.complex128: "f64"}
"""Types whose sums and averages are computed as pairs."""

OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "bit_and",
    dist.ReduceOp.BOR: "bit_or",
    dist.ReduceOp.BXOR: "bit_xor",
}
"""torch's ops that the engine has."""

BY_HASH = {hash(kind): name for kind, name in OPS.items()}
"""The same by hash, because comparing ops takes much longer. A ``ReduceOp`` and its kind share a hash, two kinds never do."""

NO_TIME = timedelta(0)

OF_TRUTHS = {"sum": "max", **{op: op for op in ("product", "min", "max", "bit_and", "bit_or", "bit_xor")}}
"""The ops on bytes for ops on booleans, which are 0 or 1: a sum is true if any is."""


class Lacking(torch.Tensor):
    """A placeholder for a tensor that there is no memory for: it has a shape and a type, but no values.

    A collective on it fails on all ranks, so no rank waits for this one.
    """

    beside: torch.Tensor
    """A tensor without elements on the device that has no memory: the call is one of that device."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A result that is made from a tensor without memory has none on the same device."""
        result = super().__torch_function__(function, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        known = [each.__dict__["beside"] for each in args if isinstance(each, Lacking) and "beside" in each.__dict__]
        for made in result if isinstance(result, (tuple, list)) else [result]:
            if known and isinstance(made, Lacking):
                made.beside = known[0]
        return result


def or_lacking(
    make: Callable[[], torch.Tensor], like: torch.Tensor | Sequence[int], dtype: torch.dtype, beside: torch.Tensor | None = None
) -> torch.Tensor:
    """The tensor that ``make`` makes, of the shape of ``like``, or a :class:`Lacking` if there is no memory for it.

    It is on the device of ``beside``, or of ``like`` if that is a tensor.
    """
    try:
        return make()
    except RuntimeError as error:
        # Of the CPU's memory torch has no error of its own.
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        shape, place = (like.shape, like) if isinstance(like, torch.Tensor) else (like, beside)
        return stand_in(shape, dtype, torch.empty(0, device="cpu") if place is None else place)


def stand_in(shape: Sequence[int], dtype: torch.dtype, beside: torch.Tensor) -> Lacking:
    lacking = torch.empty(shape, dtype=dtype, device="meta").as_subclass(Lacking)
    lacking.beside = beside.beside if isinstance(beside, Lacking) else torch.empty(0, device=beside.device)
    return lacking


def room(shape: Sequence[int], beside: torch.Tensor) -> torch.Tensor:
    """A tensor for values of the type of ``beside``, on its device, or what stands for it (:class:`Lacking`)."""
    if isinstance(beside, Lacking):
        return stand_in(shape, beside.dtype, beside)
    return or_lacking(lambda: torch.empty(shape, dtype=beside.dtype, device=beside.device), shape, beside.dtype, beside)


def like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the shape and type of ``tensor``, in the same order; or a :class:`Lacking`."""
    if isinstance(tensor, Lacking):
        return tensor
    return or_lacking(lambda: torch.empty_like(tensor), tensor, tensor.dtype)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor.contiguous()``, or a :class:`Lacking`."""
    return tensor if isinstance(tensor, Lacking) else or_lacking(tensor.contiguous, tensor, tensor.dtype)


class Reduction(NamedTuple):
    """The operation on elements that a caller requests."""

    op: str
    """The engine's name of it."""
    factor: Any = None
    """The factor by which each rank multiplies its input first, a number or a tensor (``PREMUL_SUM``)."""


class Folding(NamedTuple):
    """How the elements of a tensor are folded."""

    dtype: str
    """The engine's type."""
    scale: int
    """How many elements of that type form each element."""
    op: str
    factor: Any

    def kind(self, collective: str) -> Kind:
        """The kind of calls of ``collective`` that fold in this way."""
        return kind_of(collective, self.dtype, self.op)

    def staged(self, tensor: torch.Tensor) -> torch.Tensor:
        """The input: ``tensor``, or a copy with its values in order, multiplied if a factor is given."""
        if self.factor is None:
            return source(tensor)
        factor, is_whole = self.factor, not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
        if is_whole and isinstance(factor, float):
            # torch keeps every number as a float, and multiplies integers by it in float32.
            factor = int(factor) if factor.is_integer() else torch.tensor(factor, dtype=torch.float64, device="cpu")
        return or_lacking(lambda: (tensor.detach() * factor).to(tensor.dtype).contiguous(), tensor, tensor.dtype)


def reduce_op(opts: Any) -> Reduction:
    """The op in ``opts``, which is torch's options, a ``ReduceOp``, or ``None`` (sum).

    Raises:
        UnsupportedError: the engine has no such op.
    """
    if opts is None:
        return Reduction("sum")
    op = getattr(opts, "reduceOp", opts)
    known = BY_HASH.get(hash(op))
    if known is not None:
        return Reduction(known)
    kind = getattr(op, "op", op)
    if kind == dist.ReduceOp.PREMUL_SUM:
        # torch shows the factor only in the values that it would pickle.
        return Reduction("sum", op.__getstate__()[1])
    names = ", ".join(kind.name for kind in OPS)
    raise UnsupportedError(f"herringbone does not reduce with ReduceOp.{kind.name}; use one of {names}")


def timeout_of(opts: Any, timeout: timedelta | None, default: float) -> float:
    """The timeout of an operation in seconds: the argument's or the options', if above zero."""
    given = timeout if timeout is not None else getattr(opts, "timeout", None)
    return given.total_seconds() if isinstance(given, timedelta) and given > NO_TIME else default


def seconds_of(call: str, timeout: timedelta) -> float:
    """The timeout of operations in seconds; an error if it is not a time."""
    if not isinstance(timeout, timedelta):
        raise TypeError(f"{call}: timeout is a {type(timeout).__name__}; pass a datetime.timedelta(seconds=...)")
    seconds = timeout.total_seconds()
    check_seconds(call, seconds)
    return seconds


def folding(tensor: torch.Tensor, reduction: Reduction) -> Folding:
    """How the engine folds ``tensor``.

    Raises:
        UnsupportedError: the tensor is on no device whose tensors are taken, is sparse, or its type is not folded so.
    """
    check_place(tensor)
    op, factor = reduction
    known = FOLDED.get(tensor.dtype)
    if known is not None and not (tensor.dtype.is_floating_point and op.startswith("bit_")):
        return Folding(known, 1, op, factor)
    if tensor.dtype == torch.bool and op in OF_TRUTHS and factor is None:
        return Folding("u8", 1, OF_TRUTHS[op], None)
    if tensor.dtype in PAIRS and op in ("sum", "average"):
        return Folding(PAIRS[tensor.dtype], 2, op, factor)
    raise UnsupportedError(f"herringbone does not reduce {tensor.dtype} with {op}; {instead(tensor.dtype)}")


def instead(dtype: torch.dtype) -> str:
    """Advice for elements of ``dtype`` that cannot be folded in this way."""
    if dtype == torch.bool:
        return "convert it with .to(torch.uint8), or use MIN (all), MAX (any) or BXOR"
    if dtype in PAIRS:
        return "complex numbers have SUM and AVG; pass torch.view_as_real(tensor) to fold their parts"
    if dtype in FOLDED:
        return "bit operations take integers; pass tensor.view() as integers of the same length"
    return "convert it with .to(torch.float32)"


def move_type(tensor: torch.Tensor) -> tuple[str, int]:
    """The type, and its elements per element of ``tensor``, for moving it unchanged; every type can be moved.

    Raises:
        UnsupportedError: the tensor is on no device whose tensors are taken, or is sparse.
    """
    check_place(tensor)
    if tensor.dtype in FOLDED:
        return FOLDED[tensor.dtype], 1
    return "u8", tensor.element_size()


def check_place(tensor: torch.Tensor) -> None:
    """Refuse what has neither memory of the CPU nor of an accelerator whose tensors are taken, and memory that is not the tensor's
    values.
    """
    if tensor.is_cpu or accelerator_of(tensor) is None:
        check_cpu(tensor)
        return
    problem = unlike_its_memory(tensor)
    if problem is not None:
        raise UnsupportedError(f"herringbone does not move {problem}")


def check_cpu(tensor: torch.Tensor) -> None:
    """Refuse tensors without CPU memory that the engine could read, and tensors whose memory is not their values."""
    if not tensor.is_cpu:
        if isinstance(tensor, Lacking):
            return
        device = tensor.device.type
        if device == "meta":
            raise UnsupportedError("herringbone moves CPU tensors, but a meta tensor has no values to move")
        backend = "nccl" if device == "cuda" else "..."
        raise UnsupportedError(
            f"herringbone moves CPU tensors and got one on {tensor.device}; pass tensor.cpu(), or give that device its own "
            f'backend. With torch 2.14 or later: init_process_group("cpu:herringbone,{device}:{backend}"). With earlier '
            f'versions, make a group for it: new_group(backend="{backend}")'
        )
    problem = unlike_its_memory(tensor)
    if problem is not None:
        raise UnsupportedError(f"herringbone does not move {problem}")


def in_order(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is its values in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def source(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` if its memory is its values in order, else such a copy."""
    if in_order(tensor):
        return tensor
    staged = room(tensor.shape, tensor)
    return staged if isinstance(staged, Lacking) else staged.copy_(tensor.detach())


def target(tensor: torch.Tensor, staged: torch.Tensor, finish: Finish) -> None:
    """Let ``tensor`` receive the values of ``staged`` in the end, if that is another tensor."""
    if staged is tensor:
        return
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape)):
        raise ArgumentError("an expanded tensor cannot receive a result; pass tensor.contiguous()")
    finish.append(lambda: tensor.detach().copy_(staged))


def written(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd that the engine writes ``tensors``; torch's Gloo does this by copying to them."""
    increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """``tensors`` (of one type) as one flat tensor, if they lie one after the other in memory."""
    if len({tensor.numel() for tensor in tensors}) > 1:
        # An empty tensor has no address, so its neighbours would have to be compared, which is not worth it.
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


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All of ``tensors`` in one: their own memory if they lie one after the other, else a copy."""
    flat = adjacent(tensors)
    return packed(tensors) if flat is None else flat


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of all of ``tensors`` in one, or a :class:`Lacking`."""
    lengths = [tensor.numel() for tensor in tensors]
    flat = room((sum(lengths),), tensors[0])
    if any(isinstance(each, Lacking) for each in (flat, *tensors)):
        return stand_in(flat.shape, flat.dtype, tensors[0])
    for part, tensor in zip(torch.split(flat, lengths), tensors):
        part.view(tensor.shape).copy_(tensor.detach())
    return flat


def span(tensor: torch.Tensor | None) -> Span:
    """Address and length in bytes; the address is 0 where there is no memory for them."""
    if tensor is None:
        return 0, 0
    address, length = tensor.data_ptr(), tensor.nbytes
    if not address and length and not isinstance(tensor, Lacking):
        raise UnsupportedError(
            f"herringbone got a tensor of shape {tuple(tensor.shape)} without memory: a fake or zero tensor, or one "
            "whose storage was freed; pass one with values"
        )
    return address, length
