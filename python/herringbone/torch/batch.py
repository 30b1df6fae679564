"""The operations of one collective call of torch, and how they are started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import errors
from .priorities import current_priority
from .tensors import Finish, source, target
from .work import Work, torch_error

if TYPE_CHECKING:
    from .collectives import Collectives

__all__ = ["Batch", "span"]


class Batch:
    """The operations of one collective call, before they are started."""

    __slots__ = ("_calls", "_group", "_name", "_seconds", "_waits", "finish")

    def __init__(self, group: Collectives, name: str, seconds: float, waits: bool) -> None:
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
    ) -> None:
        """Add ``collective`` on ``count`` elements from ``read`` to ``write``, both with values in order."""
        output = span(write)
        input = output if read is write else span(read)
        keep = (read, write)
        self._calls.append(
            (collective, dtype, op, count, root, input, output, keep, self._seconds, current_priority())
        )

    def add_in_place(
        self, collective: str, dtype: str, tensor: torch.Tensor, scale: int = 1, op: str = "sum", root: int = 0
    ) -> None:
        """Add ``collective`` on ``tensor``, which holds the input and receives the result."""
        staged = source(tensor)
        if staged is not tensor:
            target(tensor, staged, self.finish)
        self.add(collective, dtype, staged.numel() * scale, staged, staged, op, root)

    def work(self, tensors: list[torch.Tensor]) -> Work:
        """Start everything; ``tensors`` hold the result in the end. Where the caller waits, this does."""
        member = self._group.member
        try:
            if self._waits and len(self._calls) == 1:
                member.communicator.run(*self._calls[0])
                for step in self.finish:
                    step()
                return Work(self._name, (), tensors, (), member.threads)
            handles = [member.communicator.submit(*call) for call in self._calls]
        except errors.HerringboneError as error:
            raise torch_error(error) from None
        return self._group.launched(Work(self._name, handles, tensors, self.finish, member.threads))


def span(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Address and length in bytes."""
    if tensor is None:
        return 0, 0
    address, length = tensor.data_ptr(), tensor.nbytes
    if not address and length:
        raise errors.UnsupportedError(
            f"herringbone got a tensor of shape {tuple(tensor.shape)} without memory: a fake or zero tensor, or one "
            "whose storage was freed; pass one with values"
        )
    return address, length
