"""LocalSGD and PostLocalSGD: ranks train alone and average their parameters periodically."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..errors import ArgumentError, UnsupportedError
from ..names import Codec
from .averaging import Averaging, OnChange
from .exchange import BUCKET_BYTES, Exchange, Wire
from .flat import Array, FlatParameters
from .rounds import Rounds, WarmUp
from .saved import count_of, list_of

__all__ = ["LocalSGD", "PostLocalSGD"]


class LocalSGD(Averaging):
    """Average the parameters of all ranks after every ``sync_every`` steps of an optimizer (Stich, ICLR 2019)::

        with herringbone.optim.LocalSGD(model, optimizer, sync_every=8):
            for inputs, targets in batches:
                optimizer.zero_grad()
                criterion(model(inputs), targets).backward()
                optimizer.step()

    The training loop stays as it is. ``model`` must not be a DistributedDataParallel, which would sum the gradients at every
    step. All ranks begin with the parameters of rank 0. The optimizer's state, such as momentum, and the model's buffers, such
    as batch norm's, are not averaged.

    Ranks can make different numbers of steps in a round: each passes its own ``sync_every``, or calls :meth:`sync`. A round
    takes as long as the slowest rank's steps, and the group's timeout has to be longer.

    It keeps one copy of the parameters on the CPU, and two more while an exchange runs.
    """

    _call = "LocalSGD"

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
        group: Any = None,
        *,
        wire: Codec | None = None,
        feedback: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
        elastic: bool = False,
        least: int = 1,
        wait: float = 0.0,
        on_change: OnChange | None = None,
    ) -> None:
        """Join the other ranks; all of them call this.

        Args:
            model: a module, or its parameters; parameters that require no gradient are left alone.
            optimizer: of torch, over these parameters.
            sync_every: the number of steps between two averages.
            group: a group of torch (backend ``"herringbone"``), or a communicator; by default torch's default group, or without
                one the group from :func:`herringbone.init`.
            wire: a codec for parameters of at most 32 bits, as in :meth:`herringbone.Communicator.all_reduce`.
            feedback: whether to use error feedback with the codec.
            bucket_bytes: the most bytes of one all-reduce.
            elastic: if a rank is lost in a round, the others repeat its exchange, and new processes join between rounds; the
                ranks form a :class:`herringbone.Elastic`.
            least, wait, on_change: for elastic members, as in :class:`herringbone.Elastic`.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            ConfigError: the process group has another backend.
            ArgumentError: another rank has another class, wire, ``bucket_bytes`` or shapes of parameters.
            HerringboneError: the ranks did not come together.
        """
        rounds = Rounds.checked(self._call, sync_every)
        super().__init__([model], optimizer, rounds, Wire(self._call, wire, feedback, bucket_bytes))
        self._follow_buffers(model)
        self._border = self._fragments[0].read()
        self._join(group, elastic, least=least, wait=wait, on_change=on_change)

    def _own_state(self) -> dict[str, Any]:
        return {"border": FlatParameters.tensors(self._border)}

    def _load_own_state(self, call: str, state: Mapping[str, Any]) -> None:
        self._border = self._fragments[0].arrays(call, state, "border")

    def _common(self) -> list[list[Array]]:
        return [self._border]

    def _load_common(self, common: list[list[Array]], is_new: bool) -> None:
        [self._border] = common
        self._fragments[0].write(self._border)

    def _contribution(self, fragment: int) -> list[Array]:
        return self._fragments[fragment].read()

    def _apply(self, fragment: int, averages: list[Array]) -> None:
        self._fragments[fragment].write(averages)
        self._border = averages


class PostLocalSGD(LocalSGD):
    """Average gradients before each of the first steps, and parameters periodically after these (Lin et al., ICLR 2020)::

        with herringbone.optim.PostLocalSGD(model, optimizer, sync_every=8, warmup_steps=100):
            for inputs, targets in batches:
                ...  # a training loop, as without it

    It has the same results as torch's ``PostLocalSGDOptimizer`` with a ``PeriodicModelAverager`` of the same numbers. There, a
    DistributedDataParallel averages gradients over all ranks in the warm-up and not at all later. The first average of
    parameters follows the first step after the warm-up. In the warm-up an optimizer's step takes no closure. In all other
    respects it is a :class:`LocalSGD`.
    """

    _call = "PostLocalSGD"

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        sync_every: int,
        warmup_steps: int,
        group: Any = None,
        **options: Any,
    ) -> None:
        """Join the other ranks; all of them call this.

        Args:
            model, optimizer, sync_every, group: as in :class:`LocalSGD`.
            warmup_steps: how many synchronous steps come first.
            options: the other arguments of :class:`LocalSGD`. A codec also applies to averages of gradients.

        Raises:
            TypeError, ValueError, ConfigError, HerringboneError: as in :class:`LocalSGD`.
        """
        self._warm_up = WarmUp.checked(self._call, sync_every, warmup_steps)
        self._made = 0
        self._skips = False
        super().__init__(model, optimizer, sync_every, group, **options)

    def _own_settings(self) -> dict[str, str]:
        return {"warmup_steps": str(self._warm_up.warmup_steps)}

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "made": self._made}

    def _load_own_state(self, call: str, state: Mapping[str, Any]) -> None:
        made = count_of(call, state, "made")
        super()._load_own_state(call, state)
        self._made = made

    def _loaded_averages(self, call: str, state: Mapping[str, Any]) -> list[Array]:
        flat = self._fragments[0]
        if not self._warm_up.sums_gradients(count_of(call, state, "made")):
            return super()._loaded_averages(call, state)
        *given, last = list_of(call, state, "averages") or [()]
        gradients, present = flat.checked(call, "state's 'averages'", given), np.array(last)
        if present.shape != (len(flat.parameters),):
            raise ArgumentError(f"{call}: the state's 'averages' are for {present.size} parameters, not {len(flat.parameters)}")
        return [*gradients, present]

    def _before_step(self, closure: Any = None) -> None:
        if not self._warm_up.sums_gradients(self._made):
            return
        if closure is not None:
            raise UnsupportedError(
                f"{self._call}: the gradients of a closure come too late to be averaged; call optimizer.step() without one"
            )
        flat = self._fragments[0]
        if self._pending is None:
            self._pending = Exchange([*flat.read_gradients(), flat.present_gradients()], self._wire, "gradients")
        averages = self._members.settle(self._pending)
        self._pending = None
        if averages is None:
            # This rank has the other ranks' state after this step, so it does not make the step itself.
            self._optimizer.zero_grad(set_to_none=True)
            self._skips = True
            return
        # A parameter without a gradient on all ranks gets none, so that the optimizer and its weight decay leave it alone.
        *gradients, present = averages
        flat.write_gradients(gradients, present)

    def _after_step(self) -> None:
        if self._skips:
            self._skips = False
            self._members.begin()
            return
        made, self._made = self._made, self._made + 1
        if self._warm_up.sums_gradients(made):
            self._border = self._fragments[0].read()
            self.rounds += 1
            self._members.begin()
            return
        self._step += 1
        if self._warm_up.averages(made):
            self.sync()

    def _is_due(self) -> bool:
        return self._made > 0 and self._step > 0 and self._warm_up.averages(self._made - 1)

    def _save_more(self) -> Any:
        return {"made": self._made}

    def _load_more(self, more: Any) -> None:
        self._made = more["made"]
