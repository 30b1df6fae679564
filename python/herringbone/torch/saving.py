"""Checkpoints that torch saves on a thread, while the training continues in the same group.

The thread's collectives come at different times on each rank, relative to the training's. So each save has its own line of
calls (:meth:`herringbone._herringbone.Communicator.line`), in the order in which the program starts the saves.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch.distributed as dist

from .collectives import collectives_of
from .futures import run_in

__all__ = ["mend_async_saves"]

MODULE = "torch.distributed.checkpoint._async_thread_executor"


def mend_async_saves() -> None:
    """Let saves over Herringbone's groups have their own lines, once the program has imported torch's checkpoints; others are
    as before."""
    if MODULE in sys.modules:
        _mend()


@functools.cache
def _mend() -> None:
    executor: Any = sys.modules[MODULE]._ThreadBasedAsyncCheckpointExecutor
    execute_save = executor.execute_save

    @functools.wraps(execute_save)
    def mended(self: Any, *arguments: Any, process_group: dist.ProcessGroup | None = None, **named: Any) -> Any:
        group: object = dist.group.WORLD if process_group is None else process_group
        ours = collectives_of(group)
        if ours is not None:
            line, submit = ours.member.communicator.line(), self._executor.submit

            def submit_in_line(function: Any, /, *values: Any, **more: Any) -> Any:
                return submit(run_in, line, functools.partial(function, *values, **more))

            self._executor.submit = submit_in_line
        return execute_save(self, *arguments, process_group=process_group, **named)

    executor.execute_save = mended
