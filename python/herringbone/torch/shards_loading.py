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
    "batch_sampler": "the seed, the epoch and the number of a step determine the samples; to train on a part of a data set, "
    "pass torch.utils.data.Subset",
    "batch_size": "pass batch, the samples of one shard in a step",
    "drop_last": 'pass rule="drop" or rule="weigh"',
    "generator": "pass seed, which determines all random numbers",
    "in_order": "batches always come in order; leave it out",
    "persistent_workers": "workers live from epoch to epoch anyway; leave it out",
    "sampler": "the seed, the epoch and the number of a step determine the samples; to train on a part of a data set, pass "
    "torch.utils.data.Subset",
    "shuffle": "pass shuffle where the epochs are made",
}
"""The options of DataLoader that would change samples or random numbers, and what to do instead."""


class ShardLoader:
    """Loads the batch of a step and a shard, in worker processes that also prefetch the next ones.

    A batch depends only on the data set, the epochs, the step and the shard. It does not depend on the training's workers, the
    loader's workers, or prefetching. For this, the generators of torch, numpy and Python are seeded from the seed, epoch and
    index before each sample. Before ``collate_fn`` they are seeded from the seed, step and shard. Afterwards the program's
    generators have their old states. torch has one thread meanwhile, as in DataLoader's workers. Seeding takes 20 to 30 µs a
    sample, and 150 to 200 µs a batch.

    A data set's other generators have to be made from these in ``__getitem__``, such as
    ``numpy.random.default_rng(torch.initial_seed())``. If it keeps state from one sample to the next, batches are not
    reproducible, and nothing detects this. A data set's ``__getitems__``, with which torch fetches a batch at once, is not
    called, because each sample has its own seed.

    Prefetching follows the steps one by one, and the shards of each in order. Other requests also work, but start new worker
    processes: after a change of workers, when a step is repeated, from a checkpoint.
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
            epochs: the order of samples.
            num_workers: processes that load; with 0 this process loads a batch when it is requested.
            collate_fn: makes a batch from a list of samples; by default torch's own.
            prefetch_factor: batches that each process loads ahead; by default 2.
            pin_memory: as in DataLoader.
            multiprocessing_context: as in DataLoader.
            worker_init_fn: as in DataLoader; numbers that it draws from the generators have no effect on the samples. Its
                ``get_worker_info().dataset.dataset`` is this data set.
            timeout: seconds that :meth:`batch` waits for a process.
            options: other options of DataLoader, which are refused.

        Raises:
            ArgumentError: an option would change samples, or the data set has another number of samples than the epochs.
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
        """Whether a step of this process has requested a batch."""
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
            # DataLoader draws from it when workers start; without it, it would draw from the program's generator.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        """How many steps an epoch has."""
        return self.epochs.steps

    def is_empty(self, step: int, shard: int) -> bool:
        """Whether the shard has no samples in this step, and so is left out of it; only with ``rule="weigh"``."""
        return self.epochs.count(step, shard) == 0

    def weight(self, step: int, shard: int) -> float:
        """The factor of the shard's gradient in this step; see :meth:`Epochs.weight`."""
        return self.epochs.weight(step, shard)

    def record(self) -> dict[str, Any]:
        """The part of a checkpoint about samples; see :meth:`Epochs.record`."""
        return self.epochs.record()

    def check(self, record: Mapping[str, Any]) -> None:
        """Refuse to continue from a checkpoint with other samples; see :meth:`Epochs.check`."""
        self.epochs.check(record)

    def batch(self, step: int, shard: int, mine: range) -> Any:
        """The batch of a shard in a step, counted from 0 through all epochs.

        ``mine`` are the shards that this worker of the training carries now, for prefetching.

        Raises:
            ArgumentError: there is no such batch.
            Exception: an error of the data set, of ``collate_fn``, or torch's error about a worker process. The loader stays
                usable: the next call starts new processes.
        """
        if shard not in mine:
            raise ArgumentError(f"batch: shard {shard} is not among this worker's, which are {[*mine]}")
        if self.is_empty(step, shard):
            raise ArgumentError(f"batch: shard {shard} has no samples in step {step}; leave it out if is_empty() is true")
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
        # DataLoader ends workers when the iterator is freed, which a traceback with a reference to it can delay.
        shut_down = getattr(running, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()

    def _start(self, step: int, shard: int, mine: range) -> Iterator[Any]:
        """A new running iterator whose next batch is this one."""
        self.close()
        self._mine = mine
        self._portions.begin(step, shard, mine)
        self._following = self._portions.places()
        self._next = next(self._following)
        self._running = iter(self._loader)
        return self._running


def _check(dataset: Any, epochs: Epochs) -> None:
    """Refuse a data set whose samples have no numbers, or a different number of samples."""
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise UnsupportedError(
            f"ShardLoader: {kind} is an IterableDataset, which determines the order of samples itself; pass a data set with "
            "__getitem__ and __len__"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(f"ShardLoader: a {kind} has no __getitem__ or no __len__; pass a data set with both")
    if len(dataset) != epochs.samples:
        raise ArgumentError(
            f"ShardLoader: {kind} has {len(dataset)} samples, but the epochs have {epochs.samples}; pass "
            "Epochs(len(dataset), ...)"
        )


@dataclass(frozen=True)
class _Portion:
    """The samples of one batch, as requested from worker processes."""

    step: int
    shard: int
    epoch: int
    indices: list[int]


class _Portions:
    """The batches of a worker's shards, step after step without end, from a given one on. DataLoader's sampler."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._first, self._mine = (0, 0), range(epochs.shards)

    def begin(self, step: int, shard: int, mine: range) -> None:
        """Begin at this batch from now on."""
        self._first, self._mine = (step, shard), mine

    def places(self) -> Iterator[tuple[int, int]]:
        """The steps and shards, without end, because the first shard has samples in each epoch."""
        first, mine = self._first, self._mine
        places = ((step, shard) for step in count(first[0]) for shard in mine)
        return (place for place in dropwhile(lambda place: place != first, places) if self._epochs.count(*place))

    def __iter__(self) -> Iterator[_Portion]:
        for step, shard in self.places():
            yield _Portion(step, shard, self._epochs.epoch_of(step), self._epochs.indices(step, shard).tolist())


class _Batches:
    """A data set whose items are batches, with random numbers that depend only on the seed and the item."""

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
    """Restore the generators of torch's CPU, numpy and Python after the block."""
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
