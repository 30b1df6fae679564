"""The effect of a push on a store's values, and its settings: updaters, optimizers and gradient compression."""

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
    """The part of a :class:`KVStore` that decides what its pushes do."""

    _kind: str
    _communicator: Communicator | None
    _engine: Engine
    _stored: dict[Any, Any]

    def __init__(self) -> None:
        """At first pushes replace the values."""
        self._updater: Updater | None = None
        self._optimizer: Optimizer | None = None
        self._compression: GradientCompression | None = None
        self._sums: list[tuple[Optimizer, Any, Sent]] = []
        """Pushes that an optimizer has counted, although their sums can still fail."""

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer that pushes apply; its numbers can be changed while the store is in use."""
        return self._optimizer

    def set_updater(self, updater: Updater | None) -> None:
        """Let ``updater(key, received, stored)`` change the stored value at each push; with ``None`` a push replaces it.

        In a store of several workers each runs it on the same sum, so all workers pass the same updater. Earlier pushes use the
        earlier updater. If it raises, the value is unchanged, and the next pull raises the error.
        """
        self._stores("set_updater")
        if updater is not None and not callable(updater):
            raise TypeError(f"set_updater: updater is a {type(updater).__name__}, which cannot be called")
        self._updater, self._optimizer = updater, None

    def _set_updater(self, updater: Updater | None) -> None:
        """:meth:`set_updater`, by MXNet's name."""
        self.set_updater(updater)

    def set_optimizer(self, optimizer: Optimizer | str) -> None:
        """Let an optimizer change the stored values at each push. In a store of several workers all use rank 0's optimizer.

        Each worker applies it to the same sum, where MXNet's servers do; the values are the same. Later changes of the
        optimizer, such as of the learning rate, apply from the next push on, and the optimizer's state stays. All workers must
        make the same changes: otherwise the next push is a :class:`MismatchError` on all of them. Passing the same optimizer
        again keeps its states. Stores that use one optimizer share its settings, but have their own states; the optimizer's
        ``states`` are the first store's.

        Args:
            optimizer: the result of :func:`create_optimizer`, or a name.
        """
        self._stores("set_optimizer")
        chosen = chosen_optimizer("set_optimizer", optimizer)
        if self._communicator is not None:
            self._engine.wait(self._communicator)
            chosen = agreed(self._communicator, chosen)
        if not chosen._has_settings_of(self._optimizer):
            self._optimizer = chosen._of_user(self)

    def _update_of(self, call: str, key: Any) -> tuple[Updater | None, str]:
        """The effect of the next push of a key, and its description for workers to compare. This counts the push."""
        optimizer = self._optimizer
        if optimizer is None:
            return self._updater, ""
        numbers = optimizer._next_numbers(call, key)
        usual = known_numbers(optimizer.name)
        others = ", ".join(f"{name}={given!r}" for name, given in numbers.items() if given != usual.get(name))
        return functools.partial(_step, optimizer, numbers), f" by {optimizer.name}({others})"

    @property
    def _updates_of_push(self) -> int:
        """How many updates of its key a push is worth."""
        return 1

    def _counted(self, key: Any, sent: Sent | None) -> None:
        """Remember a push that :meth:`_update_of` has counted, and its sum."""
        if self._optimizer is not None and sent is not None:
            self._sums.append((self._optimizer, key, sent))

    def _take_back(self) -> None:
        """Take back the counts of pushes whose sums have failed, so that workers, which can differ in the key, have the same
        counts again."""
        sums = [(optimizer, key, sent.failed) for optimizer, key, sent in self._sums]
        self._sums = [counted for counted, (_, _, failed) in zip(self._sums, sums) if failed is None]
        for optimizer, key, failed in sums:
            if failed:
                optimizer._take_back(key)

    def set_gradient_compression(self, params: dict[str, Any]) -> None:
        """Compress pushes with ``{"type": "1bit", "threshold": 0.5}`` or ``{"type": "2bit", "threshold": 0.5}``, like MXNet.

        Each key has error feedback. Values must be dense float32; ``init`` and ``pull`` are exact. In a store of several
        workers all of them call it, and results are compressed, too, but without loss. The threshold of ``1bit`` can be any
        finite number, the threshold of ``2bit`` must be above 0.

        Raises:
            ArgumentError: the arguments are wrong, or this type of store cannot compress.
        """
        self._compression = compression_of(self._kind, params).after(self._compression)

    def compression_state_dict(self) -> dict[str, Any]:
        """The residuals of this worker's pushes, for a checkpoint of this worker.

        Raises:
            ArgumentError: the store does not compress.
        """
        self._engine.wait_all()
        return self._compressing("compression_state_dict").state_dict()

    def load_compression_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the residuals by the ones from :meth:`compression_state_dict`; call :meth:`set_gradient_compression` first.

        Raises:
            TypeError, ArgumentError: the state is not from that method, or belongs to another codec; nothing is changed.
        """
        self._engine.wait_all()
        self._compressing("load_compression_state_dict").load_state_dict(state)

    def _compressing(self, call: str) -> GradientCompression:
        if self._compression is None:
            raise ArgumentError(f"{call}: the store does not compress; call set_gradient_compression first")
        return self._compression

    def save_optimizer_states(self, fname: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """Write the optimizer's state to a file, and with ``dump_optimizer`` its numbers, too. Only in a store of one
        process."""
        optimizer = self._of_one_process("save_optimizer_states")
        save_states("save_optimizer_states", pathlib.Path(fname), optimizer, dump_optimizer)

    def load_optimizer_states(self, fname: str | os.PathLike[str]) -> None:
        """Load the optimizer's state from a file of :meth:`save_optimizer_states`."""
        optimizer = self._of_one_process("load_optimizer_states")
        values = {key: stored.value for key, stored in self._stored.items()}
        held = states_of("load_optimizer_states", pathlib.Path(fname), optimizer, values)
        optimizer.states = held["states"]
        if held["params"] is not None:
            optimizer.params = held["params"]

    def _of_one_process(self, call: str) -> Optimizer:
        if self._communicator is not None:
            raise UnsupportedError(f"{call}: a store of several workers cannot save states in files; save them yourself")
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
