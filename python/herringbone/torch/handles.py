"""Handles with which other processes can form a group with this one: torch calls them reconfigure handles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ..errors import ArgumentError

__all__ = ["Handle", "digest", "in_order"]

VERSION = 1


@dataclass(frozen=True)
class Handle:
    """The address at which a process can be met, and the key for it: any process with the handle is allowed."""

    host: str
    port: int

    secret: str
    """It identifies this handle's group and process, and is the key to the meeting point."""

    rank: int
    """The process's rank in the group, or the rank that it began with."""

    formations: int
    """How often the group has been formed in this process, so that handles from before and after a formation differ."""

    def write(self) -> str:
        """The handle as a text, which torch passes on."""
        return json.dumps({"herringbone": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def read(cls, text: object) -> Handle:
        """The handle in ``text``.

        Raises:
            ArgumentError: it is not a handle, or one of another version.
        """
        try:
            values = json.loads(text) if isinstance(text, str) else {}
            version = values.pop("herringbone", None)
            handle = cls(**values) if version == VERSION else None
        except (ValueError, TypeError, AttributeError):
            version, handle = None, None
        if version is not None and version != VERSION:
            raise ArgumentError(
                f"reconfigure: a handle has version {version}, but this process uses version {VERSION}; "
                "install the same herringbone for all members"
            )
        if handle is None:
            raise ArgumentError(
                f"reconfigure: {str(text)[:60]!r} is not a handle of herringbone; pass each member's result of "
                "get_reconfigure_handle()"
            )
        return handle

    @property
    def address(self) -> str:
        """The address as ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def in_order(handles: Iterable[object]) -> list[Handle]:
    """The members of a new formation by their rank in it.

    A list is in the order of ranks. In a set, members that were in a group before come first, by their ranks there, so that a
    member with the state of the training is rank 0.

    Raises:
        ArgumentError: the collection is empty, has a handle twice, or has something else.
    """
    if not isinstance(handles, (list, tuple, set, frozenset)):
        raise ArgumentError(f"reconfigure: handles is a {type(handles).__name__}; pass a list or a set of handles")
    known = [Handle.read(text) for text in handles]
    if not known:
        raise ArgumentError("reconfigure: there are no handles; pass one of each member, including this process's")
    if isinstance(handles, (set, frozenset)):
        known.sort(key=lambda handle: (handle.formations == 0, handle.rank, handle.secret))
    places: dict[str, int] = {}
    for rank, handle in enumerate(known):
        first = places.setdefault(handle.secret, rank)
        if first != rank:
            raise ArgumentError(f"reconfigure: the handles of ranks {first} and {rank} belong to one process; pass each once")
    return known


def digest(handles: list[Handle]) -> str:
    """A digest that is equal if two processes have the same members in the same order, with handles from the same time."""
    return hashlib.sha256("\n".join(handle.write() for handle in handles).encode()).hexdigest()
