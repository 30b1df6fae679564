"""The operations of one collective call of torch, and how they are started."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .. import errors
from .._herringbone import Pending
from .compressed import current_compression
from .member import Member
from .priorities import current_priority
from .tensors import Finish, Folding, Lacking, source, target
from .work import StagedWork, Work, torch_error

__all__ = ["Batch", "span"]


class Caller(Protocol):
    """What a batch needs of the group that makes it."""

    member: Member

    def launched(self, work: Work) -> Work:
        """Note what was started, and hand it on."""


class Batch:
    """The operations of one collective call, before they are started."""

    __slots__ = ("_calls", "_group", "_name", "_seconds", "_waits", "finish")

    def __init__(self, group: Caller, name: str, seconds: float, waits: bool) -> None:
        """``waits``: the caller waits for the work before it does anything else."""
        self._group = group
        self._name = name
        self._seconds = seconds
        self._waits = waits
        self._calls: list[tuple[Any, ...]] = []
        self.finish: Finish = []

    def add(
        self,
        collective: str,
        dtype: str,
        count: int,
        read: torch.Tensor | None,
        write: torch.Tensor | None,
        op: str = "sum",
        root: int = 0,
        parts: tuple[list[int], list[int]] | None = None,
    ) -> None:
        """Add ``collective`` on ``count`` elements from ``read`` to ``write``, both with values in order.

        ``parts`` are the lengths of the parts to and from each rank, in place of ``count``, where they may differ.
        """
        output = span(write)
        input = output if read is write else span(read)
        keep = (read, write)
        seconds, priority = self._seconds, current_priority()
        compressed = current_compression()
        if (compressed is not None and (collective, dtype) != ("all_reduce", "f32")) or op not in ("sum", "average"):
            compressed = None
        mark = 0  # Of no purpose in particular.
        call = (collective, dtype, op, count, root, input, output, keep, seconds, priority, parts, mark, compressed)
        self._calls.append(call)

    def move_in_place(self, collective: str, dtype: str, tensor: torch.Tensor, scale: int, root: int) -> None:
        """Add ``collective`` on ``tensor``, which holds the input and receives the result."""
        staged = source(tensor)
        target(tensor, staged, self.finish)
        self.add(collective, dtype, staged.numel() * scale, staged, staged, "sum", root)

    def fold_in_place(
        self, collective: str, fold: Folding, tensor: torch.Tensor, root: int = 0, receives: bool = True
    ) -> None:
        """Add ``collective`` on ``tensor``, which holds the input and, if it ``receives`` one, gets the result."""
        staged = fold.staged(tensor)
        if receives:
            target(tensor, staged, self.finish)
        self.add(collective, fold.dtype, staged.numel() * fold.scale, staged, staged, fold.op, root)

    def at_once(
        self, collective: str, dtype: str, count: int, read: torch.Tensor, write: torch.Tensor
    ) -> None:
        """Run ``collective`` now, before those that were added."""
        communicator, keep = self._group.member.communicator, (read, write)
        try:
            communicator.run(
                collective, dtype, "sum", count, 0, span(read), span(write), keep, self._seconds, current_priority()
            )
        except errors.HerringboneError as error:
            raise torch_error(error, self._name) from None

    def work(self, tensors: list[torch.Tensor]) -> Work:
        """Start everything; ``tensors`` hold the result in the end. Where the caller waits, this does."""
        communicator, threads = self._group.member.communicator, self._group.member.threads
        handles: list[Pending] = []
        waits = not self._calls or (self._waits and len(self._calls) == 1)
        try:
            for call in self._calls:
                if waits:
                    communicator.run(*call)
                else:
                    handles.append(communicator.submit(*call))
        except errors.HerringboneError as error:
            raise torch_error(error, self._name) from None
        if waits:
            for step in self.finish:
                step()
            return Work((), (), tensors, (), threads)
        kind = StagedWork if self.finish else Work
        return self._group.launched(kind(handles, [self._name] * len(handles), tensors, self.finish, threads))


def span(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Address and length in bytes; the address is 0 where there is no memory for them."""
    if tensor is None:
        return 0, 0
    address, length = tensor.data_ptr(), tensor.nbytes
    if not address and length and not isinstance(tensor, Lacking):
        raise errors.UnsupportedError(
            f"herringbone got a tensor of shape {tuple(tensor.shape)} without memory: a fake or zero tensor, or one "
            "whose storage was freed; pass one with values"
        )
    return address, length
