"""The state of a model or an optimizer, and any plain object, from one rank to all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...torch.tensors import contiguous
from ..common.handles import synchronize
from ..common.objects import allgather_object, broadcast_object
from ..common.process_sets import global_process_set, index_in
from ..common.world import required
from .moves import broadcast_async_
from .submission import tensor_of

__all__ = ["allgather_object", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give every rank the tensors of ``root_rank``, in place.

    Args:
        params: ``model.state_dict()``, or a list of parameters or of pairs such as ``list(model.named_parameters())``.

    Raises:
        ValueError: ``params`` is none of these, or the rank does not exist.
    """
    index_in(global_process_set, root_rank, "broadcast_parameters")
    if isinstance(params, Mapping):
        named: list[Any] = sorted(params.items())
    elif isinstance(params, list):
        named = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}; pass model.state_dict(), or list(model.named_parameters())")
    waiting = []
    for name, tensor in named:
        held = tensor_of("broadcast_parameters", tensor).detach()
        travels = contiguous(held)
        waiting.append((held, travels, broadcast_async_(travels, root_rank, name)))
    for held, travels, handle in waiting:
        synchronize(handle)
        if travels.data_ptr() != held.data_ptr():
            held.copy_(travels)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None) -> None:
    """Give every rank the optimizer's state and options of ``root_rank``, even if the optimizer has not made a step yet.

    Args:
        model: not needed; Horovod's programs pass it.

    Raises:
        ValueError: the optimizer is L-BFGS, whose state fits only its own rank, or the rank does not exist.
        TypeError: it is not an optimizer of torch.
    """
    index_in(global_process_set, root_rank, "broadcast_optimizer_state")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"broadcast_optimizer_state: optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = optimizer.state_dict()
    if not state["state"]:
        # As in Horovod, whose programs can rely on it: an optimizer that has not made a step gets gradients of zeros.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
    given = broadcast_object(state, root_rank, "optimizer_state")
    if required().rank != root_rank:
        load_in_place(optimizer, given)


def load_in_place(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Load a state into the optimizer, and keep the groups' dictionaries, because a learning rate's schedule refers to them."""
    groups, states = optimizer.param_groups, optimizer.state
    torch.optim.Optimizer.load_state_dict(optimizer, state)
    for group, new in zip(groups, optimizer.param_groups, strict=True):
        group.update(new)
    states.clear()
    states.update(optimizer.state)
    optimizer.param_groups, optimizer.state = groups, states
