"""DDP's built-in communication hooks, which are C++ code and read futures that only C++ can complete."""

from __future__ import annotations

import functools
from typing import Any

from torch._C._distributed_c10d import BuiltinCommHookType
from torch.nn.parallel import DistributedDataParallel

from .coalescing import cpu_backend
from .collectives import Collectives

__all__ = ["mend_builtin_hooks"]


def mend_builtin_hooks() -> None:
    """Let DDP over Herringbone's groups take torch's hooks in Python, which do the same; others are as before."""
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
