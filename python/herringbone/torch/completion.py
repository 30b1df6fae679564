"""Works of groups with several backends, which torch gives its users in a wrapping of its own."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

__all__ = ["mend_completion"]

UNKNOWN = 100
"""Of torch's ``OpType``: that of its wrapping. The works of its own backends have others."""


def mend_completion() -> None:
    """Let torch's wrapping of works that Python backends return know whether they have finished.

    It hands on ``wait`` and ``get_future`` alone, and would say for ever that they have not.
    """
    work: Any = dist.Work
    is_completed = work.is_completed

    @functools.wraps(is_completed)
    def mended(self: dist.Work) -> bool:
        if is_completed(self):
            return True
        wrapped = type(self) is dist.Work and self._get_op_type() == UNKNOWN  # type: ignore[attr-defined]
        return wrapped and self.get_future().done()

    work.is_completed = mended
