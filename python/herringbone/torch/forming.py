"""How this process joins a group: in the fabric of a larger one, or in its own fabric, which forms through torch's store."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store

from .. import errors
from .._herringbone import Communicator
from ..options import Options
from .member import Member, Unformed, part_of

__all__ = [
    "Place",
    "connect",
    "connect_through",
    "forget_world",
    "join",
    "not_formed_yet",
    "note",
    "own_host",
    "renew",
]

LIVES = "herringbone/lives"
"""The store's key that counts the group's lives so far; each life has its own keys."""

BEGUN, COUNTED = "begun", "counted"
"""The keys of a life: how many ranks have joined, and whether the life is counted."""

_world: Member | None = None
"""The default group, if it is Herringbone's."""


@dataclass(frozen=True)
class Place:
    """The place of this process in a group under construction, with the names of torch's own class for it."""

    store: Store
    """The larger group's ranks in this group, if this is a subgroup."""
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: list[int]


def join(opts: Any, options: Options | None, parent: Member | None = None) -> Member:
    """The membership for ``opts``: in the parent's or default group's fabric if possible, else in its own fabric.

    A fabric keeps the options that it was made with, and its groups are in ascending order.

    The members of a subgroup find each other by their ranks, and by the number of earlier groups of exactly these members.
    torch's name of the group is no help. It contains the number of groups that a process has made, so processes in different
    numbers of groups have different names for the same one. If making a group fails on a member, the engine aligns the counts.
    If a group is formed through the store, the store counts the groups that were formed.
    """
    ranks, parent = list(opts.global_ranks_in_group), parent or _world
    if ranks and parent is not None and options is None and sorted(ranks) == ranks:
        member = parent.subgroup(ranks, opts.timeout)
        if ends_with_barrier():
            member.meet()
        return member
    store = opts.store
    if ranks:
        store = part_of(store_of_all(store) if parent is None else parent.store, ranks)
    member = connect(opts, options or Options(), store, ranks or None)
    return note(member, options, is_world=not ranks)


def ends_with_barrier() -> bool:
    """Whether torch ends the creation of a group with a barrier through the store. The group's own barrier, made before that,
    finds the ranks that have not made it.
    """
    asked = getattr(dist.distributed_c10d, "_is_barrier_after_init", None)
    return asked is not None and asked() == 1


def store_of_all(store: Store) -> Store:
    """The store of the default group. A subgroup's ``store`` is a part of it for the group's name, and within that for the
    device."""
    for _ in ("the device", "the group's name"):
        store = store.underlying_store if isinstance(store, PrefixStore) else store
    return store


def not_formed_yet(opts: Any, options: Options | None) -> Member:
    """The membership in a group that has no members until it is reconfigured."""
    why = "the group has no members yet: it was made with enable_reconfigure=True; call reconfigure first"
    place = Unformed(max(opts.group_rank, 0), max(opts.group_size, 1), why)
    return note(Member(place, opts.timeout, opts.store), options, is_world=not opts.global_ranks_in_group)


def note(member: Member, options: Options | None, is_world: bool) -> Member:
    """Remember a membership that has its own fabric."""
    global _world
    member.options, member.is_world = options or Options(), is_world
    if is_world:
        _world = member
    return member


def renew(member: Member, options: Options) -> None:
    """Remember the default group again, which was aborted before it was re-formed."""
    if member.is_world and _world is None:
        note(member, options, is_world=True)


def forget_world(member: Member | None = None) -> None:
    """Forget the default group, if it is ``member``'s; without ``member`` in any case."""
    global _world
    if member is None or member is _world:
        _world = None


os.register_at_fork(after_in_child=forget_world)


def connect(opts: Any, options: Options, store: Store, ranks: list[int] | None = None, nameless: bool = False) -> Member:
    """Meet the other ranks through ``store``, the part of torch's store for this group and its earlier and later lives."""
    if not (options.token or os.environ.get("HERRINGBONE_TOKEN") or os.environ.get("HERRINGBONE_TOKEN_FILE")):
        keep_private(store)
    rank, size = opts.group_rank, opts.group_size
    # A store outlives destroy_process_group, and the next life can have more or fewer ranks. A rank that takes part only in larger
    # lives can reach its own before smaller ones have begun, so each size has its own count. The first life is for all sizes: ranks
    # with different sizes by mistake meet there, and get an error.
    life = f"{size}/{store.add(of_size(size), 0)}" if store.add(LIVES, 0) else "0"
    part = PrefixStore(f"herringbone/{life}/", store)
    # The host at the other end of the store's connection; none for a store of this machine only.
    seconds = opts.timeout.total_seconds()
    communicator = connect_through(options, rank, size, part, host_of(store), seconds, nameless)
    # It is counted once, before any of its ranks can ask for the next one.
    if part.add(BEGUN, 1) == 1:
        store.add(of_size(size), 1)
        store.add(LIVES, 1)
        part.set(COUNTED, "")
    else:
        part.wait([COUNTED])
    return Member(communicator, opts.timeout, part, ranks)


def of_size(size: int) -> str:
    """The store's key that counts the lives with this number of ranks."""
    return f"{LIVES}/{size}"


def connect_through(
    options: Options, rank: int, size: int, store: Store, host: str | None, seconds: float, nameless: bool = True
) -> Communicator:
    """Form a fabric of the processes that share ``store``; ``nameless``: they can belong to several launchers' jobs."""
    return Communicator.connect(
        rank=rank, size=size, store=store, store_host=host, timeout=seconds, nameless=nameless, **vars(options)
    )


def own_host(member: Member) -> str:
    """The address at which others reach this process."""
    address = member.communicator.address
    if not address:
        # A group of one process shows which address a group over this store has.
        probe = Communicator.connect(rank=0, size=1, store=HashStore(), store_host=host_of(member.store), reducers=())
        address = probe.address or "127.0.0.1:0"
        probe.close()
    return address.rpartition(":")[0].strip("[]")


def host_of(store: Store) -> str | None:
    """The host at the other end of a store's connection; none for a store of this machine only."""
    return getattr(innermost(store), "host", None)


def innermost(store: Store) -> Store:
    """The store below ``store``, without prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def file_of(store: Store) -> str | None:
    """The file of a store; none for stores without a file."""
    file = innermost(store)
    return getattr(file, "path", None) if isinstance(file, FileStore) else None


def keep_private(store: Store) -> None:
    """Check, before a key for the job is written, that only the owner can read ``store`` if it is a file."""
    path = file_of(store)
    if path is None:
        return
    with contextlib.suppress(FileExistsError):
        # A process that ends can remove the file, and the store would make a new one that all can read.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if os.stat(path).st_mode & 0o077 == 0:
        return
    try:
        os.chmod(path, 0o600)
    except PermissionError as error:
        problem = f"other users can read {path}, which will contain a key of this job"
        hint = "set HERRINGBONE_TOKEN to the same secret text for every worker, or let rank 0's user make the file"
        raise errors.AuthError(f"{problem}; {hint}") from error
