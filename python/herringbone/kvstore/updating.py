"""What a push does to a store's values, and what programs say about it: updaters, optimizers and gradient compression."""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Any

from ..communicator import Communicator
from ..dependency import Engine
from ..errors import ArgumentError, UnsupportedError
from .comm import Sent
from .compression import GradientCompression, compression_of
from .optimizer import Optimizer, agreed, chosen_optimizer
from .rules import Parameters, known_numbers
from .states import save_states, states_of
from .stored import Updater
from .values import view

__all__ = ["Updates"]


class Updates:
    """The part of a :class:`KVStore` that says what its pushes do."""

    _kind: str
    _communicator: Communicator | None
    _engine: Engine
    _stored: dict[Any, Any]

    def __init__(self) -> None:
        """With pushes that replace the values."""
        self._updater: Updater | None = None
        self._optimizer: Optimizer | None = None
        self._compression: GradientCompression | None = None
        self._sums: list[tuple[Optimizer, Any, Sent]] = []
        """Pushes that an optimizer has counted, whose sums may fail yet."""

    @property
    def optimizer(self) -> Optimizer | None:
        """What pushes apply; its numbers may be changed while the store is in use."""
        return self._optimizer

    def set_updater(self, updater: Updater | None) -> None:
        """Have ``updater(key, received, stored)`` change the stored value by each push; ``None``: a push replaces it.

        In a store of several workers it runs on each, on the same sum, so all workers pass the same one. What was pushed before
        meets the updater of its time. If it raises, the value is what it was before, and the next pull raises it.
        """
        self._stores("set_updater")
        if updater is not None and not callable(updater):
            raise TypeError(f"set_updater: updater is a {type(updater).__name__}, which cannot be called")
        self._updater, self._optimizer = updater, None

    def _set_updater(self, updater: Updater | None) -> None:
        """:meth:`set_updater`, by MXNet's name."""
        self.set_updater(updater)

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Have an optimizer change the stored values by each push. In a store of several workers rank 0's is taken by all.

        Each worker applies it to the same sum, where MXNet's servers do; the values are the same. What a program changes of the
        optimizer later, such as the learning rate, holds from its next push on, and what the optimizer keeps stays. All workers
        change the same: else the next push is a :class:`MismatchError` on all of them. The same optimizer again keeps its states.
        Stores that have one optimizer share its settings, and each has states of its own; the optimizer's ``states`` are the first one's.

        Args:
            optimizer: one that :func:`create_optimizer` has made, or its name.
        """
        self._stores("set_optimizer")
        chosen = chosen_optimizer("set_optimizer", optimizer)
        if self._communicator is not None:
            self._engine.wait(self._communicator)
            chosen = agreed(self._communicator, chosen)
        if not chosen._has_settings_of(self._optimizer):
            self._optimizer = chosen._of_user(self)

    def _update_of(self, call: str, key: Any) -> tuple[Updater | None, str]:
        """What the next push of a key does, and what workers compare of it. It counts the push."""
        optimizer = self._optimizer
        if optimizer is None:
            return self._updater, ""
        numbers = optimizer._next_numbers(call, key)
        usual = known_numbers(optimizer.name)
        others = ", ".join(f"{name}={given!r}" for name, given in numbers.items() if given != usual.get(name))
        return functools.partial(_step, optimizer, numbers), f" by {optimizer.name}({others})"

    @property
    def _updates_of_push(self) -> int:
        """How many updates of its key a push counts as."""
        return 1

    def _counted(self, key: Any, sent: Sent | None) -> None:
        """Remember a push that :meth:`_update_of` has counted, and its sum."""
        if self._optimizer is not None and sent is not None:
            self._sums.append((self._optimizer, key, sent))

    def _take_back(self) -> None:
        """Have no push counted whose sum has failed: the workers, which may differ in its key, then count alike again."""
        sums = [(optimizer, key, sent.failed) for optimizer, key, sent in self._sums]
        self._sums = [counted for counted, (_, _, failed) in zip(self._sums, sums) if failed is None]
        for optimizer, key, failed in sums:
            if failed:
                optimizer._take_back(key)

    def set_gradient_compression(self, params: dict[str, Any]) -> None:
        """Have pushes send ``{"type": "1bit", "threshold": 0.5}`` or ``{"type": "2bit", "threshold": 0.5}``, as MXNet does.

        What is lost goes with what is pushed to the key next. Values are dense float32 then; ``init`` and ``pull`` are exact. In a
        store of several workers all of them call it, and what comes back to the workers is coded, too, without a loss. The threshold
        of ``1bit`` is any finite number, that of ``2bit`` one above 0.

        Raises:
            ArgumentError: the arguments are wrong, or the type of store compresses nothing.
        """
        self._compression = compression_of(self._kind, params).after(self._compression)

    def compression_state_dict(self) -> dict[str, Any]:
        """What compression has left of this worker's pushes, for a checkpoint of this worker.

        Raises:
            ArgumentError: the store compresses nothing.
        """
        self._engine.wait_all()
        return self._compressing("compression_state_dict").state_dict()

    def load_compression_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what was left when :meth:`compression_state_dict` was called, after :meth:`set_gradient_compression`.

        Raises:
            TypeError, ArgumentError: it is not what that gave, or is another codec's; and nothing is changed.
        """
        self._engine.wait_all()
        self._compressing("load_compression_state_dict").load_state_dict(state)

    def _compressing(self, call: str) -> GradientCompression:
        if self._compression is None:
            raise ArgumentError(f"{call}: the store compresses nothing; call set_gradient_compression first")
        return self._compression

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file, and with ``dump_optimizer`` the optimizer's numbers. Only in a store of one process."""
        optimizer = self._of_one_process("save_optimizer_states")
        save_states("save_optimizer_states", pathlib.Path(fname), optimizer, dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Take the optimizer's state from a file of :meth:`save_optimizer_states`."""
        optimizer = self._of_one_process("load_optimizer_states")
        values = {key: stored.value for key, stored in self._stored.items()}
        held = states_of("load_optimizer_states", pathlib.Path(fname), optimizer, values)
        optimizer.states = held["states"]
        if held["params"] is not None:
            optimizer.params = held["params"]

    def _of_one_process(self, call: str) -> Optimizer:
        if self._communicator is not None:
            raise UnsupportedError(f"{call}: a store of several workers keeps no states in files; save them on your own")
        if self._optimizer is None:
            raise ArgumentError(f"{call}: the store has no optimizer; call set_optimizer first")
        self._settle()
        return self._optimizer

    def _stores(self, call: str) -> None:
        if self._kind == "horovod":
            raise UnsupportedError(
                f"{call}: a store of type 'horovod' stores nothing; use pushpull and broadcast, or 'dist_sync'"
            )

    def _settle(self) -> None:
        raise NotImplementedError


def _step(optimizer: Optimizer, numbers: Parameters, key: Any, received: Any, stored: Any) -> None:
    optimizer._step(key, numbers, view("push", received), view("push", stored))
