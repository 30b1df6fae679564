"""Batches of shards, loaded by the worker processes of torch's DataLoader, the same for any number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, dropwhile
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..arguments import whole
from ..errors import ArgumentError, UnsupportedError
from ..shards_data import BATCH, SAMPLE, Epochs, seed_of

__all__ = ["ShardLoader", "kept_generators", "seed_generators"]

REFUSED = {
    "batch_sampler": "the seed, the epoch and the number of a step say which samples come; to train on a part of a data set, "
    "pass torch.utils.data.Subset",
    "batch_size": "pass batch, the samples of one shard in a step",
    "drop_last": 'pass rule="drop" or rule="weigh"',
    "generator": "pass seed, from which all random numbers follow",
    "in_order": "batches always come in order; leave it out",
    "persistent_workers": "workers live from epoch to epoch anyway; leave it out",
    "sampler": "the seed, the epoch and the number of a step say which samples come; to train on a part of a data set, pass "
    "torch.utils.data.Subset",
    "shuffle": "pass shuffle where the epochs are made",
}
"""The options of DataLoader that would let other samples come, or other random numbers, and what to do instead."""


class ShardLoader:
    """Loads the batch of a step and a shard, in worker processes that load the next ones meanwhile.

    A batch depends only on the data set, the epochs, the step and the shard: not on the number of workers of the training or of
    the loader, nor on prefetching. For this, the generators of torch, numpy and Python are seeded by seed, epoch and index
    before each sample, and by seed, step and shard before ``collate_fn``; the program's own have their states back afterwards.
    torch has one thread meanwhile, as in DataLoader's workers. Seeding takes 20 to 30 µs a sample, and 150 to 200 µs a batch.

    Whatever else a data set draws numbers from has to be made from these generators in ``__getitem__``, such as
    ``numpy.random.default_rng(torch.initial_seed())``. State that it keeps from one sample to the next breaks the promise, and
    nothing can see it. A data set's ``__getitems__``, with which torch fetches a batch at once, is not called, as each sample
    has a seed of its own.

    Prefetching follows the steps one by one, and the shards of each in order. Other requests are answered as well, but begin
    with new worker processes: after a change of workers, when a step is repeated, from a checkpoint.
    """

    def __init__(
        self,
        dataset: Any,
        epochs: Epochs,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        timeout: float = 0,
        **options: Any,
    ) -> None:
        """Load from ``dataset``, which has ``epochs.samples`` samples. Worker processes start with the first batch.

        Args:
            dataset: has ``__getitem__`` and ``__len__``.
            epochs: which samples come when.
            num_workers: processes that load; with 0 this process does it when a batch is asked for.
            collate_fn: makes a batch of a list of samples; torch's own if ``None``.
            prefetch_factor: batches that each process loads ahead; 2 if ``None``.
            pin_memory: as DataLoader's.
            multiprocessing_context: as DataLoader's.
            worker_init_fn: as DataLoader's; what it draws from the generators has no effect on the samples. Its
                ``get_worker_info().dataset.dataset`` is this data set.
            timeout: seconds that :meth:`batch` waits for a process.
            options: others of DataLoader, which are refused.

        Raises:
            ArgumentError: an option would break the promise, or the data set has another number of samples than the epochs.
            TypeError: the data set has no length.
            UnsupportedError: it is an IterableDataset.
        """
        for name in options:
            if name not in REFUSED:
                raise TypeError(f"ShardLoader: there is no option {name!r}")
            raise ArgumentError(f"ShardLoader: {name} is not an option here: {REFUSED[name]}")
        _check(dataset, epochs)
        self.epochs = epochs
        self.is_used = False
        """Whether a step of this process has asked for a batch."""
        self._portions = _Portions(epochs)
        self._mine = range(0)
        self._following: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        self._running: Iterator[Any] | None = None
        num_workers = whole("ShardLoader", "num_workers", num_workers, "a number of processes")
        self._loader: DataLoader[Any] = DataLoader(
            _Batches(dataset, collate_fn or default_collate, epochs.seed),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._portions,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=worker_init_fn,
            timeout=timeout if num_workers else 0,
            # DataLoader draws from it when workers start; without one it would draw from the program's.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        """How many steps an epoch has."""
        return self.epochs.steps

    def is_empty(self, step: int, shard: int) -> bool:
        """Whether the shard has no samples in this step, and so is left out of it; only under ``rule="weigh"``."""
        return self.epochs.count(step, shard) == 0

    def weight(self, step: int, shard: int) -> float:
        """The factor of the shard's gradient in this step; see :meth:`Epochs.weight`."""
        return self.epochs.weight(step, shard)

    def record(self) -> dict[str, Any]:
        """What a checkpoint has to remember of the samples; see :meth:`Epochs.record`."""
        return self.epochs.record()

    def check(self, record: Mapping[str, Any]) -> None:
        """Refuse to continue from a checkpoint with other samples; see :meth:`Epochs.check`."""
        self.epochs.check(record)

    def batch(self, step: int, shard: int, mine: range) -> Any:
        """The batch of a shard in a step, counted from 0 through all epochs.

        ``mine`` are the shards that this worker of the training carries now, for prefetching.

        Raises:
            ArgumentError: there is no such batch.
            Exception: whatever the data set or ``collate_fn`` raises, and torch's errors of worker processes. The loader stays
                usable: the next call starts new processes.
        """
        if shard not in mine:
            raise ArgumentError(f"batch: shard {shard} is not among this worker's, which are {[*mine]}")
        if self.is_empty(step, shard):
            raise ArgumentError(f"batch: shard {shard} has no samples in step {step}; leave it out if is_empty() says so")
        running = self._running
        if running is None or mine != self._mine or (step, shard) != self._next:
            running = self._start(step, shard, mine)
        try:
            batch = next(running)
        except BaseException:
            self.close()
            raise
        self._next = next(self._following)
        return batch

    def close(self) -> None:
        """End the worker processes and drop what they have loaded; another call of :meth:`batch` starts new ones."""
        running, self._running = self._running, None
        # DataLoader ends workers when the iterator is collected, which a traceback that holds it may put off.
        shut_down = getattr(running, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    def _start(self, step: int, shard: int, mine: range) -> Iterator[Any]:
        """A new running iterator, whose next batch is this one."""
        self.close()
        self._mine = mine
        self._portions.begin(step, shard, mine)
        self._following = self._portions.places()
        self._next = next(self._following)
        self._running = iter(self._loader)
        return self._running


def _check(dataset: Any, epochs: Epochs) -> None:
    """Refuse a data set whose samples have no numbers, or others."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise UnsupportedError(
            f"ShardLoader: {kind} is an IterableDataset, whose samples come in an order of its own; pass a data set with "
            "__getitem__ and __len__"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"ShardLoader: a {kind} has no __getitem__ or no __len__; pass a data set with both")
    if len(dataset) != epochs.samples:
        raise ArgumentError(
            f"ShardLoader: {kind} has {len(dataset)} samples, and the epochs are of {epochs.samples}; pass "
            "Epochs(len(dataset), ...)"
        )


@dataclass(frozen=True)
class _Portion:
    """The samples of one batch, as worker processes are asked for them."""

    step: int
    shard: int
    epoch: int
    indices: list[int]


class _Portions:
    """The batches of a worker's shards, step after step without end, from one of them on. DataLoader's sampler."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._first, self._mine = (0, 0), range(epochs.shards)

    def begin(self, step: int, shard: int, mine: range) -> None:
        """Begin there from now on."""
        self._first, self._mine = (step, shard), mine

    def places(self) -> Iterator[tuple[int, int]]:
        """The steps and shards; endless, because the first one has samples in each epoch."""
        first, mine = self._first, self._mine
        places = ((step, shard) for step in count(first[0]) for shard in mine)
        return (place for place in dropwhile(lambda place: place != first, places) if self._epochs.count(*place))

    def __iter__(self) -> Iterator[_Portion]:
        for step, shard in self.places():
            yield _Portion(step, shard, self._epochs.epoch_of(step), self._epochs.indices(step, shard).tolist())


class _Batches:
    """A data set whose items are batches, with random numbers that depend on nothing but the seed and the item."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any], seed: int) -> None:
        self.dataset, self._collate, self._seed = dataset, collate, seed

    def __getitem__(self, portion: _Portion) -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with kept_generators():
                samples = []
                for index in portion.indices:
                    seed_generators(seed_of(self._seed, SAMPLE, portion.epoch, index))
                    samples.append(self.dataset[index])
                seed_generators(seed_of(self._seed, BATCH, portion.step, portion.shard))
                return self._collate(samples)
        finally:
            torch.set_num_threads(threads)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Whatever the block does to the generators of torch's CPU, numpy and Python, they are as before afterwards."""
    of_torch, of_numpy, of_python = torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def seed_generators(seed: int) -> None:
    """Seed the generators of torch's CPU, numpy and Python with 64 bits; accelerators are left alone."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    torch.default_generator.manual_seed(seed)
    # All three are a Mersenne Twister. With the halves in Python's order, numpy would draw Python's numbers.
    np.random.seed([high, low])
    random.seed(seed)


def _as_it_is(batch: Any) -> Any:
    return batch
