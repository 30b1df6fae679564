"""Timelines of the process: a file of what each rank does, for ``herringbone trace``."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from .. import errors
from .collectives import collectives_of
from .member import Member, world_members
from .work import torch_error

__all__ = ["mark_steps_if_asked", "start_timeline", "stop_timeline"]

VARIABLE = "HERRINGBONE_TIMELINE"


def start_timeline(directory: str | os.PathLike[str], group: dist.ProcessGroup | None = None) -> None:
    """Write a timeline of everything that this process does from now on, in all groups, into its own file in this directory.

    It marks the steps of the first optimizer that makes one. ``herringbone trace merge`` joins the ranks' files into one. An
    earlier timeline ends.

    Args:
        directory: it is made if it is missing.
        group: by default the default group, or any group that was not formed separately from it.

    Raises:
        HerringboneError: the file cannot be written.
        RuntimeError: there is no group yet.
        TypeError: the group has another backend.
    """
    try:
        _member_of(group).communicator.start_timeline(os.fspath(directory))
    except errors.HerringboneError as error:
        raise torch_error(error) from None
    _steps.watch()


def stop_timeline(group: dist.ProcessGroup | None = None) -> None:
    """End the timeline, if one is being written. Its file is complete then.

    Raises:
        TypeError: the group has another backend.
    """
    if dist.is_initialized():
        _member_of(group).communicator.stop_timeline()


def mark_steps_if_asked() -> None:
    """Mark the steps of the optimizer if the environment requests timelines."""
    if os.environ.get(VARIABLE):
        _steps.watch()


def _member_of(group: dist.ProcessGroup | None) -> Member:
    if not dist.is_initialized():
        raise RuntimeError("a timeline needs a group: call init_process_group first")
    collectives = collectives_of(dist.group.WORLD if group is None else group)
    if collectives is None:
        raise TypeError("a timeline needs a group of the backend herringbone")
    return collectives.member


class _Steps:
    """Marks the steps of one optimizer: a program can have several, and its step consists of one step of each."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.optimizer: weakref.ref[Optimizer] | None = None

    def watch(self) -> None:
        """Mark steps from now on."""
        if self.handle is None:
            self.handle = register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """Called after an optimizer's step, when the program's next step begins."""
        known = None if self.optimizer is None else self.optimizer()
        if known is None:
            self.optimizer = weakref.ref(optimizer)
        elif known is not optimizer:
            return
        for member in world_members():
            member.communicator.mark_step()


_steps = _Steps()
