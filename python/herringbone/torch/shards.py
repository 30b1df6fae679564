"""Training whose results have the same bits on any number of workers."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from .._herringbone import aligned_shards, choose_shard_runs, even_shards
from ..arguments import whole
from ..communicator import Communicator
from ..elastic import Elastic
from ..errors import ArgumentError, ConfigError, HerringboneError, PeerLostError
from ..shards import WHY, ShardGroup, check_shards, explained, lengths_of
from ..shards_data import Epochs
from ..state import broadcast_state
from . import shards_surroundings as surroundings
from .communicators import communicator_of
from .shards_loading import ShardLoader
from .shards_refused import check_model, check_optimizer, inner_model
from .shards_step import Step, Training, settings_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["Shards"]

RECORD_BYTES = 4096
"""The length of the record that ranks compare when they meet."""
MEASURED = 3
"""After how many steps shards can be redistributed, because the time of a shard is known by then."""
MACHINE = ("torch", "processor level", "probe of arithmetic")
"""The properties that can differ between machines if the program allows it."""


class Shards:
    """A training whose results have the same bits on any number of workers, which carry a fixed number of shards::

        shards = herringbone.torch.Shards(8, seed=1)
        batches = shards.loader(dataset, batch=8)
        for step in shards.steps(model, optimizer, until=1000):
            for shard in step:                          # the shards that this worker carries now
                inputs, targets = shard.batch(batches)
                loss = criterion(model(inputs), targets)
                loss.backward()

    At every step each shard has its own samples, its own random numbers and its own gradient, on any worker. The gradients are
    summed in the canonical tree over the shards. So the parameters after every step are the same bits on 1, 2, 3 or 8 workers,
    even if workers die, leave and come during the training.

    The shards are a fixed logical world that any workers can carry, as EasyScale (Li et al., SC 2023) does for GPUs.
    """

    def __init__(
        self,
        shards: int,
        *,
        seed: int,
        group: Any = None,
        job: Elastic | None = None,
        threads: int = 1,
        runs: Literal["auto", "aligned", "even"] = "auto",
        other_machines: bool = False,
    ) -> None:
        """Fix the settings that determine the bits.

        Args:
            shards: the number of shards, which the bits depend on. A multiple of the largest number of workers is best.
            seed: the seed of all random numbers; the same on all ranks.
            group: the group whose ranks carry the shards: torch's (backend ``"herringbone"``), or a communicator. By default
                torch's default group, or without one the group from :func:`herringbone.init`.
            job: a :class:`herringbone.Elastic` instead of ``group``, so that workers can die, leave and come. Its ``save`` and
                ``load`` carry the model's and the optimizer's state.
            threads: torch's threads for one operation on the CPU. Bits depend on them, so this sets them.
            runs: how many shards each worker carries; bits do not depend on it. ``"aligned"`` and ``"even"`` are as in
                :class:`herringbone.ShardGroup`. ``"auto"`` begins with aligned runs; once the time of a shard is known, it
                switches to the runs with the shorter expected step.
            other_machines: allow machines whose processors or versions of torch differ, with a warning, although that can
                change bits.

        Raises:
            TypeError, ValueError: an argument makes no sense.
            ConfigError: the process group has another backend.
        """
        self.shards = check_shards("Shards", shards)
        """How many shards the training has."""
        self.seed = whole("Shards", "seed", seed, "a number")
        """The seed of all random numbers."""
        self.threads = whole("Shards", "threads", threads, "a number of threads")
        """torch's threads for one operation."""
        if self.threads < 1:
            raise ValueError(f"Shards: threads is {threads}; pass 1 or more")
        if job is not None and not isinstance(job, Elastic):
            raise TypeError(f"Shards: job is a {type(job).__name__}, not a herringbone.Elastic")
        if job is not None and group is not None:
            raise ValueError("Shards: pass group or job, not both")
        if runs not in ("auto", "aligned", "even"):
            raise ValueError(f"Shards: runs is {runs!r}; pass 'auto', 'aligned' or 'even'")
        self._runs = runs
        self._lengths: list[int] | None = None
        self._why = WHY.get(runs, WHY["aligned"])
        self.other_machines = bool(other_machines)
        """Whether processors and versions of torch can differ."""
        torch.set_num_threads(self.threads)
        self._job = job
        self._communicator = communicator_of("Shards", group, "which has no sums of shards") if job is None else job.communicator
        self._shard_seconds = 0.0
        self._steps = 0
        self._applied = 0
        """The last step that this process has made, counted from 1."""
        self._running: Training | None = None
        self._loaders: list[ShardLoader] = []
        self._machine: dict[str, Any] | None = None
        self._means: ShardGroup | None = None
        self._open: Step | None = None

    @property
    def step(self) -> int:
        """How many steps are complete; within a step's body one more after :meth:`Step.apply`."""
        if self._open is not None and self._open.is_applied:
            return self._open.number + 1
        return self._steps if self._job is None else self._job.steps

    @property
    def mine(self) -> range:
        """The shards that this worker carries now."""
        lengths, rank = self._dealt(), self._present().rank
        first = sum(lengths[:rank])
        return range(first, first + lengths[rank])

    def loader(
        self, dataset: Any, batch: int, num_workers: int = 0, *, rule: str = "drop", shuffle: bool = True, **options: Any
    ) -> ShardLoader:
        """A loader that gives each shard its samples: pass it to :meth:`Shard.batch`.

        The seed and the number of a step determine the samples of each shard. So no sample comes twice in an epoch and none is
        lost, even if workers come and go.

        Args:
            dataset: a data set of torch, with ``__getitem__`` and ``__len__``.
            batch: the number of samples of a shard at one step.
            num_workers: processes that read ahead; results do not depend on it.
            rule: what to do if an epoch does not divide evenly. ``"drop"`` leaves the remaining samples out. ``"weigh"`` makes
                a smaller step of them, in which each shard weighs as much as its number of samples.
            shuffle: whether each epoch has its own random order.
            options: see :class:`ShardLoader`.
        """
        epochs = Epochs(len(dataset), self.shards, batch, self.seed, rule, shuffle)
        loader = ShardLoader(dataset, epochs, num_workers, **options)
        self._loaders.append(loader)
        return loader

    def steps(
        self, model: torch.nn.Module, optimizer: Optimizer, *, until: int | None = None, scaler: Any = None
    ) -> Generator[Step, None, None]:
        """The training's steps, from :attr:`step` on.

        Args:
            model: any model with parameters on the CPU. A DistributedDataParallel is unwrapped.
            optimizer: over the model's parameters; it makes its step when the loop continues.
            until: the number of steps after which the training ends; by default it does not end.
            scaler: a ``torch.amp.GradScaler`` with which the body scales losses.

        Raises:
            UnsupportedError: the model or the optimizer contains something that cannot be trained by shards.
            ConfigError: ranks have different numbers of shards, seeds, models, or machines.
            HerringboneError: a step failed; it is not applied. With a ``job`` lost ranks are no error.
        """
        inner = inner_model(model)
        check_model(inner)
        check_optimizer(optimizer, inner)
        if until is not None:
            until = whole("Shards.steps", "until", until, "a number of steps")
        return self._run(model, inner, optimizer, scaler, until)

    def mean(self, numbers: Mapping[int, Any] | Sequence[Any]) -> float:
        """The mean over all shards of one number per shard, such as its loss, on every rank; added in the same tree as
        gradients.

        All ranks call it, between the body of a step and the next step, or outside of steps.

        Args:
            numbers: the numbers of this worker's shards, in their order, or by shard; tensors with one element are allowed. If
                the shards of a step have different numbers of samples (``rule="weigh"``), numbers have the same weights as
                gradients.

        Returns:
            The mean; NaN if ranks were lost, in a step that is repeated.
        """
        if self._open is not None:
            self._open._check_out("shards.mean(numbers)")
        if not isinstance(numbers, (Mapping, list, tuple)):
            raise TypeError(
                f"Shards.mean: numbers is a {type(numbers).__name__}; pass a list with one number for each of this worker's shards"
            )
        weights = dict.fromkeys(self.mine, 1.0) if self._open is None else self._open._weights
        if isinstance(numbers, Mapping):
            given = {shard: number for shard, number in numbers.items() if number is not None}
        else:
            given = dict(zip(weights, numbers))
            if len(numbers) != len(weights):
                raise ValueError(f"Shards.mean: {len(numbers)} numbers for this worker's shards, which are {list(weights)}")
        weighed = {shard: _number(number) * weights.get(shard, 1.0) for shard, number in given.items()}
        try:
            mean = self._group().mean({**dict.fromkeys(self.mine), **weighed})
        except PeerLostError as error:
            if self._job is None or self._open is None:
                raise
            self._open._fail(error)
            return float("nan")
        return float("nan") if mean is None else mean

    def explain(self) -> str:
        """The shards that each worker carries now, and why."""
        return explained(self.shards, self._dealt(), self._why)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, in addition to the model's and the optimizer's; it is the same for every number of
        workers."""
        return {
            "version": 1,
            "shards": self.shards,
            "seed": self.seed,
            "threads": self.threads,
            "step": self.step,
            "loaders": [loader.record() for loader in self._loaders],
            "machine": self._machine or surroundings.machine(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the steps that were complete when :meth:`state_dict` was called. Make the loaders first.

        Raises:
            ConfigError: the checkpoint has another number of shards, seed or number of threads, or is from another machine.
        """
        if self._open is not None:
            raise ArgumentError("Shards.load_state_dict: a step is open; load a checkpoint before the loop over steps")
        if not isinstance(state, Mapping) or "shards" not in state:
            raise TypeError("Shards.load_state_dict: pass the result of state_dict()")
        if state["version"] != 1:
            raise ConfigError(f"Shards: the checkpoint has version {state['version']}, but this release reads version 1")
        for name in ("shards", "seed", "threads"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"Shards: the checkpoint has {name}={state[name]} and this training {name}={getattr(self, name)}"
                )
        if len(state["loaders"]) != len(self._loaders):
            counts = f"{len(state['loaders'])} loaders and this training {len(self._loaders)}"
            raise ConfigError(f"Shards: the checkpoint has {counts}; make the same ones before load_state_dict()")
        for loader, record in zip(self._loaders, state["loaders"]):
            loader.check(record)
        own = surroundings.machine()
        for name in own:
            if state["machine"][name] == own[name]:
                continue
            if name not in MACHINE:
                values = f"{name} {state['machine'][name]} and this training {own[name]}"
                raise ConfigError(f"Shards: the checkpoint has {values}; set the same")
            self._differs(f"the checkpoint was made with {name} {state['machine'][name]}, and this is {own[name]}", 3)
        if self._job is None:
            self._steps = whole("Shards.load_state_dict", "step", state["step"], "a number of steps")
        else:
            self._job.steps = max(self._job.steps, state["step"])

    def close(self) -> None:
        """End the loaders' processes, as the end of the steps does; a loader that is used again starts new ones."""
        for loader in self._loaders:
            loader.close()

    def _run(
        self, model: Any, inner: torch.nn.Module, optimizer: Optimizer, scaler: Any, until: int | None
    ) -> Generator[Step, None, None]:
        training: Training | None = None
        # A loop that was left, but still has a reference somewhere.
        self._part(self._running)
        try:
            with _without_sums(model):
                while (until is None or self.step < until) and not (self._job is not None and self._job.leaving):
                    with self._step_of_job():
                        if (
                            training is None
                            or not training.is_of(self._present())
                            or (training.deals_again and training.made == MEASURED)
                        ):
                            before, training = training, None
                            self._part(before)
                            same = before is not None and before.is_of(self._present())
                            training = self._running = self._meet(inner, optimizer, scaler, before if same else None)
                        if torch.get_num_threads() != self.threads:
                            torch.set_num_threads(self.threads)
                        yield from self._one(training)
        finally:
            self._part(training)

    def _one(self, training: Training) -> Generator[Step, None, None]:
        self._open = step = Step(training, self.seed, self.step, self._loaders)
        try:
            yield step
            step._end()
        except BaseException as error:
            step._undo()
            if step.is_applied and self._job is not None and isinstance(error, (GeneratorExit, PeerLostError)):
                # The loop was left, or a rank was lost after the step was made, so the job's context does not count the step.
                self._job.steps += 1
            raise
        finally:
            self._open = None
            training.made += 1
            self._steps += step.is_applied
            if step.is_applied:
                self._applied = step.number + 1

    def _part(self, training: Training | None) -> None:
        """Called when the training is over, or continues with other members."""
        self.close()
        if training is not None:
            self._shard_seconds = training.seconds or self._shard_seconds
            training.close()
        if training is self._running:
            self._running = None

    def _step_of_job(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._job is None else self._job.step()

    def _present(self) -> Communicator:
        return self._communicator if self._job is None else self._job.communicator

    def _group(self) -> ShardGroup:
        """The present members' group for numbers; gradients have their own, which runs while the body computes."""
        lengths = self._dealt()
        if self._means is None or self._means.communicator is not self._communicator or self._means.lengths != lengths:
            self._means = ShardGroup(self._communicator, self.shards, runs=lengths)
        return self._means

    def _dealt(self) -> list[int]:
        """How many shards each of the present members carries."""
        present = self._present()
        if self._lengths is None or present is not self._communicator:
            self._communicator = present
            self._why = WHY.get(self._runs, WHY["aligned"])
            self._lengths = lengths_of(self.shards, present.size, "aligned" if self._runs == "auto" else self._runs)
        return self._lengths

    def _meet(self, model: torch.nn.Module, optimizer: Optimizer, scaler: Any, before: Training | None) -> Training:
        """Start with new members: they compare the settings that determine the bits, get the same model, and get shards.

        ``before``: the members are the same as in that training, and only get other shards.
        """
        self._dealt()
        own = self._record(model, optimizer)
        records = _exchanged(self._communicator, own)
        self._compare(records)
        furthest = max(range(len(records)), key=lambda rank: (records[rank]["last step made here"], -rank))
        self._machine = records[furthest]["machine"]
        seconds = max(record["shard's seconds"] for record in records)
        with torch.no_grad():
            tensors = [*model.parameters(), *model.buffers()] if before is None else []
            values = [tensor.detach() for tensor in tensors]
            given = broadcast_state(self._communicator, [*self._deal(model, seconds), values], root=furthest)
            self._lengths, self._why = given[0], given[1]
            if self._communicator.rank != furthest:
                for tensor, value in zip(tensors, given[2]):
                    tensor.copy_(value)
        group = ShardGroup(self._communicator, self.shards, runs=self._lengths)
        training = Training(model, optimizer, scaler, self._communicator, group._native)
        training.deals_again = self._runs == "auto" and seconds == 0.0 and self._is_uneven()
        if before is not None:
            training.overlaps = before.overlaps
        return training

    def _deal(self, model: torch.nn.Module, seconds: float) -> tuple[list[int], str]:
        """The runs of the present members, and why; ``seconds`` is the time of a shard, if it is known."""
        if self._runs != "auto" or seconds == 0.0:
            return self._dealt(), self._why
        sizes = [
            parameter.numel() * max(4, parameter.element_size()) for parameter in model.parameters() if parameter.requires_grad
        ]
        return choose_shard_runs(self._communicator._native, self.shards, seconds, sum(sizes))

    def _is_uneven(self) -> bool:
        """Whether even runs have a shorter longest run than aligned ones."""
        size = self._communicator.size
        return max(even_shards(self.shards, size)) < max(aligned_shards(self.shards, size))

    def _record(self, model: torch.nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        """The values that must be the same on all ranks."""
        settings = settings_of(optimizer)
        shapes = [(name, str(each.dtype), list(each.shape), each.requires_grad) for name, each in model.named_parameters()]
        shapes += [(name, str(each.dtype), list(each.shape), False) for name, each in model.named_buffers()]
        return {
            "shards": self.shards,
            "seed": self.seed,
            "threads": self.threads,
            "steps": self.step,
            "last step made here": self._applied,
            "shard's seconds": self._shard_seconds,
            "model": _digest(json.dumps(shapes).encode()),
            "optimizer": type(optimizer).__name__,
            "optimizer's settings": settings if len(settings) < 1000 else _digest(settings.encode()),
            "optimizer's state": _digest_of(optimizer.state_dict()),
            "loaders": [loader.record() for loader in self._loaders],
            "machine": surroundings.machine(),
        }

    def _compare(self, records: list[dict[str, Any]]) -> None:
        first, size = records[0], len(records)
        for name in (
            "shards",
            "seed",
            "threads",
            "steps",
            "model",
            "optimizer",
            "optimizer's settings",
            "loaders",
            "optimizer's state",
        ):
            other = next((rank for rank in range(size) if records[rank][name] != first[name]), None)
            if other is not None:
                text = f"Shards: rank 0 has {name} {first[name]} and rank {other} {records[other][name]}"
                raise ConfigError(f"{text}; {_REMEDIES.get(name, 'pass the same on all ranks')}")
        for name in first["machine"]:
            other = next((rank for rank in range(size) if records[rank]["machine"][name] != first["machine"][name]), None)
            if other is not None:
                values = f"rank 0 has {name} {first['machine'][name]} and rank {other} {records[other]['machine'][name]}"
                if name not in MACHINE:
                    raise ConfigError(f"Shards: {values}; set the same on all ranks")
                self._differs(values, 5)

    def _differs(self, values: str, depth: int) -> None:
        """Handle machines that differ; ``depth`` is the number of calls to the program's line."""
        if not self.other_machines:
            text = f"Shards: {values}, so bits can depend on the worker that carries a shard"
            raise ConfigError(f"{text}; use equal machines and versions, or pass other_machines=True if bits can differ")
        warnings.warn(f"Shards: {values}: bits can depend on the worker that carries a shard", stacklevel=depth)


_REMEDIES = {
    "model": "make the same model on all ranks (the digest covers names, types and shapes of parameters and buffers, and requires_grad)",
    "optimizer's state": "load the same checkpoint on all ranks; save and load of an Elastic have to include the optimizer's state_dict()",
    "steps": "load the same checkpoint on all ranks",
}


def _exchanged(communicator: Communicator, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of all ranks."""
    text = json.dumps(record).encode()
    if len(text) > RECORD_BYTES:
        raise HerringboneError(f"Shards: {len(record['loaders'])} loaders are more than ranks can compare")
    own = np.zeros(RECORD_BYTES, np.uint8)
    own[: len(text)] = np.frombuffer(text, np.uint8)
    everybody = np.empty((communicator.size, RECORD_BYTES), np.uint8)
    communicator.all_gather(own.reshape(1, -1), out=everybody)
    return [json.loads(bytes(line).rstrip(b"\0")) for line in everybody]


def _digest(values: bytes) -> str:
    return hashlib.blake2b(values, digest_size=8).hexdigest()


def _digest_of(state: Any) -> str:
    """A digest of an optimizer's state: numbers, texts and tensors in dictionaries and lists."""
    digest = hashlib.blake2b(digest_size=8)

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for key in sorted(value, key=str):
                digest.update(f"{key}:".encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            digest.update(f"{len(value)} ".encode())
            for each in value:
                add(each)
        elif isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            is_plain = value is None or isinstance(value, (bool, int, float, str, torch.dtype))
            # The repr of other objects can contain an address.
            digest.update(f"{value!r};".encode() if is_plain else f"{type(value).__name__};".encode())

    add(state)
    return digest.hexdigest()


@contextmanager
def _without_sums(model: Any) -> Iterator[None]:
    """Keep a DistributedDataParallel in the loop's body from summing and broadcasting by itself."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        yield
        return
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = model.require_forward_param_sync = False
    try:
        yield
    finally:
        model.require_backward_grad_sync, model.require_forward_param_sync = before


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, torch.Tensor) else value)
