"""The operations of one collective call of torch, and how they are started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from .. import errors
from .._herringbone import Extras, Kind, Pending
from ..kinds import Call, kind_of
from .compressed import current_compression
from .devices import Accelerator, DeviceHandle, StagedHandle, located, one_accelerator, tell_earlier
from .futures import in_turn
from .member import Member
from .priorities import current_priority
from .tensors import Finish, source, span, target, written
from .work import StagedWork, Work, torch_error

__all__ = ["Batch", "call_of", "run"]

CODED = frozenset(kind_of("all_reduce", "f32", op) for op in ("sum", "average"))
"""The calls whose messages can be compressed."""


class Caller(Protocol):
    """The part of a group that a batch needs."""

    member: Member

    def launched(self, work: Work) -> Work:
        """Note what was started, and hand it on."""


class Prepared(NamedTuple):
    """A call that is to be started."""

    call: Call

    accelerator: Accelerator | None
    """What has its memory, if it is not the host's."""

    tensor: torch.Tensor | None
    """One of its tensors."""


class Batch:
    """The operations of one collective call, before they are started."""

    __slots__ = ("_calls", "_group", "_name", "_seconds", "_waits", "finish")

    def __init__(self, group: Caller, name: str, seconds: float, waits: bool) -> None:
        """``waits``: the caller waits for the work before it does anything else."""
        self._group = group
        self._name = name
        self._seconds = seconds
        self._waits = waits
        self._calls: list[Prepared] = []
        self.finish: Finish = []

    def add(
        self,
        kind: Kind,
        count: int,
        read: torch.Tensor | None,
        write: torch.Tensor | None,
        root: int = 0,
        parts: tuple[list[int], list[int]] | None = None,
    ) -> None:
        """Add a call; see :func:`call_of`."""
        accelerator = one_accelerator(self._name, read, write)
        call = call_of(kind, count, read, write, self._seconds, root, parts)
        self._calls.append(Prepared(call, accelerator, write if read is None else read))

    def into(self, output: torch.Tensor) -> torch.Tensor:
        """Memory for a call's result, which ``output`` has in the end: its own memory if its values are in order there."""
        taken = source(output)
        target(output, taken, self.finish)
        written([output])
        return taken

    def in_place(self, kind: Kind, scale: int, staged: torch.Tensor, receiver: torch.Tensor | None, root: int = 0) -> None:
        """Add a call on ``staged``, which holds the input and then the result; ``receiver`` gets the result's values."""
        if receiver is not None:
            target(receiver, staged, self.finish)
        self.add(kind, staged.numel() * scale, staged, staged, root)

    def at_once(self, kind: Kind, count: int, read: torch.Tensor, write: torch.Tensor) -> None:
        """Make a call now, before the added ones."""
        run(self._group.member, self._name, call_of(kind, count, read, write, self._seconds))

    def work(self, tensors: list[torch.Tensor]) -> Work:
        """Start everything; ``tensors`` hold the result in the end. If the caller waits, this waits."""
        member, name = self._group.member, self._name
        is_staged = any(prepared.accelerator is not None for prepared in self._calls)
        if not self._calls or (self._waits and len(self._calls) == 1 and not is_staged):
            for prepared in self._calls:
                run(member, name, prepared.call)
            for step in self.finish:
                step()
            return Work((), (), tensors, (), member.threads)
        of = StagedWork if self.finish else Work
        try:
            handles = [submitted(member, *prepared) for prepared in self._calls]
            work = self._group.launched(of(handles, [name] * len(handles), tensors, self.finish, member.threads))
            if is_staged:
                tell_earlier(handles)
        except errors.HerringboneError as error:
            raise torch_error(error, name) from None
        return work


def submitted(member: Member, call: Call, accelerator: Accelerator | None, tensor: torch.Tensor | None) -> Pending | DeviceHandle:
    """Start a call on memory of the host, or of the accelerator that has ``tensor``."""
    if accelerator is None or tensor is None:
        return member.communicator.submit(call)
    group = member.on_device(accelerator, tensor)
    tensors: Sequence[torch.Tensor | None] = call[5]  # type: ignore[assignment]
    tensor = located(tensor)
    # Calls in turns come in another order on each rank, and torch's backends know none but that of the calls.
    sums = None if in_turn() else member.local_sums(accelerator, tensor, call[6])
    if sums is not None:
        if sums.takes(call):
            return sums.submit(call, tensor, group)
        sums.follow(tensors)
    pending = group.submit(call, accelerator.stream(tensor))
    earlier = member.unasked(accelerator, tensor)
    accelerator.lend({each for each in tensors if each is not None}, group.streams())
    handle = StagedHandle(pending, accelerator, tensor, earlier)
    if sums is not None:
        sums.note(handle, call, tensors)
    return handle


def call_of(
    kind: Kind,
    count: int,
    read: torch.Tensor | None,
    write: torch.Tensor | None,
    seconds: float,
    root: int = 0,
    parts: tuple[list[int], list[int]] | None = None,
) -> Call:
    """A call of ``kind`` on ``count`` elements from ``read`` to ``write``, both with values in order.

    ``parts`` are the lengths of the parts to and from each rank, instead of ``count``, if they can differ.
    """
    output = span(write)
    input = output if read is write else span(read)
    extras = current_compression()
    if extras is not None and kind not in CODED:
        extras = None
    if parts is not None:
        extras = Extras(parts=parts)
    return kind, count, root, input, output, (read, write), seconds, current_priority(), extras


def run(member: Member, name: str, call: Call) -> None:
    """Make a call of the collective that torch calls ``name``, and return when it is over."""
    try:
        member.communicator.run(call)
    except errors.HerringboneError as error:
        raise torch_error(error, name) from None
