"""Groups of the ranks of one host, by backends of torch's own: what carries the steps that stay on a host."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, Store

__all__ = ["LocalGroup", "Until"]

Until = Callable[[Callable[[], bool]], None]
"""Returns once a condition holds, and raises if it is not to be waited for any more."""

OPS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
"""torch's ops by the engine's names."""

WITHOUT_END = timedelta(days=365)
"""NCCL's watchdog would end the process. Whoever uses the group has time limits of its own."""


class LocalGroup:
    """The ranks of a host in a group of torch's. One thread makes the calls, on its current stream.

    NCCL's calls return once they are queued there, Gloo's once they are done.
    """

    def __init__(self, backend: str, store: Store, rank: int, size: int, seconds: float, until: Until) -> None:
        """All ranks of the host meet through ``store``.

        Raises:
            RuntimeError: they did not, or the backend cannot be used here.
        """
        self._is_gloo, self._rank, self._until = backend == "gloo", rank, until
        # torch's stubs know no more of them than their names.
        classes: Any = dist
        self._native: Any
        if self._is_gloo:
            gloo = classes.ProcessGroupGloo
            options = gloo._Options()
            # The ranks share a host, and the name of this host may lead elsewhere.
            options._devices = [gloo.create_device(hostname="127.0.0.1")]
            options._timeout = timedelta(seconds=seconds)
            self._native = gloo(store, rank, size, options)
        else:
            self._native = classes.ProcessGroupNCCL(store, rank, size, WITHOUT_END)

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        """Replace the tensor by the fold over the ranks of the host."""
        options = dist.AllreduceOptions()
        options.reduceOp, options.asyncOp = OPS[op], False
        self._follow(self._native.allreduce([tensor], options))

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op: str) -> None:
        """Give each rank the fold of the inputs' part of its number."""
        if self._is_gloo:
            # Gloo's own does the same, and tells nobody when it is done but who waits for it.
            whole = input.clone()
            self.all_reduce(whole, op)
            output.copy_(whole[self._rank * output.numel() :][: output.numel()])
            return
        options = dist.ReduceScatterOptions()
        options.reduceOp, options.asyncOp = OPS[op], False
        self._follow(self._native._reduce_scatter_base(output, input, options))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """Fill ``output`` with the ranks' inputs."""
        options = AllgatherOptions()
        options.asyncOp = False
        self._follow(self._native._allgather_base(output, input, options))

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Replace the tensor by that of the rank of the host with this number."""
        options = dist.BroadcastOptions()
        options.rootRank, options.asyncOp = root, False
        self._follow(self._native.broadcast([tensor], options))

    def _follow(self, work: Any) -> None:
        """Let what the current stream is given next come behind the call, where it has a stream of its own."""
        if work is None:
            return
        if self._is_gloo:
            self._until(work.is_completed)
        work.wait()

    def close(self) -> None:
        """Leave the group, whose calls are over."""
        native, self._native = self._native, None
        if native is not None and not self._is_gloo:
            native.shutdown()

    def abort(self) -> None:
        """Leave the group at once: no stream waits for the other ranks any more. Calls of Gloo are left behind."""
        native, self._native = self._native, None
        if native is None:
            return
        if self._is_gloo:
            # It cannot be aborted, and to destroy it, also at the end of the process, would wait for its calls.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))
            return
        with contextlib.suppress(RuntimeError):
            native.abort()
