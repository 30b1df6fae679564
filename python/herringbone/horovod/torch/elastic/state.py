"""The state of a training with torch: models, optimizers, samplers, and plain objects."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ...common.basics import is_initialized, rank, size
from ...common.elastic import ObjectState, source_of_state
from ..functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ..passes import Passes
from .sampler import ElasticSampler

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Handles one attribute of a :class:`TorchState`; each subclass is for one type."""

    source = 0
    """The rank whose state :meth:`sync` gives to all."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Save the present state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Return to the last saved state."""
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Give all ranks the state of :attr:`source`."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Replace the object by another one."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler):
    """Handles a ``torch.nn.Module``."""

    def sync(self) -> None:
        """Give all ranks the parameters and buffers of :attr:`source`."""
        broadcast_parameters(self.value.state_dict(), self.source)


class OptimizerStateHandler(StateHandler):
    """Handles an optimizer, including the steps, learning rates and velocities of ``Compression.corrected`` if it uses that.

    Steps and rates are common to all ranks, because they determine the codec of a step. Each rank has its own velocities.
    """

    def save(self) -> None:
        """Save the present state."""
        super().save()
        self._saved_corrections = self._corrections()

    def restore(self) -> None:
        """Return to the last saved state: the repeated step has the same codec and velocities as before."""
        super().restore()
        if self._saved_corrections:
            self.value._take_corrections(self._saved_corrections)

    def sync(self) -> None:
        """Give all ranks the optimizer's state of :attr:`source`; each keeps its own velocities, and a new one has none."""
        broadcast_optimizer_state(self.value, self.source)
        mine = self._corrections()
        if mine:
            common = {name: kept for name, kept in mine.items() if name != "velocities"}
            self.value._take_corrections(mine | broadcast_object(common, self.source, "optimizer_corrections"))

    def _corrections(self) -> dict[str, Any]:
        return self.value._corrections() if isinstance(self.value, Passes) else {}


class SamplerStateHandler(StateHandler):
    """Handles an :class:`ElasticSampler`."""

    def sync(self) -> None:
        """Give all ranks the progress of :attr:`source`, and divide the remaining samples."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), self.source))


class TorchState(ObjectState):
    """A training's state: ``TorchState(model=model, optimizer=optimizer, epoch=0, batch=0)``.

    Each argument becomes an attribute. For models, optimizers and samplers their states are saved, for other objects the object
    itself.
    """

    _handlers: dict[str, StateHandler]

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Pass any number of models, optimizers, samplers and other objects."""
        kwargs.update(model=model, optimizer=optimizer)
        handlers = {name: _handler_of(value) for name, value in kwargs.items()}
        super().__setattr__("_handlers", {name: handler for name, handler in handlers.items() if handler is not None})
        for name, handler in self._handlers.items():
            super().__setattr__(name, handler.value)
        plain = {name: value for name, value in kwargs.items() if name not in self._handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def save(self) -> None:
        """Save the present state."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Return to the last saved state."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Give all ranks the same state: rank 0's, or the state of a rank that has been in the job longer."""
        source = source_of_state() if self._handlers and is_initialized() and size() > 1 else 0
        for handler in self._handlers.values():
            handler.source = source
            handler.sync()
            handler.save()
        super().sync()

    def reset(self) -> None:
        """The workers have changed: samplers divide the samples again."""
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers and hasattr(self, name):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)


_registry: list[tuple[type, type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, type[StateHandler]]]:
    """The handler of each type."""
    return _registry


def set_handler_registry(registry: list[tuple[type, type[StateHandler]]]) -> None:
    """Register handlers for other types."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> StateHandler | None:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)
