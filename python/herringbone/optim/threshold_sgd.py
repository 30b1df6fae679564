"""SGD without a server: peers send each other a small share of their updates, and keep the rest for later.

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
    """SGD with momentum whose workers tell each other which elements of each tensor change by plus or minus one magnitude::

        optimizer = ThresholdSGD(model.parameters(), lr=0.1, momentum=0.9, share=0.005)
        loss.backward()
        optimizer.step()

    Each worker keeps a whole model and accumulates its own updates. In each step it chooses the elements with the largest
    accumulated updates and changes them by the threshold. It sends this change to all peers, which apply it on arrival, and
    keeps the remainder for later steps. A message has two bytes for each changed element.

    The model must not be in DistributedDataParallel. As a context manager the optimizer calls :meth:`finish` at the end, or
    :meth:`close` after an error.

    Sources: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (INTERSPEECH 2015); Lin et al.,
    "Deep Gradient Compression" (ICLR 2018).
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
            params: the model's parameters, of float32, or groups of them with their own settings.
            lr: the learning rate. An update is the mean over the ranks, as with DistributedDataParallel.
            momentum: as in ``torch.optim.SGD``, on this worker's gradients. Unsent updates act like momentum already, so a
                momentum that works with all-reduces can diverge here: combine it with a larger ``share``, or a smaller ``lr``.
            weight_decay: as in ``torch.optim.SGD``.
            share: the approximate share of a tensor's elements sent in a step, at least one; it determines each tensor's
                threshold.
            threshold: a fixed threshold for all tensors instead of a share, in units of ``lr`` times a gradient.
            warmup_steps: the number of first steps in which the share falls from 1/4 to ``share``.
            masking: restart the velocity of a sent element from zero (momentum factor masking). Off by default: only one
                threshold of the element is sent, and most trials lost accuracy with it.
            staleness: a worker waits for peers that are more steps behind than this. With 0 all make each step together, and
                have the same bits. Otherwise workers apply updates in the order of arrival, so models differ by rounding until
                :meth:`finish`.
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
        """How many bytes of updates this worker has sent to its peers."""
        self._keep_state()
        self._exchange: Exchange | None = None
        self._may_be_missed = False
        self.rejoin(group, root=0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse more parameters, because the tensors of messages are fixed at the beginning.

        Raises:
            ArgumentError: this object is made already.
        """
        if hasattr(self, "_residuals"):
            raise ArgumentError(
                "ThresholdSGD.add_param_group: all parameters have to be given at the beginning; call finish() on all ranks, and make a "
                "ThresholdSGD with all groups"
            )
        super().add_param_group(param_group)

    def rejoin(self, group: Any = None, *, root: int | None = None) -> None:
        """Continue in another group, for instance after a peer was lost; all its ranks call this. ``group`` is as in the
        constructor.

        A lost peer's last updates might have reached only some ranks. So all continue with the mean of their parameters, or, if
        some ranks are new, with rank ``root``'s parameters. This sends all parameters once. Each rank keeps its unsent updates.
        """
        self.close()
        self._messages = messages_of("ThresholdSGD", group)
        self._space = agreed_space("ThresholdSGD", self._messages, self._model())
        self._give(root)
        self._is_closed, self._may_be_missed = False, True

    def _model(self) -> str:
        """The values that must be the same on all ranks, in words."""
        shapes = [tuple(parameter.shape) for parameter in self._parameters]
        listed = ", ".join(str(shape) for shape in shapes)
        return f"{len(shapes)} parameters of shapes {listed}, and staleness {self._staleness}"

    def _give(self, root: int | None) -> None:
        """Let all ranks continue with the parameters of one, or with the mean of all."""
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
        """Send this worker's update, and apply it and the updates that have come from peers; returns the result of ``closure``.

        Raises:
            ArgumentError: a gradient has a NaN or an infinity. This step has sent nothing, and peers wait for this worker.
            PeerLostError: a peer is lost, or has left without :meth:`finish`. Shrink the group, and :meth:`rejoin`.
            ClosedError: :meth:`close` was called.
        """
        if self._is_closed:
            raise ClosedError("ThresholdSGD.step: it is closed; call rejoin() on all ranks to continue")
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
        """The current exchange. It begins with the first call that sends to the peers: a step, or the end of steps."""
        if self._exchange is None:
            self._exchange = Exchange(self._messages, self._staleness, self._shape.most_bytes, self._space)
            under_way.add(self._exchange)
            self._may_be_missed = True
        return self._exchange

    @torch.no_grad()
    def finish(self) -> None:
        """Apply all updates that peers have sent or will send. All ranks call this, after their last step or before they
        compare models.

        Ranks can have made different numbers of steps. If ``staleness`` is above 0, all get rank 0's parameters, so that all
        have the same bits. More steps can follow.

        Raises:
            PeerLostError: a peer is lost, or has left without :meth:`finish`. Shrink the group, and :meth:`rejoin`.
            ClosedError: :meth:`close` was called.
        """
        if self._is_closed:
            raise ClosedError("ThresholdSGD.finish: it is closed; call rejoin() on all ranks to continue")
        self._apply(self._begun().finish())
        self._exchange, self._may_be_missed = None, False
        if self._staleness:
            self._give(0)

    def close(self) -> None:
        """Leave without the others: running messages are dropped, and peers that wait for this rank get a ``PeerLostError``.

        This also applies before the first step. After :meth:`finish` no messages are running, and peers are not told. A second
        call does nothing. :meth:`rejoin` begins again.
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
                # The others still reach the end of the block, which waits for this rank, even if it has just called finish().
                self._may_be_missed = True
        finally:
            self.close()

    def state_dict(self) -> dict[str, Any]:
        """The settings, the number of ``steps``, and for each parameter its ``velocity`` and the unsent updates as ``left``, on
        this rank.

        Each rank saves its own. Call :meth:`finish` first, or updates in running messages are lost.
        """
        return {**super().state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called, after the model was loaded.

        Raises:
            TypeError, ArgumentError: it is not a state of the same parameters. Nothing is loaded then.
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
        """Show the kept state to torch, without a copy."""
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
    """The elements of a parameter as an array, over its own memory if that is on the CPU and contiguous."""
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
            f"use a smaller lr, less momentum or a larger share. This step has sent nothing, and peers wait for this rank"
        )
    return flat


def _checked_state(state: Any, groups: list[dict[str, Any]]) -> int:
    """The number of steps of a saved state, after a check that it fits these groups of parameters.

    Raises:
        TypeError, ArgumentError: it does not.
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
                raise ArgumentError(
                    f"{call}: the state has no {what} of parameter {number}; pass the state_dict() of a ThresholdSGD"
                )
            if (count := kept[what].numel()) != parameter.numel():
                length = parameter.numel()
                raise ArgumentError(f"{call}: {what} of parameter {number} has {count} elements, and the model's has {length}")
    for settings in saved:
        _check(settings)
    return steps


def _check(settings: Mapping[str, Any]) -> None:
    """Refuse invalid numbers."""
    wanted: list[tuple[str, Callable[[Any], bool], str]] = [
        ("lr", lambda number: math.isfinite(number) and number >= 0, "a finite number from 0"),
        ("momentum", lambda number: 0 <= number < 1, "a number from 0, below 1"),
        ("weight_decay", lambda number: math.isfinite(number) and number >= 0, "a finite number from 0"),
        ("share", lambda number: 0 < number <= 1, "a fraction of the elements, above 0 and at most 1"),
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
