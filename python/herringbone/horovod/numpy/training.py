"""Training with numpy arrays: parameters, gradients and optimizers as in ``horovod.mxnet``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..common.basics import size
from ..common.objects import allgather_object, broadcast_object, gather_objects, send_object
from ..common.operations import Average, Sum, predivisor
from ..common.process_sets import ProcessSet, check_set, global_process_set
from ..common.util import split_list
from .operations import Array, allreduce_, broadcast_, grouped_allreduce_

__all__ = [
    "DistributedOptimizer",
    "DistributedTrainer",
    "Parameter",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
]


class Optimizer(Protocol):
    """An optimizer that changes weights by gradients, in place."""

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> Any:
        """Change ``weight`` by ``grad``; ``index`` identifies the parameter. All three can be lists."""


@dataclass
class Parameter:
    """A weight and its gradient, of the same shape; ``None`` until the first batch determines the shape."""

    data: Array | None
    grad: Array | None = None


class DistributedOptimizer:
    """An optimizer whose gradients are summed over all ranks first. It passes other attributes on to the optimizer."""

    def __init__(
        self,
        optimizer: Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Wrap ``optimizer``.

        Args:
            gradient_predivide_factor: gradients are divided by it before the sum, and by the rest of the average after it.
            num_groups: how many groups of gradients are reduced together, if ``update`` gets lists.
            process_set: the ranks that take part.
        """
        check_set(process_set, "DistributedOptimizer")
        self._optimizer, self._predivide = optimizer, predivisor(gradient_predivide_factor)
        self._num_groups, self._process_set = num_groups, process_set

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> Any:
        """Average the gradients over the ranks, in place, and let the optimizer update the weights."""
        several = isinstance(index, (tuple, list))
        named = [(str(at), gradient) for at, gradient in (zip(index, grad, strict=True) if several else [(index, grad)])]
        _average(named, self._num_groups if several else 0, self._predivide, self._process_set)
        return self._optimizer.update(index, weight, grad, state)


class DistributedTrainer:
    """Steps of an optimizer over parameters, with gradients of all ranks: ``trainer.step(batch_size)`` after each batch::

        trainer = hvd.DistributedTrainer({"weight": hvd.Parameter(weight)}, optimizer)
        trainer.step(batch_size)

    The optimizer has a method ``update(index, weight, grad, state)``.
    """

    def __init__(
        self,
        params: Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: Optimizer,
        optimizer_params: Mapping[str, Any] | None = None,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Train these parameters.

        Args:
            optimizer: :meth:`step` calls it for each parameter.
            optimizer_params: attributes to set on it, such as its learning rate.
            gradient_predivide_factor: gradients are divided by it before the sum, and by the rest of the average after it.
            prefix: the prefix of gradients' names, if several trainers run.
            num_groups: how many groups of gradients are reduced together.
            process_set: the ranks that take part.

        Raises:
            TypeError: ``optimizer`` is a DistributedOptimizer already, so gradients would be averaged twice.
        """
        if isinstance(optimizer, DistributedOptimizer):
            raise TypeError("DistributedTrainer takes the optimizer itself: a DistributedOptimizer would average gradients again")
        for name, value in (optimizer_params or {}).items():
            setattr(optimizer, name, value)
        self.parameters = list(params.values()) if isinstance(params, Mapping) else list(params)
        check_set(process_set, "DistributedTrainer")
        self._optimizer, self._predivide = optimizer, predivisor(gradient_predivide_factor)
        self._prefix, self._num_groups, self._process_set = prefix or "", num_groups, process_set
        self._states: dict[int, Any] = {}

    def allreduce_grads(self) -> None:
        """Average the gradients over the ranks, in place."""
        named = [(f"{self._prefix}{at}", each.grad) for at, each in enumerate(self.parameters) if each.grad is not None]
        _average(named, self._num_groups, self._predivide, self._process_set)

    def step(self, batch_size: int = 1) -> None:
        """Average the gradients over the ranks and their batches, and change the parameters."""
        self.allreduce_grads()
        for at, each in enumerate(self.parameters):
            if each.grad is None:
                continue
            each.grad /= batch_size
            if at not in self._states and hasattr(self._optimizer, "create_state"):
                self._states[at] = self._optimizer.create_state(at, each.data)
            self._optimizer.update(at, each.data, each.grad, self._states.get(at))


def broadcast_parameters(params: Mapping[str, Array | Parameter], root_rank: int = 0, prefix: str | None = None) -> None:
    """Give every rank the arrays of ``root_rank``, in place.

    A :class:`Parameter` whose shape is not known yet gets a copy of the root's.

    Args:
        params: arrays or parameters by name, the same names on all ranks.
        prefix: the prefix of the names, if several models are sent.

    Raises:
        ValueError: ``params`` is neither.
    """
    if not isinstance(params, Mapping):
        raise ValueError(f"invalid params of type: {type(params)}")
    for name, value in sorted(params.items()):
        full = f"parameters.{prefix or ''}{name}"
        if not isinstance(value, Parameter):
            broadcast_(value, root_rank, full)
        elif not all(gather_objects(value.data is not None, f"{full}.known", global_process_set)):
            value.data = send_object(value.data, root_rank, full, global_process_set)
        elif value.data is not None:
            broadcast_(value.data, root_rank, full)


def _average(named: list[tuple[str, Array]], num_groups: int, predivide: float, process_set: ProcessSet) -> None:
    """Average gradients in place, the first parameters' first, because the next batch needs them soonest."""
    if size() == 1 or not named:
        return
    about: dict[str, Any] = {"op": Average, "process_set": process_set}
    if predivide != 1.0:
        ranks = process_set.size() or 1
        about.update(op=Sum, prescale_factor=1.0 / predivide, postscale_factor=predivide / ranks)
    if num_groups > 0:
        begun = 0
        for group in split_list(named, num_groups):
            grouped_allreduce_([gradient for _, gradient in group], name=f"gradients.{group[0][0]}", priority=-begun, **about)
            begun += len(group)
        return
    for at, (name, gradient) in enumerate(named):
        allreduce_(gradient, name=f"gradients.{name}", priority=-at, **about)
