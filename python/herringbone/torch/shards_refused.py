"""Refuses models and optimizers that cannot be trained by shards, by name, before the first step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ..errors import UnsupportedError
from ..unlike import unlike_its_memory
from .tensors import FOLDED

__all__ = ["CallCounts", "ParameterStates", "check_model", "check_optimizer", "inner_model", "is_dtensor"]

SUMS = "they sum over workers within a forward or backward pass, so results depend on the number of workers"


def inner_model(model: Any) -> nn.Module:
    """The model that a DistributedDataParallel wraps, or the model itself.

    DistributedDataParallel would sum over workers in every backward pass. Its buckets change between the first and the second
    pass, so workers with different numbers of shards would disagree.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    if not isinstance(model, nn.Module):
        raise TypeError(f"Shards: model is a {type(model).__name__}, not a torch.nn.Module")
    return model


def check_model(model: nn.Module) -> None:
    """Raises:
    UnsupportedError: the model contains something that cannot be trained by shards.
    """
    for name, module in model.named_modules():
        kind = type(module).__name__
        where = f"Shards: {name or 'the model'} is a {kind}"
        if isinstance(module, nn.SyncBatchNorm) or kind == "SyncBatchNorm":
            raise UnsupportedError(f"{where}: {SUMS}; use torch.nn.BatchNorm1d, 2d or 3d, whose statistics are a shard's")
        if kind in ("FullyShardedDataParallel", "FSDPModule") or any(of.__name__ == "FSDPModule" for of in type(module).__mro__):
            raise UnsupportedError(f"{where}: its parameters are divided among workers; pass the model without FSDP")
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise UnsupportedError(f"{where}: it sums over workers by itself; replace it by its .module")
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and _is_unmade(module):
            raise UnsupportedError(f"{where} whose parameters are not made yet; run the model once before")
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not trained:
        raise UnsupportedError("Shards: no parameter of the model requires a gradient")
    for name, parameter in trained:
        _check_parameter(name, parameter)
    for name, buffer in model.named_buffers():
        if buffer.device.type != "cpu" or not _is_dense(buffer):
            where = f"Shards: buffer {name} of shape {tuple(buffer.shape)} on {buffer.device}"
            raise UnsupportedError(f"{where} is not contiguous, or not on the CPU; make it with tensor.contiguous()")


def _is_unmade(module: Any) -> bool:
    return bool(module.has_uninitialized_params())


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, which is divided among ranks. Checked by name, because importing the class takes
    seconds."""
    return type(tensor).__name__ == "DTensor" or hasattr(tensor, "_local_tensor")


def _check_parameter(name: str, parameter: torch.Tensor) -> None:
    where = f"Shards: parameter {name}"
    if is_dtensor(parameter):
        raise UnsupportedError(f"{where} is a DTensor: its values are divided among workers; pass a model of plain tensors")
    if parameter.device.type != "cpu":
        raise UnsupportedError(f"{where} is on {parameter.device}; sums of shards need parameters on the CPU")
    if parameter.dtype not in FOLDED or not parameter.dtype.is_floating_point:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in FOLDED if kind.is_floating_point)
        raise UnsupportedError(f"{where} has the type {parameter.dtype}; gradients of {names} can be summed")
    reason = unlike_its_memory(parameter)
    if reason:
        raise UnsupportedError(f"{where} {reason}")
    if not parameter.is_contiguous() and not _is_dense(parameter):
        raise UnsupportedError(f"{where} has memory between its values, or overlaps itself; pass parameter.contiguous()")


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its values fill its memory, in some order."""
    expected = 1
    for stride, length in sorted((stride, length) for stride, length in zip(tensor.stride(), tensor.size()) if length > 1):
        if stride != expected:
            return False
        expected *= length
    return True


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Raises:
    TypeError: it is not an optimizer.
    UnsupportedError: it sums over workers itself, or has a parameter that is not the model's.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"Shards: optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    kind = type(optimizer).__name__
    if kind == "ZeroRedundancyOptimizer":
        raise UnsupportedError(
            f"Shards: the optimizer is a {kind}, which divides its state among workers; pass the one that it wraps"
        )
    if kind == "DistributedOptimizer" or hasattr(optimizer, "_allreduce_grad_async"):
        raise UnsupportedError(
            f"Shards: the optimizer is a {kind}, which sums over workers by itself; pass the one that it wraps"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnsupportedError(
            "Shards: LBFGS computes gradients several times a step, in a closure; pass an optimizer that does not"
        )
    own = {id(parameter) for parameter in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        strangers = [parameter for parameter in group["params"] if id(parameter) not in own]
        if strangers:
            shape = tuple(strangers[0].shape)
            text = f"Shards: parameter group {number} of the optimizer has a parameter of shape {shape} that is not the model's"
            raise UnsupportedError(f"{text}; pass the model that holds all of them")


class ParameterStates:
    """A model's parameters: a shard must not change them, because other workers' would stay unchanged."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._before = self._now()

    def check(self, shard: int, step: int) -> None:
        """Raises:
        UnsupportedError: one has changed since this was made.
        """
        now = self._now()
        if now == self._before:
            return
        name = next(name for name, before, after in zip(self._parameters, self._before, now) if before != after)
        raise UnsupportedError(
            f"Shards: shard {shard} of step {step} has changed parameter {name} in its forward or backward pass. For instance "
            "max_norm of an embedding does this. Change parameters between steps, after step.apply()"
        )

    def _now(self) -> list[tuple[int, int]]:
        return [(each.data_ptr(), each._version) for each in self._parameters.values()]


class CallCounts:
    """The number of calls of this process's process groups: a shard must make none."""

    def __init__(self) -> None:
        self._before = self._now()

    def check(self, shard: int, step: int) -> None:
        """Raises:
        UnsupportedError: a call was made since this object was made.
        """
        now = self._now()
        for name, count in now.items():
            if count != self._before.get(name, count):
                calls = count - self._before[name]
                raise UnsupportedError(
                    f"Shards: shard {shard} of step {step} has called {calls} collectives of the process group {name}. Workers "
                    "carry different numbers of shards, so their calls would not match; call it between steps"
                )

    @staticmethod
    def _now() -> dict[str, int]:
        if not dist.is_available() or not dist.is_initialized():
            return {}
        from torch.distributed.distributed_c10d import _world

        counts: dict[str, int] = {}
        groups: list[Any] = list(_world.pg_map)
        for group in groups:
            try:
                counts[str(group.group_name)] = group._get_sequence_number_for_group()
            except (AttributeError, RuntimeError):
                continue
        return counts
