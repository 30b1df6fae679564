"""A process's membership in one group, which a process group and its backend for a device share."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any, cast

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from .. import errors
from .._herringbone import Communicator, Device, DeviceGroup
from ..closing import at_exit, close_each, leave_behind
from ..kinds import BARRIER
from ..options import Options
from .callbacks import callback_threads, close_callback_threads
from .devices import Accelerator
from .local_forming import decided
from .local_sums import LocalSums
from .rendezvous import RendezvousStore
from .rendezvous_server import RendezvousServer
from .work import torch_error

__all__ = ["Member", "Unformed", "leave_all", "part_of", "world_members"]

ABORT_SECONDS = 1.0
"""How long an abort waits for its calls on devices, which fail at once unless one of them begins at that moment."""


class Unformed:
    """The placeholder for a communicator if the group is not formed yet, or could not be formed."""

    address = None

    def __init__(self, rank: int, size: int, why: str) -> None:
        """``rank`` and ``size`` are the group's until it is formed."""
        self.rank, self.size, self.why = rank, size, why

    def describe(self) -> str:
        """Why there is none."""
        return self.why

    def describe_as(self, name: str, description: str) -> None:
        """Do nothing: the communicator gets the setting again once it is made."""

    def close(self) -> None:
        """Do nothing, because there is no group to leave."""

    def abort(self) -> None:
        """Do nothing, because there is no group to leave."""

    def __getattr__(self, name: str) -> Any:
        raise torch_error(errors.ClosedError(self.why))


class Member:
    """One communicator, with the additions that torch needs."""

    options = Options()
    """The options with which the program made the group."""

    apart = False
    """Whether the group has another fabric than the default group, because it was re-formed."""

    is_world = False
    """Whether this is the membership in the default group."""

    formations = 0
    """How often the group has been formed in this process."""

    server: RendezvousServer | None = None
    """The server at which the others meet this process to re-form the group, once it has given them a handle."""

    rendezvous: RendezvousStore | None = None
    """The store of the group's present formation, if it was re-formed."""

    seconds: float
    """The default timeout of an operation."""

    calls = 0
    """How many calls of torch the group has had in this process."""

    barriers = 0
    """How many monitored barriers of the group this process has called."""

    timed = False
    """Whether works measure their time."""

    foreign: Mapping[str, str] = {}
    """The devices that the program has given to other backends of the group, and their names, where torch gives this one all tensors."""

    def __init__(
        self,
        communicator: Communicator | Unformed,
        timeout: timedelta,
        store: Store,
        ranks: list[int] | None = None,
    ) -> None:
        """``store`` is the part of a store that belongs to this life of the group; ``ranks`` are its members, if it is a
        subgroup.
        """
        # A group that is not formed raises an error with the reason when more than its place is used.
        self.communicator = cast(Communicator, communicator)
        self.forming = threading.Lock()
        self.formations = 0 if isinstance(communicator, Unformed) else 1
        self.ranks = list(range(communicator.size)) if ranks is None else ranks
        self.seconds = timeout.total_seconds()
        self.store = store
        # The threads are started with the first group: a process that forks has none before.
        self.threads = callback_threads()
        self._on_devices: dict[Device, DeviceGroup] = {}
        self._sums: dict[Device, LocalSums | str] = {}
        _open.append(self)

    def on_device(self, accelerator: Accelerator, tensor: torch.Tensor) -> DeviceGroup:
        """The group's calls for the device that has ``tensor``.

        Raises:
            UnsupportedError: the program has given the device to another backend, or its driver cannot be used.
            ClosedError: the group was left.
        """
        other = self.foreign.get(accelerator.device_type)
        if other is not None:
            raise errors.UnsupportedError(
                f"this group has {other} for the tensors of {accelerator.device_type}, and torch before 2.14 gives Herringbone all of "
                f'them; make a group for those tensors: new_group(backend="{other}"), or use torch 2.14 or later'
            )
        device = accelerator.device(tensor)
        group = self._on_devices.get(device)
        if group is None:
            if self not in _open:
                raise errors.ClosedError("this process has left the group, or aborted it; make a new one: new_group()")
            group = self._on_devices[device] = DeviceGroup(self.communicator, device)
        return group

    def local_sums(self, accelerator: Accelerator, tensor: torch.Tensor, seconds: float | None) -> LocalSums | None:
        """The group's calls whose ranks add up on their hosts first, for the device that has ``tensor``, if they do.

        The first call decides that among all ranks, within its timeout of ``seconds``, or the group's.
        """
        device = accelerator.device(tensor)
        sums = self._sums.get(device)
        if sums is None:
            if accelerator.is_capturing(tensor):
                return None  # the call is refused, and decides nothing
            within, number = self.seconds if seconds is None else seconds, len(self._sums)
            sums = decided(self.communicator, self.store, within, accelerator, tensor, number, self.rendezvous is not None)
            self._sums[device] = sums
        return sums if isinstance(sums, LocalSums) else None

    def unasked(self, accelerator: Accelerator, tensor: torch.Tensor) -> BaseException | None:
        """Why calls whose ranks add up on their hosts first have failed, on the device that has ``tensor``, if the program does not
        know.
        """
        sums = self._sums.get(accelerator.device(tensor))
        return sums.unasked() if isinstance(sums, LocalSums) else None

    def on_hosts(self) -> list[str]:
        """Whether ranks add up on their hosts first, or why not, in words: for each device that has been used."""
        return [sums.place.describe() if isinstance(sums, LocalSums) else sums for sums in self._sums.values()]

    def send_last_messages(self) -> None:
        """Tell the ranks of this host that this rank makes no more calls whose ranks add up first."""
        for sums in self._sums.values():
            if isinstance(sums, LocalSums):
                sums.send_last_message()

    def _leave_devices(self, at_most: float | None = None) -> None:
        """End the calls on devices; with ``at_most``, fail them at once and wait at most that many seconds."""
        groups, self._on_devices = [*self._on_devices.values()], {}
        sums, self._sums = [each for each in self._sums.values() if isinstance(each, LocalSums)], {}

        def leave() -> None:
            for each in sums:
                each.close() if at_most is None else each.abort()
            close_each(groups)

        if at_most is None:
            leave()
        elif sums or groups:
            leaving = threading.Thread(target=leave, name="herringbone-leaving", daemon=True)
            leaving.start()
            leaving.join(at_most)

    def subgroup(self, ranks: list[int], timeout: timedelta) -> Member:
        """The membership in a subgroup of these ``ranks``, which ascend.

        Members meet by their ranks and by the number of groups of exactly these ranks that each has made.
        """
        communicator = self.communicator.subgroup(ranks)
        store = PrefixStore(f"{communicator.name}/", part_of(self.store, ranks))
        member = Member(communicator, timeout, store, ranks)
        member.options = self.options
        return member

    def meet(self) -> None:
        """Return once all members have made the group. If one has not, the group is over, and all can make it again."""
        try:
            self.communicator.run((BARRIER, 0, 0, (0, 0), (0, 0), None, self.seconds, 0, None))
        except errors.HerringboneError:
            self.abort()
            raise

    def close(self) -> None:
        """Leave the group, if that has not happened yet, once the others have all data that they need from this rank.

        Raises:
            MismatchError: the ranks disagree about the last calls of the group. It is left all the same.
            PeerLostError: a rank has left the group without making one of its last calls.
        """
        owned: list[Any] = [self.rendezvous, self.server]
        self._leave_devices()
        if self in _open:
            _open.remove(self)
            owned.insert(0, self.communicator)
        errors = close_each(each for each in owned if each is not None)
        if errors:
            raise torch_error(errors[0]) from None

    def abort(self) -> None:
        """Leave the group at once: running operations fail with ``ClosedError``, and nothing waits for the others.

        It can be re-formed.
        """
        if self in _open:
            _open.remove(self)
        leave_behind(self.communicator)
        self._leave_devices(ABORT_SECONDS)

    def leave_to_form_anew(self, why: str) -> None:
        """Leave the group at once, as the first half of a new formation; until the second half, errors have the text
        ``why``."""
        old, rendezvous = self.communicator, self.rendezvous
        self.communicator, self.rendezvous = cast(Communicator, Unformed(old.rank, old.size, why)), None
        leave_behind(old)
        self._leave_devices(ABORT_SECONDS)
        if rendezvous is not None:
            rendezvous.close()

    def form(self, communicator: Communicator, rendezvous: RendezvousStore) -> None:
        """Become a member of a new formation; all counters restart on all ranks."""
        self.communicator, self.rendezvous, self.store = communicator, rendezvous, rendezvous
        self.ranks = list(range(communicator.size))
        self.formations += 1
        self.calls = self.barriers = 0
        self.apart = not self.is_world
        if self not in _open:
            _open.append(self)


def part_of(store: Store, ranks: list[int]) -> Store:
    """The part of a group's ``store`` for subgroups of these ``ranks``."""
    return PrefixStore(f"herringbone/ranks {','.join(map(str, ranks))}/", store)


_open: list[Member] = []
"""The groups of this process that it has not left, in the order of their creation."""


def leave_all(members: Collection[Member]) -> list[Exception]:
    """Leave the open ones of these groups, and return their errors.

    The oldest is left first. So the group of all ranks comes before its subgroups, and its end ends all of them. Each
    subgroup's own end could wait for other ranks; this way all of them wait at the same time. Ranks that add up on their hosts first
    send a last message before, for which the group of all ranks would wait.
    """
    left = [member for member in _open if member in members]
    for member in left:
        member.send_last_messages()
    return close_each(left)


def _close_all() -> list[Exception]:
    """Leave all groups, so that the other ranks do not treat this as a death; then end the callbacks' threads."""
    try:
        return leave_all(_open)
    finally:
        close_callback_threads()


at_exit(_close_all)


def world_members() -> list[Member]:
    """This process's memberships with their own fabrics: in the default group, and in groups that were formed separately."""
    formed = [member for member in _open if not isinstance(member.communicator, Unformed)]
    return [member for member in formed if member.is_world or member.apart]


# A forked child must not leave the parent's groups.
os.register_at_fork(after_in_child=_open.clear)
