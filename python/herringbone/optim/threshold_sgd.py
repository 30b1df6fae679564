"""SGD among peers that send each other a small share of their updates, and keep the rest for later. There is no server.

::

    with herringbone.init() as group, ThresholdSGD(model.parameters(), lr=0.05, share=0.005, staleness=4, group=group) as optimizer:
        for batch, targets in data:
            optimizer.zero_grad()
            loss(model(batch), targets).backward()
            optimizer.step()                                # not DDP: this exchanges updates

This module imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..arguments import whole
from ..correction import share_at
from ..errors import ArgumentError, ClosedError
from .saved import check_groups, count_of
from .threshold_code import Shape, decode, encode
from .threshold_exchange import GONE, Exchange, under_way
from .threshold_messages import agreed_space, messages_of
from .threshold_residual import Residual, apply

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ThresholdSGD"]


class ThresholdSGD(torch.optim.Optimizer):
    """SGD with momentum whose workers tell each other, of each tensor, which elements change by plus or minus one magnitude::

        optimizer = ThresholdSGD(model.parameters(), lr=0.1, momentum=0.9, share=0.005)
        loss.backward()
        optimizer.step()

    Each worker keeps a whole model and adds up its own updates. In each step it takes the elements of which most has added up, changes
    them by the threshold, and tells all peers, who do the same as soon as they hear of it. What is left stays with the worker
    (:class:`Residual`). As a context manager it calls :meth:`finish` at the end, or :meth:`close` after an error. The model is a plain one, without DistributedDataParallel. A message costs two bytes for each element that it
    changes; the worker sends it to each of its peers.

    Sources: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (INTERSPEECH 2015); Lin et al., "Deep
    Gradient Compression" (ICLR 2018).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        share: float = 0.005,
        threshold: float | None = None,
        warmup_steps: int = 0,
        masking: bool = False,
        staleness: int = 0,
        group: Any = None,
    ) -> None:
        """All ranks of the group make it, and begin with the parameters of rank 0.

        Args:
            params: the model's parameters, of float32, or groups of them with settings of their own.
            lr: how far a gradient's step goes. An update is the mean over the ranks, as with DistributedDataParallel.
            momentum: as with ``torch.optim.SGD``, of this worker's gradients. Updates that wait to be sent act like momentum already, so
                more of it can diverge where all-reduces train well: take a larger ``share`` with it, or a smaller ``lr``.
            weight_decay: as with ``torch.optim.SGD``.
            share: about this share of a tensor's elements is sent in a step; the threshold of each tensor follows it. At least one is.
            threshold: a fixed one in place of a share, for all tensors, in units of ``lr`` times a gradient.
            warmup_steps: during the first steps the share falls from 1/4 to ``share``.
            masking: the velocity of an element begins anew when something of it is sent (momentum factor masking). As only a threshold of it is
                sent, this lost accuracy in most trials, so it is off.
            staleness: a worker waits for peers that are more steps behind than this. With 0 all take each step together, and have the
                same bits. Else workers apply updates in the order in which they come, so models differ by rounding until :meth:`finish`.
            group: a :class:`herringbone.Communicator` or a process group of torch; by default torch's.

        Raises:
            ArgumentError: a number makes no sense, or a parameter is not float32.
            MismatchError: ranks have parameters of different shapes, or another staleness.
        """
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "share": share, "threshold": threshold}
        super().__init__(params, {**defaults, "warmup_steps": warmup_steps, "masking": masking})
        self._staleness = whole("ThresholdSGD", "staleness", staleness, "a number of steps")
        if self._staleness < 0:
            raise ArgumentError(f"ThresholdSGD: staleness is {staleness}; pass a number of steps from 0")
        for settings in self.param_groups:
            _check(settings)
        self._parameters = [parameter for settings in self.param_groups for parameter in settings["params"]]
        for number, parameter in enumerate(self._parameters):
            if parameter.dtype != torch.float32:
                raise ArgumentError(f"ThresholdSGD: parameter {number} is {parameter.dtype}; convert the model to float32")
        self._shape = Shape([parameter.numel() for parameter in self._parameters])
        self._residuals = [Residual(length) for length in self._shape.lengths]
        self._steps = 0
        self.sent_bytes = 0
        """So many bytes of updates this worker has sent to its peers."""
        self._keep_state()
        self._exchange: Exchange | None = None
        self._may_be_missed = False
        self.rejoin(group, root=0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse more parameters: messages have the tensors that there were at the beginning.

        Raises:
            ArgumentError: this object is made already.
        """
        if hasattr(self, "_residuals"):
            raise ArgumentError(
                "ThresholdSGD.add_param_group: all parameters are given at the beginning; call finish() on all ranks, and make a "
                "ThresholdSGD with all groups"
            )
        super().add_param_group(param_group)

    def rejoin(self, group: Any = None, *, root: int | None = None) -> None:
        """Go on in another group, as after a peer was lost; all its ranks call this. ``group`` is as when this was made.

        What a lost peer has sent may have come to some ranks only. So all go on with the mean of their parameters, or, if some ranks are
        new, with those of rank ``root``. This sends all parameters once. What each rank has left to send stays.
        """
        self.close()
        self._messages = messages_of("ThresholdSGD", group)
        self._space = agreed_space("ThresholdSGD", self._messages, self._model())
        self._give(root)
        self._is_closed, self._may_be_missed = False, True

    def _model(self) -> str:
        """In words, what is the same on all ranks."""
        shapes = [tuple(parameter.shape) for parameter in self._parameters]
        listed = ", ".join(str(shape) for shape in shapes)
        return f"{len(shapes)} parameters of shapes {listed}, and staleness {self._staleness}"

    def _give(self, root: int | None) -> None:
        """Have all ranks go on with the parameters of one, or with the mean of all."""
        for parameter in self._parameters:
            values = _flat(parameter)
            if values.size == 0:
                continue
            if root is None:
                self._messages.average(values)
            else:
                self._messages.broadcast(values, root)
            parameter.detach().copy_(torch.from_numpy(values).view(parameter.shape))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send what this worker's gradients add up to, and apply that and what has come from peers; returns what ``closure`` does.

        Raises:
            ArgumentError: a gradient has a NaN or an infinity. This step has sent nothing; peers wait for this worker.
            PeerLostError: a peer is lost, or has left without :meth:`finish`. Shrink the group, and :meth:`rejoin`.
            ClosedError: :meth:`close` was called.
        """
        if self._is_closed:
            raise ClosedError("ThresholdSGD.step: it is closed; call rejoin() on all ranks to go on")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [_gradient(number, parameter) for number, parameter in enumerate(self._parameters)]
        changes, place = [], 0
        for settings in self.param_groups:
            share = share_at(self._steps, settings["share"], settings["warmup_steps"])
            for parameter in settings["params"]:
                residual, gradient = self._residuals[place], gradients[place]
                if gradient is not None:
                    if settings["weight_decay"]:
                        gradient = gradient + np.float32(settings["weight_decay"]) * _flat(parameter)
                    residual.add(gradient, settings["lr"], settings["momentum"])
                changes.append(residual.take(share, settings["threshold"], settings["masking"]))
                place += 1
        self._steps += 1
        update = encode(self._shape, changes)
        exchange = self._begun()
        self.sent_bytes += len(update) * (self._messages.size - 1)
        self._apply(exchange.step(update))
        return loss

    def _begun(self) -> Exchange:
        """The exchange under way. It begins with the first call that has something to tell the peers: a step, or that there is none."""
        if self._exchange is None:
            self._exchange = Exchange(self._messages, self._staleness, self._shape.most_bytes, self._space)
            under_way.add(self._exchange)
            self._may_be_missed = True
        return self._exchange

    @torch.no_grad()
    def finish(self) -> None:
        """Apply all that peers have sent or will send; all ranks call this, after the last step of theirs or before they compare models.

        Ranks may have made different numbers of steps. If they took them at times of their own all get rank 0's parameters, so that all
        have the same bits. More steps may follow.

        Raises:
            PeerLostError: a peer is lost, or has left without :meth:`finish`. Shrink the group, and :meth:`rejoin`.
            ClosedError: :meth:`close` was called.
        """
        if self._is_closed:
            raise ClosedError("ThresholdSGD.finish: it is closed; call rejoin() on all ranks to go on")
        self._apply(self._begun().finish())
        self._exchange, self._may_be_missed = None, False
        if self._staleness:
            self._give(0)

    def close(self) -> None:
        """Leave without the others: what is under way is dropped, and peers that wait for this rank get a ``PeerLostError``.

        That holds before the first step, too. After :meth:`finish` nothing is under way, and no peer is told. A second call does
        nothing, and :meth:`rejoin` begins again.
        """
        self._is_closed = True
        if self._may_be_missed:
            with suppress(*GONE):
                self._begun()
        self._may_be_missed = False
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and not self._is_closed:
                self.finish()
            elif not self._is_closed:
                # The others have the end of the block before them, which waits for this rank, even if it has just called finish().
                self._may_be_missed = True
        finally:
            self.close()

    def state_dict(self) -> dict[str, Any]:
        """Settings, and of each parameter of this rank its ``velocity`` and what is ``left`` to send; and how many ``steps`` were made.

        Each rank saves its own. Call :meth:`finish` first, or updates that are under way are lost.
        """
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was called, after the model was loaded.

        Raises:
            TypeError, ArgumentError: it is not what ``state_dict`` gave for the same parameters. Nothing is loaded then.
        """
        steps = _checked_state(state_dict, self.param_groups)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "steps"})
        for parameter, residual in zip(self._parameters, self._residuals):
            kept = self.state[parameter]
            residual.velocity[:] = kept["velocity"].reshape(-1).numpy(force=True)
            residual.left[:] = kept["left"].reshape(-1).numpy(force=True)
        self._steps = steps
        self._keep_state()

    def _keep_state(self) -> None:
        """Show torch what is kept, without a copy."""
        for parameter, residual in zip(self._parameters, self._residuals):
            velocity, left = torch.from_numpy(residual.velocity), torch.from_numpy(residual.left)
            self.state[parameter] = {"velocity": velocity, "left": left}

    def _apply(self, updates: Iterable[bytes]) -> None:
        values = [_flat(parameter) for parameter in self._parameters]
        for update in updates:
            for some, change in zip(values, list(decode(self._shape, update))):
                apply(some, change, 1 / self._messages.size)
        for some, parameter in zip(values, self._parameters):
            if parameter.device.type != "cpu" or not parameter.is_contiguous():
                parameter.copy_(torch.from_numpy(some).view(parameter.shape))


def _flat(parameter: torch.Tensor) -> Any:
    """The elements of a parameter: over its memory if that is the CPU's and contiguous."""
    return parameter.detach().reshape(-1).numpy(force=True)


def _gradient(number: int, parameter: torch.Tensor) -> Any:
    """A parameter's gradient, flat, if it has one."""
    if parameter.grad is None:
        return None
    gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    flat = _flat(gradient)
    if not np.isfinite(flat).all():
        raise ArgumentError(
            f"ThresholdSGD: the gradient of parameter {number} has a NaN or an infinity. Training has probably diverged: "
            f"take a smaller lr, less momentum or a larger share. This step has sent nothing, and peers wait for this rank"
        )
    return flat


def _checked_state(state: Any, groups: list[dict[str, Any]]) -> int:
    """How many steps a saved state has, after a look at whether all of it is as these groups of parameters need it.

    Raises:
        TypeError, ArgumentError: it is not.
    """
    call = "ThresholdSGD.load_state_dict"
    needed = ("lr", "momentum", "weight_decay", "share", "threshold", "warmup_steps", "masking")
    check_groups(call, state, groups, needed)
    steps, saved = count_of(call, state, "steps"), state["param_groups"]
    parameters = [parameter for group in groups for parameter in group["params"]]
    for number, (place, parameter) in enumerate(zip([place for group in saved for place in group["params"]], parameters)):
        kept = state["state"].get(place)
        for what in ("velocity", "left"):
            if not isinstance(kept, Mapping) or not isinstance(kept.get(what), torch.Tensor):
                raise ArgumentError(f"{call}: the state has no {what} of parameter {number}; pass what a ThresholdSGD gave")
            if (count := kept[what].numel()) != parameter.numel():
                length = parameter.numel()
                raise ArgumentError(f"{call}: {what} of parameter {number} has {count} elements, and the model's has {length}")
    for settings in saved:
        _check(settings)
    return steps


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse numbers that make no sense."""
    wanted: list[tuple[str, Callable[[Any], bool], str]] = [
        ("lr", lambda number: math.isfinite(number) and number >= 0, "a finite number from 0"),
        ("momentum", lambda number: 0 <= number < 1, "a number from 0, below 1"),
        ("weight_decay", lambda number: math.isfinite(number) and number >= 0, "a finite number from 0"),
        ("share", lambda number: 0 < number <= 1, "a part of the elements, above 0 and at most 1"),
        (
            "threshold",
            lambda number: number is None or (math.isfinite(number) and number > 0),
            "a finite number above 0, or None",
        ),
        ("masking", lambda flag: flag in (True, False), "True or False"),
        ("warmup_steps", lambda number: number >= 0, "a number of steps from 0"),
    ]
    for name, is_right, meaning in wanted:
        try:
            right = is_right(settings[name])
        except TypeError:  # of a number that is none
            right = False
        if not right:
            raise ArgumentError(f"ThresholdSGD: {name} is {settings[name]!r}; pass {meaning}")
