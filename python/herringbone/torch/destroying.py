"""How torch destroys groups: all of Herringbone's end, and torch has forgotten them before it is told what is wrong with one."""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..closing import tell
from .coalescing import cpu_backend
from .group import BackendHerringbone, ProcessGroupHerringbone
from .member import Member, leave_all

__all__ = ["mend_destroying"]


def mend_destroying() -> None:
    """Let ``destroy_process_group`` raise the errors of Herringbone's groups when it is done; other groups are torch's as before.

    torch shuts one group after the other, and stops at the first error: further groups stay open, and it keeps them all.
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
    """This process's memberships in the groups that torch would shut with ``group``."""
    known = c10d._world.pg_map
    shut = list(known) if group in (None, dist.group.WORLD) else [part for part in known if part is group]
    # A group of several backends is of torch's own class. Of others nothing is asked.
    parts = [cpu_backend(part) if type(part) is dist.ProcessGroup else part for part in shut]
    return {part.member for part in parts if isinstance(part, (ProcessGroupHerringbone, BackendHerringbone))}
