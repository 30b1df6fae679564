"""The cleanup that torch omits if the body of its coalescing manager fails.

``_coalescing_manager``, and so ``batch_isend_irecv``, marks a group as collecting calls before its body and removes
the mark after it. An error in between leaves the mark: every later all_reduce, all_gather_into_tensor and
reduce_scatter_tensor of the group would be collected forever and never run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .collectives import collectives_of

__all__ = ["mend_coalescing"]


def mend_coalescing() -> None:
    """Clean up Herringbone's groups after a failed coalescing block; other backends' groups behave as before."""
    manager = c10d._coalescing_manager

    @contextlib.contextmanager
    @functools.wraps(manager)
    def mended(
        group: dist.ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
    ) -> Iterator[Any]:
        group = group or c10d._get_default_group()
        inside_another = group in c10d._world.pg_coalesce_state
        try:
            with manager(group, device, async_ops) as works:
                yield works
        except BaseException:
            ours = None if inside_another else collectives_of(group)
            if ours is not None:
                # Calls that were started in the block continue.
                ours.forget_coalescing()
                c10d._world.pg_coalesce_state.pop(group, None)
            raise

    for module in (c10d, dist):
        vars(module)[manager.__name__] = mended
