"""A step of a training by shards: each worker's part, and the common end."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..communicator import Communicator
from ..errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    HerringboneError,
    MismatchError,
    OperationTimeoutError,
    PeerLostError,
    UnsupportedError,
)
from ..shards_data import SHARD, seed_of
from .shards_loading import ShardLoader, kept_generators, seed_generators
from .shards_refused import CallCounts, ParameterStates
from .shards_sums import GradientSums
from .shards_surroundings import Buffers

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Shard", "Step", "Training", "settings_of"]

AGAIN, FAILED = 1, 2
"""A rank's reports at the end of a step: its sums began too early; it cannot take part."""


def settings_of(optimizer: Optimizer) -> str:
    """An optimizer's settings, such as the learning rate, as a text that is the same on all ranks."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return ", ".join(map(plain_settings, groups))


def plain_settings(value: Any) -> str:
    """A setting as a text that is the same on all ranks. Objects other than numbers and texts are shown by type, because their
    repr can contain an address."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={plain_settings(each)}" for name, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(plain_settings, value)) + ")"
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return repr(value.item())
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


class Training:
    """One model in a group: the common state of the steps of :meth:`Shards.steps` while the members stay the same."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        scaler: Any,
        communicator: Communicator,
        group: Any,
    ) -> None:
        """``group`` is the native group of the ranks that carry the shards."""
        self.model, self.optimizer, self.scaler, self.communicator = model, optimizer, scaler, communicator
        self.mine = range(*group.mine)
        self.named = dict(model.named_parameters())
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._kinds = [(parameter.dtype, parameter.shape) for parameter in self.parameters]
        self.sums = GradientSums(self.parameters, group)
        self.buffers = Buffers(model)
        self.overlaps = communicator.size > 1
        """Whether the sums begin within the last shard's backward pass."""
        self.applies = False
        """Whether the optimizer is allowed to make its step."""
        self.deals_again = False
        """Whether shards will be redistributed once the time of a shard is known."""
        self.has_warned = False
        """Whether it has warned that a shard's samples might not be its own."""
        self.made = 0
        """How many steps have begun and ended, applied or not."""
        self.seconds = 0.0
        """The time of the fastest of this worker's shards; 0 before the first one."""
        self.step: Step | None = None
        """The open step: the gradients of its last shard are taken as they come."""
        self._handles: list[Any] = [optimizer.register_step_pre_hook(self._before_optimizer)]
        for at, parameter in enumerate(self.parameters):
            # torch's function is not typed.
            hooked: Any = parameter
            self._handles.append(hooked.register_post_accumulate_grad_hook(self._taker(at)))

    def is_of(self, communicator: Communicator) -> bool:
        """Whether these are the members, and the same parameters of the model are trained as before."""
        return self.communicator is communicator and self.has_same_parameters() and self.buffers.are_of(self.model)

    def has_same_parameters(self) -> bool:
        """Whether the same parameters of the model are trained as before, with the same types."""
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        same = len(trained) == len(self.parameters) and all(one is other for one, other in zip(trained, self.parameters))
        return same and [(parameter.dtype, parameter.shape) for parameter in trained] == self._kinds

    def settings(self) -> str:
        """The settings of the optimizer and the scaler, such as the learning rate."""
        scale = "" if self.scaler is None else f", a scale of {self.scaler.get_scale()!r}"
        return settings_of(self.optimizer) + scale

    def settings_digest(self) -> bytes:
        """A digest of the settings."""
        return hashlib.blake2b(self.settings().encode(), digest_size=8).digest()

    def note_use(self, shard: Shard) -> None:
        """Called at the end of a shard; warns once if its samples do not seem to be its own."""
        if not shard.is_used and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"Shards: the body has used neither shard.batch(loader) nor shard.number in {shard}: do its samples depend on it? "
                "Samples of a DataLoader depend on the number of workers; make a loader with shards.loader(dataset, batch)",
                stacklevel=3,
            )

    def clear_gradients(self) -> None:
        """Clear the gradients of all parameters, including parameters that are not trained any more."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def close(self) -> None:
        """Called when the members have changed, or the training is over."""
        if self.step is not None:
            self.step._undo()
        for handle in self._handles:
            handle.remove()
        self.sums.abandon()

    def _taker(self, at: int) -> Callable[[torch.Tensor], None]:
        def take(_: torch.Tensor) -> None:
            if self.step is not None:
                self.step._take(at)

        return take

    def _before_optimizer(self, *_: Any) -> None:
        if not self.applies:
            raise ArgumentError(
                "Shards: the loop's body calls optimizer.step(), which would change the parameters before all shards are summed. "
                "Leave it out: the step is made when the body is over, or by step.apply()"
            )


class Step:
    """One step: iterate over it for this worker's shards, and compute each one's gradients in the body.

    When the loop continues, the sums end and the optimizer makes its step. To do something in between, such as clipping the
    gradients, end the sums with :meth:`reduce`, and let the optimizer make its step with :meth:`apply`.
    """

    def __init__(self, training: Training, seed: int, number: int, loaders: list[ShardLoader]) -> None:
        self.number = number
        """How many steps the training had made before this one."""
        self._training, self._seed, self._loaders = training, seed, loaders
        self._failure: Exception | None = None
        self._refusal: Exception | None = None
        self._begun = 0
        self._done = 0
        self._takes = False
        self._weights: dict[int, float] = {}
        """The weight of each shard so far; it is 1 if all shards have the same number of samples."""
        self._is_reduced = False
        self.is_applied = False
        """Whether the optimizer has made its step."""
        self._is_over = False
        self._is_in_shard = False
        training.clear_gradients()
        training.buffers.begin()
        training.sums.begin()
        training.step = self

    def __iter__(self) -> Iterator[Shard]:
        if self._begun:
            raise ArgumentError(f"Shards: step {self.number} is iterated over twice; do all work for a shard in one body")
        training = self._training
        self._guarded(self._check_gradients)
        self._guarded(training.buffers.begin_shards)
        for place, number in enumerate(training.mine):
            self._begun += 1
            self._guarded(training.buffers.begin_shard)
            if self._is_empty(number):
                self._shard_is_over(number)
                continue
            with kept_generators():
                seed_generators(seed_of(self._seed, SHARD, self.number, number))
                calls, parameters = CallCounts(), ParameterStates(training.named)
                self._takes = training.overlaps and place + 1 == len(training.mine)
                began = time.monotonic()
                self._is_in_shard = True
                shard = Shard(self, number)
                try:
                    yield shard
                finally:
                    self._takes = self._is_in_shard = False
                training.note_use(shard)
                spent = time.monotonic() - began
                training.seconds = min(spent, training.seconds or spent)
            self._weights.setdefault(number, 1.0)
            self._guarded(lambda: calls.check(number, self.number))
            self._guarded(lambda: parameters.check(number, self.number))
            self._shard_is_over(number)
        if not training.mine:
            self._guarded(training.sums.start_all)

    def reduce(self) -> bool:
        """End the sums: the parameters' gradients are then the averages over all shards, the same bits on every worker.

        Returns:
            Whether this succeeded. If not, the step is not applied: the loop raises the error when it continues, or repeats the
            step if members of a job were lost.
        """
        self._check_out("step.reduce() and step.apply()")
        if not self._is_reduced and self._failure is None:
            if self._is_over:
                raise ArgumentError(
                    f"Shards: step {self.number} is over, because the loop over steps was left; begin shards.steps() again"
                )
            self._is_reduced = True
            try:
                self._finish()
            except HerringboneError as error:
                self._failure = error
                self._undo()
        return self._failure is None

    def apply(self) -> bool:
        """End the sums, if :meth:`reduce` has not, and let the optimizer make its step.

        Returns:
            Whether the step was made. If not, it is repeated: do not change anything that the repeated step would change again.
        """
        if not self.reduce():
            return False
        if not self.is_applied:
            training = self._training
            if all(parameter.grad is None for parameter in training.parameters):
                raise ArgumentError(
                    "Shards: the gradients are gone; do not call zero_grad() between step.reduce() and step.apply()"
                )
            # Before the optimizer's step, because a buffer can share a parameter's memory.
            training.buffers.apply()
            training.applies = True
            try:
                if training.scaler is None:
                    training.optimizer.step()
                else:
                    training.scaler.step(training.optimizer)
                    training.scaler.update()
            finally:
                training.applies = False
            self.is_applied = True
        return True

    def _end(self) -> None:
        """Called when the loop continues.

        Raises:
            HerringboneError: the reason why the step was not applied.
        """
        try:
            self.apply()
        finally:
            self._training.step = None
        if self._failure is not None:
            raise self._failure

    def _undo(self) -> None:
        """Undo the effects of the step, if it is not applied."""
        training = self._training
        training.step = None
        self._is_over = True
        if self.is_applied:
            return
        training.sums.abandon()
        with suppress(UnsupportedError):
            training.buffers.undo()
        training.clear_gradients()

    def _fail(self, error: Exception) -> None:
        """Note that the group has failed in a call of the body, whose errors the loop does not see."""
        self._failure = self._failure or error

    def _take(self, at: int) -> None:
        """Called when a gradient of the last shard has come."""
        if self._takes:
            weight = self._weights.get(self._training.mine[self._begun - 1], 1.0)
            self._guarded(lambda: self._training.sums.take(at, weight))

    def _batch_of(self, loader: ShardLoader, shard: int) -> Any:
        """A loader's batch for a shard. The loader also determines the weight of the shard's gradient.

        Raises:
            ArgumentError: another loader has given another weight.
        """
        loader.is_used = True
        weight = loader.weight(self.number, shard)
        if self._weights.setdefault(shard, weight) != weight:
            text = f"Shards: shard {shard} has batches of two loaders in step {self.number} with the weights {self._weights[shard]} and {weight}"
            raise ArgumentError(f"{text} in their last steps; use rule='drop', or data sets of the same length")
        return loader.batch(self.number, shard, self._training.mine)

    def _guarded(self, action: Callable[[], object]) -> None:
        """Keep errors until the step ends, because an error in a backward pass would end the program's loop."""
        if self._failure is not None or self._refusal is not None:
            return
        try:
            action()
        except (PeerLostError, MismatchError, OperationTimeoutError, ClosedError) as error:
            # The group has failed: later calls of it would fail, too.
            self._failure = error
        except HerringboneError as error:
            self._refusal = error

    def _check_out(self, what: str) -> None:
        if self._is_in_shard:
            raise ArgumentError(f"Shards: call {what} after the loop over shards, not in it: all workers call them once a step")

    def _check_gradients(self) -> None:
        if any(parameter.grad is not None for parameter in self._training.parameters):
            text = f"Shards: a backward pass of step {self.number} was made outside of the loop over its shards"
            raise ArgumentError(f"{text}, so its gradient would be added once per worker; make it in the loop, for each shard")

    def _is_empty(self, shard: int) -> bool:
        """Whether a shard has no samples at the end of an epoch, by the loaders that this worker has used, if any."""
        used = [loader for loader in self._loaders if loader.is_used] or self._loaders
        return any(loader.is_empty(self.number, shard) for loader in used)

    def _shard_is_over(self, number: int) -> None:
        training = self._training
        self._done += 1
        if number == 0:
            self._guarded(training.buffers.keep)
        take = training.sums.take_rest if self._done == len(training.mine) else training.sums.take_all
        self._guarded(lambda: take(self._weights.get(number, 1.0)))

    def _finish(self) -> None:
        """The common part of all ranks."""
        training = self._training
        if self._done < len(training.mine) and self._refusal is None:
            missing = list(training.mine)[self._done :]
            text = f"Shards: step {self.number} has not finished shards {missing} of this worker; do not break out of the loop over step"
            self._refusal = ArgumentError(text)
        if not training.has_same_parameters() and self._refusal is None:
            text = f"Shards: requires_grad or the type of parameters has changed within step {self.number}"
            self._refusal = ArgumentError(f"{text}; change that between steps, after step.apply()")
        self._guarded(self._check_gradients)
        if self._failure is not None:
            raise self._failure
        training.sums.start_all()
        there, changed = self._agreed(training.overlaps)
        if any(changed):
            self._share_buffers(changed)
        elif training.communicator.rank:
            training.buffers.unpack(changed, torch.empty(0, dtype=torch.uint8))
        if not any(there):
            raise ArgumentError(f"Shards: no shard of step {self.number} has given a gradient; call loss.backward() in the body")
        training.sums.give_back(there)

    def _agreed(self, may_repeat: bool) -> tuple[list[bool], list[bool]]:
        """Once all sums have ended: which parameters have a gradient on any rank, and which buffers rank 0 has changed."""
        training = self._training
        training.sums.wait()
        there = training.sums.there() if self._refusal is None else [False] * len(training.parameters)
        is_first = training.communicator.rank == 0
        changed = training.buffers.changed() if is_first else [False] * len(training.buffers.names)
        flags = (AGAIN if training.sums.is_late else 0) | (FAILED if self._refusal is not None else 0)
        own = np.frombuffer(training.settings_digest(), np.uint8)
        # If ranks have different bits, both a bit and its opposite are on some rank.
        word = np.concatenate([np.array([flags], np.uint8), own, ~own, np.array([*there, *changed], np.uint8)])
        training.communicator.all_reduce(word, "bit_or")
        settings, opposite, bits = (
            word[1 : 1 + len(own)],
            word[1 + len(own) : 1 + 2 * len(own)],
            word[1 + 2 * len(own) :].astype(bool),
        )
        if word[0] & FAILED:
            raise self._refusal or HerringboneError(
                f"Shards: another rank could not take part in step {self.number}; its own error says why. The step is not applied"
            )
        if word[0] & AGAIN and may_repeat:
            training.overlaps = False
            training.sums.sum_again()
            return self._agreed(may_repeat=False)
        if (settings & opposite).any():
            raise ConfigError(
                f"Shards: ranks have different settings of the optimizer or the scaler in step {self.number}; this one has "
                f"{training.settings()}. Change them on all ranks, such as by scheduler.step() after step.apply(). The step is not applied"
            )
        return bits[: len(there)].tolist(), bits[len(there) :].tolist()

    def _share_buffers(self, changed: list[bool]) -> None:
        training = self._training
        if training.communicator.rank == 0:
            training.communicator.broadcast(training.buffers.packed(changed).numpy())
            return
        values = np.empty(training.buffers.size_of(changed), np.uint8)
        training.communicator.broadcast(values)
        training.buffers.unpack(changed, torch.from_numpy(values))


class Shard:
    """One of a step's shards, while its gradients are computed."""

    def __init__(self, step: Step, number: int) -> None:
        self._step, self._number = step, number
        self.is_used = False
        """Whether the body has used the number or a batch."""
        self._batches: dict[ShardLoader, Any] = {}

    @property
    def number(self) -> int:
        """The shard's number, from 0 to the number of shards - 1."""
        self.is_used = True
        return self._number

    def batch(self, loader: ShardLoader) -> Any:
        """This shard's samples of this step.

        Args:
            loader: the result of :meth:`Shards.loader`.

        Raises:
            TypeError: it is not.
        """
        if not isinstance(loader, ShardLoader):
            kind = type(loader).__name__
            raise TypeError(
                f"batch: loader is a {kind}; pass the result of shards.loader(dataset, batch), made once before the steps"
            )
        if loader not in self._batches:
            self._batches[loader] = self._step._batch_of(loader, self.number)
        return self._batches[loader]

    def __repr__(self) -> str:
        return f"<shard {self._number} of step {self._step.number}>"
