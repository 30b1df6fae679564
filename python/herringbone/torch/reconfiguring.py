"""Re-forming a group with members that the program picks: torch's reconfigure interface (2.14 and later)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d as c10d

from .. import errors
from .._herringbone import Communicator
from .handles import Handle, in_order
from .rendezvous import meet
from .member import Member
from .rendezvous_server import RendezvousServer
from .work import Finished, torch_error

__all__ = ["get_handle", "reconfigure", "renumber"]

CONNECT_SECONDS = 60.0
"""The most seconds for the members' connections once all are there, if the timeout is longer."""

Connect = Callable[[int, int, Store, str, float], Communicator]
"""A function that meets the other ranks: its rank, the number of ranks, a store, the store's host, seconds."""


def get_handle(member: Member, own_host: Callable[[], str]) -> str:
    """The handle that the others need to form a group with this process. It changes with every formation.

    ``own_host`` is the host at which others reach this process.
    """
    if member.server is None:
        member.server = RendezvousServer(own_host())
    server, now = member.server, member.communicator
    return Handle(server.host, server.port, server.secret, now.rank, member.formations).write()


def reconfigure(member: Member, opts: Any, connect: Connect) -> Finished:
    """Leave the present group, and re-form it from the processes whose handles are in ``opts``.

    Raises:
        ArgumentError: the handles are invalid, or lack this process's. The group is unchanged.
        HerringboneError: the members did not come together in time. The group is not formed; you can try again.
    """
    try:
        handles = in_order(opts.handles)
        rank = place_among(member, handles)
        round, seconds = int(opts.uuid), limit(member, opts.timeout)
        if not member.forming.acquire(blocking=False):
            raise errors.ConfigError("reconfigure: another thread reconfigures this group; wait for it first")
        try:
            form(member, round, handles, rank, seconds, connect)
        finally:
            member.forming.release()
    except errors.HerringboneError as error:
        raise torch_error(error) from None
    work = Finished()
    work.tensors = []
    return work


def place_among(member: Member, handles: list[Handle]) -> int:
    """This process's rank in the new group."""
    own = None if member.server is None else member.server.secret
    for rank, handle in enumerate(handles):
        if handle.secret == own:
            return rank
    known = f"none of the {len(handles)} handles belongs to this group in this process"
    raise errors.ArgumentError(f"reconfigure: {known}; pass the result of its get_reconfigure_handle(), too")


def limit(member: Member, timeout: timedelta | None) -> float:
    """The timeout of a formation, in seconds."""
    seconds = member.seconds if timeout is None else timeout.total_seconds()
    if seconds <= 0:
        raise errors.ArgumentError(f"reconfigure: timeout is {seconds:g} s; pass a longer one, or none")
    return seconds


def form(member: Member, round: int, handles: list[Handle], rank: int, seconds: float, connect: Connect) -> None:
    """Leave the group, meet the others, and connect to them."""
    deadline = time.monotonic() + seconds
    failed = f"the group has no members: reconfigure {round} of it has not succeeded; call reconfigure with another uuid"
    member.leave_to_form_anew(failed)
    store = meet(round, handles, rank, seconds)
    try:
        left = min(max(1.0, deadline - time.monotonic()), CONNECT_SECONDS)
        communicator = connect(rank, len(handles), store, store.host, left)
        store.formed()
    except errors.HerringboneError as error:
        lost = store.failed()
        store.close()
        raise lost or error from None
    except BaseException:
        store.close()
        raise
    member.form(communicator, store)


def renumber(group: dist.ProcessGroup) -> None:
    """Update the ranks of the default group in torch's own records, if ``group`` is that group."""
    ranks = getattr(c10d._world, "pg_group_ranks", None)
    if ranks is not None and group is dist.group.WORLD:
        ranks[group] = {rank: rank for rank in range(group.size())}
