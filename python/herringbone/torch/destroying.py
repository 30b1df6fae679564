"""Destroying torch's groups: all of Herringbone's groups end, and torch has forgotten them before an error is raised."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..closing import tell
from .collectives import collectives_of
from .member import Member, leave_all

__all__ = ["mend_destroying"]


def mend_destroying() -> None:
    """Let ``destroy_process_group`` raise the errors of Herringbone's groups at its end; other groups behave as before.

    torch shuts one group after the other, and stops at the first error: further groups would stay open, and torch would keep
    all.
    """
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def mended(group: dist.ProcessGroup | None = None) -> None:
        errors = leave_all(members_of(group))
        try:
            destroy(group)
        finally:
            tell(errors)

    for module in (c10d, dist):
        vars(module)[destroy.__name__] = mended


def members_of(group: dist.ProcessGroup | None) -> set[Member]:
    """This process's memberships in the groups that torch shuts together with ``group``."""
    known = c10d._world.pg_map
    shut = list(known) if group in (None, dist.group.WORLD) else [part for part in known if part is group]
    return {part.member for part in map(collectives_of, shut) if part is not None}
