"""Wraps every call of torch: it is numbered, shown to the profiler, and hidden from Dynamo."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import torch
from torch._C._autograd import _profiler_enabled
from torch._C._dynamo import eval_frame
from torch._C._profiler import _RecordFunctionFast

from .measured import Measured

__all__ = ["CALLS", "Call", "hidden", "observed"]

Class = TypeVar("Class", bound=type)

SKIPPED = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
"""Makes Dynamo leave a function alone, and the functions that it calls."""


class Call(NamedTuple):
    """A method of process groups, as in torch's C++ classes."""

    title: str
    """The profiler's name for the backend's work, after the backend's own name."""

    dispatched: str
    """The operator through which torch calls a backend in C++."""

    number: int
    """Its value in torch's ``OpType``."""

    inputs: int = 0
    """The argument with the input tensors."""


_REDUCE = Call("all_reduce", "allreduce_", 1)
_GATHER_SINGLE = Call("all_gather", "_allgather_base_", 5, 1)
_GATHER_SINGLES = Call("all_gather", "allgather_into_tensor_coalesced_", 17, 1)
_SCATTER_SINGLE = Call("reduce_scatter", "_reduce_scatter_base_", 16, 1)
_SCATTER_SINGLES = Call("reduce_scatter", "reduce_scatter_tensor_coalesced_", 17, 1)
_EXCHANGE_SINGLE = Call("all_to_all", "alltoall_base_", 10, 1)

CALLS = {
    "allreduce": _REDUCE,
    "allreduce_coalesced": Call("all_reduce", "allreduce_coalesced_", 2),
    "reduce": Call("reduce", "reduce_", 3),
    "broadcast": Call("broadcast", "broadcast_", 0),
    "barrier": Call("barrier", "barrier", 15),
    "allgather": Call("all_gather", "allgather_", 4, 1),
    "allgather_coalesced": Call("all_gather", "allgather_coalesced_", 6, 1),
    "all_gather_single": _GATHER_SINGLE,
    "_allgather_base": _GATHER_SINGLE,
    "all_gather_single_coalesced": _GATHER_SINGLES,
    "allgather_into_tensor_coalesced": _GATHER_SINGLES,
    "reduce_scatter": Call("reduce_scatter", "reduce_scatter_", 9, 1),
    "reduce_scatter_single": _SCATTER_SINGLE,
    "_reduce_scatter_base": _SCATTER_SINGLE,
    "reduce_scatter_single_coalesced": _SCATTER_SINGLES,
    "reduce_scatter_tensor_coalesced": _SCATTER_SINGLES,
    "gather": Call("gather", "gather_", 7, 1),
    "gather_single": Call("gather", "gather_", 7, 1),
    "gather_into_tensor": Call("gather", "gather_", 7, 1),
    "scatter": Call("scatter", "scatter_", 8, 1),
    "alltoall": Call("all_to_all", "alltoall_", 11, 1),
    "all_to_all_single": _EXCHANGE_SINGLE,
    "alltoall_base": _EXCHANGE_SINGLE,
    "send": Call("send", "send", 12),
    "recv": Call("recv", "recv_", 13),
    "recv_anysource": Call("recvAnySource", "recv_any_source_", 14),
}
"""By the method's name."""


def observed(note: Callable[[Any], None] | None = None, refuse: Callable[[str], None] | None = None) -> Callable[[Class], Class]:
    """Class decorator: number and show the methods of a group or backend that are calls of torch.

    Args:
        note: called with each work, for torch's dispatcher, which has asked for it and shows calls itself.
        refuse: can refuse a call by its name, because it bypasses the dispatcher.
    """

    def decorate(kind: Class) -> Class:
        for name, call in CALLS.items():
            setattr(kind, name, _observed(getattr(kind, name), call, note, refuse))
        return kind

    return decorate


def hidden(kind: Class) -> Class:
    """Class decorator: let Dynamo break its graph at the methods of this package's ``kind``, and trace none of them.

    It cannot trace their code, such as taking addresses.
    """
    for part in kind.__mro__:
        for function in vars(part).values():
            if part.__module__.startswith(__package__) and isinstance(function, FunctionType):
                function._torchdynamo_disable = True  # type: ignore[attr-defined]
                function._torchdynamo_disable_msg = "it belongs to herringbone"  # type: ignore[attr-defined]
                eval_frame.set_code_exec_strategy(function.__code__, SKIPPED)
    return kind


def _observed(
    method: Callable[..., Any],
    call: Call,
    note: Callable[[Any], None] | None,
    refuse: Callable[[str], None] | None,
) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        if refuse is not None:
            refuse(call.title)
        member = self.member
        member.calls += 1
        if member.timed or _profiler_enabled():
            work = _measured(self, method, call, arguments, named, dispatched=note is not None)
        else:
            work = method(self, *arguments, **named)
        work.op_type, work.sequence, work.group = call.number, member.calls, member.communicator
        if note is not None:
            note(work)
        return work

    return run


def _measured(
    group: Any,
    method: Callable[..., Any],
    call: Call,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    dispatched: bool,
) -> Any:
    shown = _shown(arguments[call.inputs]) if len(arguments) > call.inputs else []
    measured = Measured(f"{group.title}:{call.title}", shown)
    try:
        with contextlib.nullcontext() if dispatched else _RecordFunctionFast(f"c10d::{call.dispatched}", shown):
            work = method(group, *arguments, **named)
    except BaseException:
        measured.end()
        raise
    work.measure(measured)
    return work


def _shown(inputs: Any) -> list[torch.Tensor]:
    """The tensors among the inputs, in one list; complex ones in the form that torch's backends get."""
    if isinstance(inputs, torch.Tensor):
        return [torch.view_as_real(inputs.detach()) if inputs.is_complex() else inputs]
    if isinstance(inputs, (list, tuple)):
        return [tensor for part in inputs for tensor in _shown(part)]
    return []
