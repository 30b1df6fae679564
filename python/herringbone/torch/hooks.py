"""Replacements for DDP's C++ code that does not reach a group in Python."""

from __future__ import annotations

import functools
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType, Reducer
from torch.nn.parallel import DistributedDataParallel

from .collectives import collectives_of
from .group import ProcessGroupHerringbone
from .work import Numbered

__all__ = ["mend_builtin_hooks", "mend_logging_data", "mend_uneven_inputs"]


def mend_builtin_hooks() -> None:
    """Let DDP over Herringbone's groups use torch's hooks in Python; other groups behave as before.

    The built-in hooks do the same, but read futures that only C++ can complete.
    """
    ddp: Any = DistributedDataParallel
    register = ddp._register_builtin_comm_hook

    @functools.wraps(register)
    def mended(self: DistributedDataParallel, comm_hook_type: BuiltinCommHookType) -> None:
        group = self.process_group
        if collectives_of(group) is None:
            register(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hooks = {
            BuiltinCommHookType.ALLREDUCE: default_hooks.allreduce_hook,
            BuiltinCommHookType.FP16_COMPRESS: default_hooks.fp16_compress_hook,
        }
        self.register_comm_hook(group, hooks[comm_hook_type])

    ddp._register_builtin_comm_hook = mended


def mend_logging_data() -> None:
    """Let DDP's logging data have the backend's name with which the program made a group of Herringbone's.

    A group in Gloo's place has Gloo's name there, for programs that look for it. The group itself does not report this name,
    because torch's C++ code would treat it as a group of Gloo's class.
    """
    ddp: Any = DistributedDataParallel
    read = ddp._get_ddp_logging_data

    @functools.wraps(read)
    def mended(self: DistributedDataParallel) -> dict[str, Any]:
        data: dict[str, Any] = read(self)
        if isinstance(self.process_group, ProcessGroupHerringbone):
            data["backend_name"] = self.process_group.title
        return data

    ddp._get_ddp_logging_data = mended


def mend_uneven_inputs() -> None:
    """Let DDP keep the work from which a backward pass learns how many ranks still have inputs (``join``).

    torch keeps only its C++ part, which waits forever once the part in Python is gone. Other backends' works are as before.
    """
    reducer: Any = Reducer
    set_handle = reducer._set_forward_pass_work_handle
    kept: WeakKeyDictionary[Reducer, dist.Work] = WeakKeyDictionary()

    @functools.wraps(set_handle, assigned=("__doc__", "__name__"), updated=())
    def mended(self: Reducer, work: dist.Work, use_static_world_size: bool) -> None:
        if isinstance(work, Numbered):
            kept[self] = work
        set_handle(self, work, use_static_world_size)

    reducer._set_forward_pass_work_handle = mended
