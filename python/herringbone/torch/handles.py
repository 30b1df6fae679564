"""What a process gives the others so that they can form a group with it: torch calls it a reconfigure handle."""

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
    """Where a process can be met, and who may call there: whoever has the handle."""

    host: str
    port: int

    secret: str
    """It distinguishes this handle's group and process from all others, and opens its place to meet."""

    rank: int
    """Of the process in the group, or the rank that it began with."""

    formations: int
    """How often the group has been formed in this process: handles from before and after a formation differ."""

    def write(self) -> str:
        """The text that torch hands on."""
        return json.dumps({"herringbone": VERSION, **asdict(self)}, sort_keys=True)

    @classmethod
    def read(cls, text: object) -> Handle:
        """The handle that ``text`` is.

        Raises:
            ArgumentError: it is none, or one of another version.
        """
        try:
            values = json.loads(text) if isinstance(text, str) else {}
            version = values.pop("herringbone", None)
            handle = cls(**values) if version == VERSION else None
        except (ValueError, TypeError, AttributeError):
            version, handle = None, None
        if version is not None and version != VERSION:
            raise ArgumentError(
                f"reconfigure: a handle is of version {version}, and this process knows version {VERSION}; "
                "install the same herringbone for all members"
            )
        if handle is None:
            raise ArgumentError(
                f"reconfigure: {str(text)[:60]!r} is no handle of herringbone; pass what get_reconfigure_handle() has "
                "given each member"
            )
        return handle

    @property
    def address(self) -> str:
        """``host:port``, as texts have it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def in_order(handles: Iterable[object]) -> list[Handle]:
    """The members of a new formation by their rank in it.

    A list is in order. Of a set, those come first that were in a group before, by their ranks there: a member that
    has the state of the training is rank 0.

    Raises:
        ArgumentError: there are none, one is there twice, or something else is among them.
    """
    if not isinstance(handles, (list, tuple, set, frozenset)):
        raise ArgumentError(f"reconfigure: handles is a {type(handles).__name__}; pass a list or a set of handles")
    known = [Handle.read(text) for text in handles]
    if not known:
        raise ArgumentError("reconfigure: there are no handles; pass one of each member, this process's among them")
    if isinstance(handles, (set, frozenset)):
        known.sort(key=lambda handle: (handle.formations == 0, handle.rank, handle.secret))
    places: dict[str, int] = {}
    for rank, handle in enumerate(known):
        first = places.setdefault(handle.secret, rank)
        if first != rank:
            raise ArgumentError(f"reconfigure: the handles of ranks {first} and {rank} are of one process; pass each once")
    return known


def digest(handles: list[Handle]) -> str:
    """Equal where two processes mean the same members in the same order, with handles from the same time."""
    return hashlib.sha256("\n".join(handle.write() for handle in handles).encode()).hexdigest()
