"""Compressed gradients for ``DistributedDataParallel``: a communication hook, and the environment's wish for one."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import errors
from .coalescing import cpu_backend
from .collectives import Collectives
from .compressed import compression

__all__ = ["CompressionHook", "compress_if_asked", "compression_hook"]

VARIABLE = "HERRINGBONE_COMPRESSION"

logger = logging.getLogger("herringbone")

Averaged = torch.futures.Future[torch.Tensor]


class CompressionHook:
    """A communication hook of ``DistributedDataParallel``; :func:`compression_hook` makes it."""

    def __init__(
        self,
        codec: str,
        *,
        feedback: bool = True,
        start_after: int = 0,
        exclude: Iterable[str] = (),
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
        name: str = "ddp",
    ) -> None:
        """As :func:`compression_hook` says."""
        self.codec, self.feedback, self.start_after, self.name = codec, feedback, start_after, name
        parameters = dict(named_parameters)
        unknown = [part for part in exclude if not any(part in known for known in parameters)]
        if unknown:
            raise errors.ConfigError(
                f"compression_hook: no parameter's name has {unknown[0]!r} in it; pass named_parameters=model.named_parameters() "
                "and parts of their names"
            )
        self._excluded = {id(parameters[known]) for known in parameters for part in exclude if part in known}
        self._steps: Counter[int] = Counter()
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._rebuilt: Counter[int] = Counter()
        self._plain_said = False

    def __call__(self, state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Averaged:
        """Average a bucket over the ranks of ``state``, a process group; ``None`` is the default one."""
        group = dist.group.WORLD if state is None else state
        index, buffer = bucket.index(), bucket.buffer()
        self._steps[index] += 1
        if self._steps[index] <= self.start_after or not self._suits(buffer):
            return averaged(buffer, group)
        kept = [gradient for parameter, gradient in pairs(bucket) if id(parameter) in self._excluded]
        plain = torch.cat([gradient.reshape(-1) for gradient in kept]) if kept else None
        with compression(self.codec, self._tensor(bucket) if self.feedback else None):
            reduced = averaged(buffer, group)
        if plain is None:
            return reduced

        def put_back(futures: torch.futures.Future[list[Averaged]]) -> torch.Tensor:
            result, others = (future.value() for future in futures.value())
            sizes = [gradient.numel() for gradient in kept]
            for gradient, part in zip(kept, others.split(sizes)):
                gradient.copy_(part.view_as(gradient))
            return result

        return torch.futures.collect_all([reduced, averaged(plain, group)]).then(put_back)

    def _suits(self, buffer: torch.Tensor) -> bool:
        if buffer.dtype == torch.float32:
            return True
        if not self._plain_said:
            logger.warning("herringbone: gradients of %s are not compressed with %s, which is for float32", buffer.dtype, self.codec)
            self._plain_said = True
        return False

    def _tensor(self, bucket: dist.GradBucket) -> str:
        """The bucket's name. With other parameters in it, or in another order, it is another tensor."""
        index = bucket.index()
        layout = tuple(id(parameter) for parameter in bucket.parameters())
        known = self._layouts.setdefault(index, layout)
        if known != layout:
            self._layouts[index] = layout
            self._rebuilt[index] += 1
            logger.info("herringbone: what %s has left of bucket %d is dropped: DDP has built its buckets anew", self.codec, index)
        return f"{self.name}.bucket{index}.{self._rebuilt[index]}"

    def state_dict(self, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
        """What is left of this hook's buckets on this rank, for a checkpoint of this rank."""
        mine = [saved for saved in communicator(group).residuals() if saved[0].startswith(f"{self.name}.")]
        left = {tensor: (steps, torch.frombuffer(bytearray(data), dtype=torch.float32)) for tensor, steps, data in mine if data}
        return {"left": left, "steps": dict(self._steps), "rebuilt": dict(self._rebuilt)}

    def load_state_dict(self, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
        """Go on with what was left when :meth:`state_dict` was called, on a rank of the same number."""
        native = communicator(group)
        others = [saved for saved in native.residuals() if not saved[0].startswith(f"{self.name}.")]
        mine = [(tensor, steps, left.numpy().tobytes()) for tensor, (steps, left) in state["left"].items()]
        native.restore_residuals(others + mine)
        self._steps, self._rebuilt = Counter(state["steps"]), Counter(state["rebuilt"])
        self._layouts.clear()


def compression_hook(
    codec: str,
    *,
    feedback: bool = True,
    start_after: int = 0,
    exclude: Iterable[str] = (),
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
    name: str = "ddp",
) -> CompressionHook:
    """A communication hook that averages gradients with compressed messages.

    Example::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, herringbone.torch.compression_hook("topk:0.01"))

    Args:
        codec: ``"bf16"``, ``"fp16"``, ``"int8"``, ``"onebit:THRESHOLD"``, ``"twobit:THRESHOLD"``, ``"sign"``,
            ``"topk:SHARE"``, ``"randomk:SHARE"``, ``"threshold:THRESHOLD"`` or ``"exact"``.
        feedback: what is lost of a bucket goes with the next step's.
        start_after: so many steps of each bucket go uncompressed first.
        exclude: parts of the names of parameters whose gradients are not compressed.
        named_parameters: ``model.named_parameters()``, where parameters are excluded.
        name: another one for each model of a program.
    """
    return CompressionHook(
        codec, feedback=feedback, start_after=start_after, exclude=exclude, named_parameters=named_parameters, name=name
    )


def averaged(tensor: torch.Tensor, group: dist.ProcessGroup) -> Averaged:
    """The tensor, averaged over the group in place, once it is."""
    future = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def pairs(bucket: dist.GradBucket) -> Iterable[tuple[torch.nn.Parameter, torch.Tensor]]:
    """The bucket's parameters with their gradients."""
    return zip(bucket.parameters(), bucket.gradients())


def communicator(group: dist.ProcessGroup | None) -> Any:
    """The native communicator of a group of torch's; ``None`` is the default group."""
    found: Any = dist.group.WORLD if group is None else group
    serving = found if isinstance(found, Collectives) else cpu_backend(found)
    if not isinstance(serving, Collectives):
        raise errors.ConfigError("this group is not Herringbone's: make it with the backend \"herringbone\"")
    return serving.member.communicator


def compress_if_asked() -> None:
    """Let DDP over Herringbone's groups compress its gradients if the environment asks for it, and say so once.

    Only buckets of gradients are compressed, and only where the program has registered no hook of its own.
    """
    codec = os.environ.get(VARIABLE, "").strip()
    if codec in ("", "none"):
        return
    ddp: Any = DistributedDataParallel
    forward, counter = ddp._pre_forward, Counter[str]()

    @functools.wraps(forward)
    def hooked(self: Any, *inputs: Any, **named: Any) -> Any:
        if not getattr(self, "_herringbone_asked", False):
            self._herringbone_asked = True
            group = self.process_group
            serves = isinstance(group, Collectives) or isinstance(cpu_backend(group), Collectives)
            if serves and not self._comm_hooks:
                if not counter:
                    logger.warning("herringbone: %s=%s: DDP's gradients are compressed, with feedback", VARIABLE, codec)
                counter["models"] += 1
                hook = CompressionHook(codec, name=f"ddp{counter['models']}")
                self.register_comm_hook(group, hook)
        return forward(self, *inputs, **named)

    ddp._pre_forward = hooked
