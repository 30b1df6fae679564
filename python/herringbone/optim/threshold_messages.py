"""The calls between peers, over a group of Herringbone's or of torch's."""

from __future__ import annotations

import hashlib
import sys
import textwrap
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from ..communicator import Communicator
from ..errors import ArgumentError, MismatchError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Handle", "Messages", "agreed_space", "messages_of"]

_spaces: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""The number of spaces of tags of each group."""


class Handle(Protocol):
    """A running message. Its array must not be touched until it is done."""

    def wait(self) -> object:
        """Return once it is done, or raise the error that prevents it."""

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""


class Messages(Protocol):
    """The calls that peers need from a group. Arrays are numpy's, contiguous."""

    group: Any
    """The group under these calls."""
    rank: int
    size: int

    def send(self, array: Array, to: int, tag: int) -> Handle:
        """Begin to send."""

    def receive(self, array: Array, source: int, tag: int) -> Handle:
        """Begin to receive."""

    def broadcast(self, array: Array, root: int) -> None:
        """Give all ranks ``root``'s array, in place."""

    def average(self, array: Array) -> None:
        """Give all ranks the mean of their arrays, in place."""

    def gather(self, array: Array) -> Array:
        """All ranks' arrays, of the same length, as rows in the order of ranks."""


def messages_of(call: str, group: Any) -> Messages:
    """The calls over a :class:`Communicator`, or a group of ``torch.distributed``; ``None`` is torch's default one.

    Raises:
        TypeError: it is neither.
        ArgumentError: there is no default group, or this rank is not in the group.
    """
    if isinstance(group, Communicator):
        return _OfCommunicator(group)
    torch = sys.modules.get("torch")
    distributed = None if torch is None else torch.distributed
    if distributed is None or not distributed.is_available() or (group is None and not distributed.is_initialized()):
        raise ArgumentError(f"{call}: there is no group; pass what herringbone.init() returns, or call init_process_group first")
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        raise TypeError(f"{call}: group is a {type(group).__name__}; pass a herringbone.Communicator or a process group of torch")
    if distributed.get_rank(group) < 0:
        raise ArgumentError(f"{call}: this rank is not in the group")
    return _OfTorch(distributed, group)


def agreed_space(call: str, messages: Messages, model: str) -> int:
    """An unused space of tags of these messages' group: all ranks call this, and get the same one.

    So messages that were never received, such as after a training that was left, are never confused with others. ``model``
    describes the values that must be the same on all ranks.

    Raises:
        MismatchError: they differ; on all ranks.
    """
    import numpy as np

    digest = np.frombuffer(hashlib.blake2b(model.encode(), digest_size=8).digest(), np.int64)[0]
    said = messages.gather(np.array([digest, _spaces.get(messages.group, 0)], np.int64))
    others = [rank for rank in range(messages.size) if said[rank, 0] != said[0, 0]]
    free = int(said[:, 1].max())
    _spaces[messages.group] = free + 1
    if others:
        names = ", ".join(str(rank) for rank in others)
        subject = f"rank {names} has" if len(others) == 1 else f"ranks {names} have"
        own = textwrap.shorten(model, 300, placeholder=" ...")
        raise MismatchError(
            f"{call}: {subject} parameters of other shapes, or another staleness, than rank 0; this rank, {messages.rank}, "
            f"has {own}; make the same model and pass the same staleness on all ranks"
        )
    return free


class _OfCommunicator:
    """The calls over a group of Herringbone's."""

    def __init__(self, group: Communicator) -> None:
        self.group = group
        self.rank, self.size = group.rank, group.size

    def send(self, array: Array, to: int, tag: int) -> Handle:
        handle: Handle = self.group.send(array, to, tag, async_op=True)
        return handle

    def receive(self, array: Array, source: int, tag: int) -> Handle:
        handle: Handle = self.group.recv(array, source, tag, async_op=True)
        return handle

    def broadcast(self, array: Array, root: int) -> None:
        self.group.broadcast(array, root)

    def average(self, array: Array) -> None:
        self.group.all_reduce(array, "average")

    def gather(self, array: Array) -> Array:
        gathered: Array = self.group.all_gather(array)
        return gathered.reshape(self.size, -1)


class _TorchHandle:
    def __init__(self, work: Any) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()

    def done(self) -> bool:
        return bool(self._work.is_completed())


class _OfTorch:
    """The calls over a group of torch's."""

    def __init__(self, distributed: Any, group: Any) -> None:
        self._distributed, self.group = distributed, distributed.group.WORLD if group is None else group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)

    def send(self, array: Array, to: int, tag: int) -> Handle:
        return _TorchHandle(self._distributed.isend(_tensor(array), group=self.group, tag=tag, group_dst=to))

    def receive(self, array: Array, source: int, tag: int) -> Handle:
        return _TorchHandle(self._distributed.irecv(_tensor(array), group=self.group, tag=tag, group_src=source))

    def broadcast(self, array: Array, root: int) -> None:
        self._distributed.broadcast(_tensor(array), group=self.group, group_src=root)

    def average(self, array: Array) -> None:
        self._distributed.all_reduce(_tensor(array), group=self.group)
        array /= self.size

    def gather(self, array: Array) -> Array:
        import numpy as np

        gathered = np.empty((self.size, array.size), array.dtype)
        self._distributed.all_gather([_tensor(row) for row in gathered], _tensor(array), group=self.group)
        return gathered


def _tensor(array: Array) -> Any:
    return sys.modules["torch"].from_numpy(array)
