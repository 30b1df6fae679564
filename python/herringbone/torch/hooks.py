"""What DDP asks of its group in C++ code that does not reach one in Python."""

from __future__ import annotations

import functools
from typing import Any

from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel

from .coalescing import cpu_backend
from .collectives import Collectives
from .group import ProcessGroupHerringbone

__all__ = ["mend_builtin_hooks", "mend_logging_data"]


def mend_builtin_hooks() -> None:
    """Let DDP over Herringbone's groups take torch's hooks in Python; others are as before.

    The built-in hooks do the same, but read futures that only C++ can complete.
    """
    ddp: Any = DistributedDataParallel
    register = ddp._register_builtin_comm_hook

    @functools.wraps(register)
    def mended(self: DistributedDataParallel, comm_hook_type: BuiltinCommHookType) -> None:
        group = self.process_group
        if not isinstance(group, Collectives) and not isinstance(cpu_backend(group), Collectives):
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
    """Let DDP's logging data have the name under which the program asked for a group of Herringbone's.

    A group in Gloo's place has its name, for programs that look for it. torch's C++ code takes a group that itself says
    this name for a group of Gloo's class.
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
