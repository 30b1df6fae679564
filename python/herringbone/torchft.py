"""Herringbone for torchft: the group over which its ``Manager`` averages gradients while replicas come and go.

It needs the package ``torchft`` (or ``torchft-nightly``); ``import herringbone`` does not load it.
"""

from __future__ import annotations

from datetime import timedelta

from .needs import needs

needs("herringbone.torchft", "torch")

from torch._C._distributed_c10d import Store, Work

from .errors import HerringboneError
from .options import Options
from .torch.forming import Place, connect, note
from .torch.group import NAME
from .torch.group import ProcessGroupHerringbone as FormedGroup
from .closing import leave_behind
from .torch.work import torch_error

try:
    from torchft.process_group import ProcessGroupWrapper  # type: ignore[import-not-found,import-untyped,unused-ignore]
except ImportError as error:
    raise ImportError("herringbone.torchft needs torchft; pip install torchft-nightly") from error

__all__ = ["ProcessGroupHerringbone"]


class ProcessGroupHerringbone(ProcessGroupWrapper):  # type: ignore[misc,unused-ignore]  # torchft may not be installed
    """The group of all replicas with the same rank in their replica groups: the ``pg`` of torchft's ``Manager``.

    The manager re-forms it for each quorum, with the quorum's members. If a member dies in between, the others' running
    operations fail within seconds; the manager then skips the step and forms the group without that member.
    """

    def __init__(self, timeout: timedelta = timedelta(seconds=60), options: Options | None = None) -> None:
        """``timeout`` applies to each formation and to each operation."""
        super().__init__(timeout)
        self._options = options or Options()
        self._works: list[Work] = []
        self._error: Exception | None = None

    def _create_pg(self, store: Store, rank: int, world_size: int) -> FormedGroup:
        """A group of the processes that share ``store``. torch does not know it, and it belongs to no other group.

        The store belongs to one quorum, so no other process replaces a replica that cannot use a setting: each quorum is a
        first meeting, which then fails at once on all its replicas. The manager skips the step, and asks for the next quorum.
        """
        self._works, self._error = [], None
        place = Place(store, rank, world_size, self._timeout, group_id="", global_ranks_in_group=[])
        try:
            member = note(connect(place, self._options, store, nameless=True), self._options, is_world=False)
        except HerringboneError as error:
            raise torch_error(error) from None
        member.apart = True
        return FormedGroup(member, NAME)

    def _wrap_work(self, work: Work, opts: object) -> Work:
        self.errored()
        self._works.append(work)
        return work

    def errored(self) -> Exception | None:
        """Why an operation of the present formation has failed; ``None`` if none has."""
        running = []
        for work in self._works:
            if not work.is_completed():
                running.append(work)
            elif self._error is None and isinstance(error := work.exception(), Exception):
                self._error = error
        self._works = running
        return self._error

    def abort(self, errored: bool = True) -> None:
        """Leave the group at once: running operations fail with ``ClosedError``, on the other ranks with ``PeerLostError``."""
        group = self._pg
        super().abort(errored)
        if group is not None:
            leave_behind(group.member.communicator)

    def shutdown(self) -> None:
        """Leave the group once the others have all data that they need from this rank."""
        group = self._pg
        try:
            super().shutdown()
        finally:
            if group is not None:
                group.shutdown()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of formations and operations that begin later."""
        super().set_timeout(timeout)
        if self._pg is not None:
            self._pg.set_timeout(timeout)

    def getBackendName(self) -> str:
        """The name under which torchft knows the group."""
        return "torchft-herringbone"
