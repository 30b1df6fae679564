"""Running operations, as numbers that callers hold, with the memory that they use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import _herringbone
from ...arguments import factor, text
from ...advice import advised
from .calls import is_grouped, operation_of
from .exceptions import HorovodInternalError
from .operations import Adasum, ReduceOp
from .process_sets import ProcessSet, member_of
from .util import num_rank_is_power_2
from .world import required

if TYPE_CHECKING:
    from ..._herringbone import NamedWork
    from ...compression import Residuals

__all__ = ["Finish", "Operand", "Span", "forget_all", "join", "poll", "reduction", "start", "synchronize"]

Span = tuple[int, int]
"""Address and length in bytes."""
Finish = Callable[[Any], Any]
"""Turns the controller's result into the caller's."""
SHUT_DOWN = "Horovod has been shut down"
"""The begin of the controller's error once it has ended."""


@dataclass(frozen=True)
class Operand:
    """A tensor of an operation, and the conversion of its result."""

    source: Span | None
    """This rank's tensor."""
    target: Span | None
    """Memory for the result; ``None`` if its size is known only at the end."""
    dtype: str
    shape: Sequence[int]
    finish: Finish
    kept: object
    """The owner of the memory."""
    codec: str = "none"
    """How the engine codes messages."""


@dataclass(frozen=True)
class _Running:
    """The objects that an operation needs until its end: its memory must not be freed before the engine has finished."""

    works: list[NamedWork]
    finishes: list[Finish]
    kept: object
    grouped: bool

    def result(self) -> Any:
        """Wait for the end of all operands, even if one fails."""
        failure: Exception | None = None
        for work in self.works:
            try:
                work.wait()
            except RuntimeError as error:
                failure = failure or error
        try:
            if isinstance(failure, MemoryError):
                # This is no failure of the job, for which elastic training would begin again.
                raise failure
            if failure is not None:
                raise failed(failure) from failure
        finally:
            # Otherwise the error keeps this frame and the frame keeps the error, so the tensors would not be freed.
            del failure
        results = [finish(work.result()) for work, finish in zip(self.works, self.finishes, strict=True)]
        return tuple(results) if self.grouped else results[0]


_running: dict[int, _Running] = {}
_numbers = itertools.count(1)


def start(process_set: ProcessSet, call: str, name: str | None, operands: Sequence[Operand], **more: Any) -> int:
    """Begin the operation of a call on one tensor, or on the tensors of a group, and return its handle.

    Args:
        call: the name that the program has called, such as ``grouped_allreduce_async``.
        name: the same on all ranks; numbered if it is ``None``.
        more: as for the controller's ``submit``.

    Raises:
        ValueError: the operation cannot begin, for instance because another one has its name, or this rank is not in the set.
        HorovodInternalError: it cannot begin because the job has ended.
    """
    operation, grouped, member = operation_of(call), is_grouped(call), member_of(process_set, call)
    controller = member.controller
    if controller is None:
        raise ValueError(f"{call}: Rank {required().rank} is not a member of the provided process set.")
    if not operands:
        # The group is empty on all ranks, such as the sparse gradients of a model that has none.
        return _keep(_Running([], [], None, grouped=True))
    kind = f"grouped_{operation}" if grouped else operation
    if name is None:
        member.unnamed[kind] += 1
    base = text(call, "name", f"{kind}.noname.{member.unnamed[kind]}" if name is None else f"{kind}.{name}")
    # Numbers in place of names are reused after a join, for other tensors, so these tensors have no error feedback.
    owner: Residuals = more.pop("residuals", None) or member.residuals
    more["residuals"] = None if name is None else owner._native
    named = [(base, operand) for operand in operands]
    if grouped:
        named = [(f"{base}_{number}of{len(operands)}", operand) for number, operand in enumerate(operands, 1)]
        more["group"] = (base, len(operands))
    works: list[NamedWork] = []
    for full, operand in named:
        about = {"dtype": operand.dtype, "shape": list(operand.shape), "keep": operand.kept, "compression": operand.codec, **more}
        try:
            works.append(controller.submit(operation, full, operand.source, operand.target, **about))
        except RuntimeError as error:
            # The operands that have begun use their memory until the controller ends.
            if works:
                _keep(_Running(works, [], operands, grouped))
            raise _refused(error) from error
    return _keep(_Running(works, [operand.finish for _, operand in named], operands, grouped))


def reduction(call: str, op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet) -> dict[str, Any]:
    """The controller's arguments for a reduction.

    Raises:
        TypeError: a factor is no number, or the set is no process set.
        NotImplementedError: Adasum does not support it, or not with these ranks.
    """
    if op == Adasum:
        if operation_of(call) == "reducescatter":
            raise NotImplementedError(f"{call}: Adasum weighs whole tensors, so there is no reducescatter of it; use allreduce.")
        if member_of(process_set, call) is not required().sets[0]:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        if not num_rank_is_power_2(required().size):
            raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")
    factors = {"prescale": factor(call, "prescale_factor", prescale), "postscale": factor(call, "postscale_factor", postscale)}
    return {"op": op.native, **factors}


def join() -> int:
    """Join: this rank has no more tensors. Returns the rank that joined last, once all have.

    Raises:
        HorovodInternalError: the job cannot continue.
    """
    controller = required().sets[0].controller
    assert controller is not None
    try:
        work = controller.join()
        work.wait()
    except RuntimeError as error:
        raise failed(error) from error
    # Ranks that joined early have made fewer calls: from here on their operations without names match again.
    required().sets[0].unnamed.clear()
    last = work.result().last_joined
    assert last is not None
    return last


def poll(handle: int) -> bool:
    """Whether the operation has ended, successfully or not."""
    running = _running.get(handle)
    if running is None:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    return all(work.poll() for work in running.works)


def synchronize(handle: int) -> Any:
    """Wait for the operation's end and return its result: a tensor, or several.

    Raises:
        HorovodInternalError: it failed.
    """
    running = _running.get(handle)
    if running is None:
        return None
    try:
        result = running.result()
    except HorovodInternalError:
        _running.pop(handle, None)
        raise
    _running.pop(handle, None)
    return result


def forget_all() -> None:
    """Release all memory, because the controllers have ended."""
    _running.clear()


def _refused(error: RuntimeError) -> Exception:
    """The error for an operation that cannot begin: as in Horovod, a wrong argument is no failure of the job."""
    wrong_argument = isinstance(error, _herringbone.NamedError) and not str(error).startswith(SHUT_DOWN)
    return ValueError(str(error)) if wrong_argument else failed(error)


def failed(error: Exception) -> HorovodInternalError:
    """Why the job cannot continue, with advice for a program of Horovod."""
    return HorovodInternalError(advised(str(error), "horovod"))


def _keep(running: _Running) -> int:
    number = next(_numbers)
    _running[number] = running
    return number
