"""Calls that go through torch's dispatcher, like calls of torch's own backends in C++, and the works that they return.

Dispatch modes (make_fx, FakeTensorMode, CommDebugMode), observers (ExecutionTraceObserver), hooks of a group (the flight
recorder, the check for NaN) and tensor subclasses see calls in the dispatcher. So a method of a group passes its call to
torch's own method, whose kernel calls the backend. torch's result wraps the backend's work and passes on only ``wait`` and
``get_future``; a caller from Python gets the work itself instead.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._profiler import _RecordFunctionFast

from ..errors import HerringboneError, UnsupportedError
from .calls import CALLS, hidden
from .collectives import collectives_of
from .tensors import check_place

__all__ = ["DISPATCHES", "Dispatched", "mend_shared_groups", "note_work", "refuse_modes"]


def _backends_can_be_derived() -> bool:
    class Derived(C10DBackend):
        pass

    try:
        Derived(0, 1)
    except TypeError:
        return False
    return True


DISPATCHES = _backends_can_be_derived()
"""Whether this version of torch (2.14 and later) lets its dispatcher call a backend in Python."""

OLD_NAMES = (
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "alltoall_base",
)
"""Methods' names in torch before 2.14, and the newer names: the methods with old names call the ones with new names."""

METHODS = [name for name in (*CALLS, "_end_coalescing") if hasattr(dist.ProcessGroup, name) and name not in OLD_NAMES]
"""The methods that go through torch's dispatcher. pybind11 would treat an old name as another implementation of the new one."""


AWAITED = object()
"""The placeholder for a work that a backend has not made yet."""


class _Made(threading.local):
    """The result of this thread's call of torch."""

    work: Any = None
    """The work that a backend has made for it, or :data:`AWAITED`; ``None`` if no caller waits for it."""


_made = _Made()


def note_work(work: Any) -> None:
    """Note the ``work`` that a backend has made for torch's call on this thread."""
    if _made.work is not None:
        _made.work = work


def _through_torch(name: str) -> Callable[..., Any]:
    """The group's method ``name``: torch's own, except that it returns our backend's work, if there is one."""
    base, made, awaited, shell = getattr(dist.ProcessGroup, name), _made, AWAITED, dist.Work

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        if _has_lazy(arguments):
            ours = collectives_of(self)
            if ours is not None:
                return _directly(ours, name, arguments, named)
        outer, made.work = made.work, awaited
        try:
            shown = base(self, *arguments, **named)
            own = made.work
        except RuntimeError as error:
            if not isinstance(error, HerringboneError):
                _refuse_foreign(self, arguments, of_cpu=True)
            raise
        except TypeError as error:
            # torch does not support these arguments, such as tags of more than 32 bits; our backend might, or raises a clear error.
            ours = collectives_of(self) if "incompatible function arguments" in str(error) else None
            if ours is None:
                _refuse_foreign(self, arguments, of_cpu=True)
                raise
            return _directly(ours, name, arguments, named)
        finally:
            made.work = outer
        if own is awaited:
            # Without a trace, tensors without values are a mistake, which torch silently ignores.
            if not torch._C._len_torch_dispatch_stack():
                _refuse_foreign(self, arguments)
            return shown
        # A mode can have answered instead of the backend.
        return own if type(shown) is shell else shown

    # By this name pybind11 recognizes that the method itself calls torch's, and does not call it again.
    run.__code__ = run.__code__.replace(co_name=name)
    return functools.wraps(base, assigned=("__doc__", "__name__"), updated=())(run)


def _has_lazy(arguments: Iterable[Any]) -> bool:
    """Whether a tensor's values differ from its memory: a conjugate, a negative view, or zeros without memory.

    torch's dispatcher passes a copy of it to a backend, and never copies the result back.
    """
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if argument.is_neg() or argument.is_conj() or argument._is_zerotensor():
                return True
        elif isinstance(argument, (list, tuple)) and _has_lazy(argument):
            return True
    return False


def _directly(backend: Any, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call the backend's method ``name`` past torch's dispatcher."""
    call = CALLS[name]
    refuse_modes(call.title, "this tensor or call bypasses torch's dispatcher; pass a contiguous clone")
    with _RecordFunctionFast(f"c10d::{call.dispatched}", []):
        return getattr(backend, name)(*arguments, **named)


def _refuse_foreign(group: Any, arguments: Iterable[Any], of_cpu: bool = False) -> None:
    """Raise an error with an alternative for a tensor that no backend of a group takes; torch's own error has none.

    A tensor ``of_cpu`` is checked only after torch has refused the call, because one without its own memory can implement the
    call.
    """
    if not isinstance(group, Dispatched):
        return
    of_cpu = of_cpu and not torch._C._len_torch_dispatch_stack()
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            if of_cpu or not argument.is_cpu:
                check_place(argument)
        elif isinstance(argument, (list, tuple)):
            _refuse_foreign(group, argument, of_cpu)


class Dispatched:
    """The calls of a group whose backend is called by torch's dispatcher."""

    def gather_single(self, *arguments: Any, **named: Any) -> Any:
        """Fill the root's output with the ranks' inputs; torch does not pass this call to backends in Python."""
        return _directly(collectives_of(self), "gather_single", arguments, named)

    gather_into_tensor = gather_single


for _name in METHODS:
    if _name not in vars(Dispatched):
        setattr(Dispatched, _name, _through_torch(_name))
hidden(Dispatched)


@functools.cache
def mend_shared_groups() -> None:
    """Let groups of torch's own class, which have several backends, also return our works themselves.

    It is called when the first such group is made. Works of other backends are returned as before.
    """
    group: Any = dist.ProcessGroup
    for name in METHODS:
        setattr(group, name, _through_torch(name))
    split = group.split_group

    @functools.wraps(split, assigned=("__doc__", "__name__"), updated=())
    def split_group(self: dist.ProcessGroup, ranks: list[int], *more: Any, **named: Any) -> dist.ProcessGroup | None:
        # Every rank asks, because some backends need all to split; a backend in Python cannot report that it has no part.
        part: dist.ProcessGroup | None = split(self, ranks, *more, **named)
        return part if self.rank() in ranks else None

    group.split_group = split_group


def refuse_modes(call: str, why: str = f"torch {torch.__version__} calls no backend in Python; use torch 2.14 or later") -> None:
    """Refuse a call that a tracing mode would not see.

    Raises:
        UnsupportedError: a trace is being made, or tensors without values are used.
    """
    kinds = torch._C._TorchDispatchModeKey
    if torch._C._len_torch_dispatch_stack() and any(
        torch._C._get_dispatch_mode(kind) is not None for kind in (kinds.PROXY, kinds.FAKE)
    ):
        raise UnsupportedError(f"{call}: this trace would not contain the collective, because {why}")
