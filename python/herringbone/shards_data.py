"""The samples of each shard of a training at each step, and the seeds of its random numbers.

Everything here follows from numbers that all workers know: the seed, and the number of a step, counted from 0 through all
epochs. So it does not depend on the number of workers, on changes of it, or on restarts. Nothing here imports torch, and
numpy is imported only where an array has to be made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import index
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["BATCH", "ORDER", "RULES", "SAMPLE", "SHARD", "Epochs", "order", "seed_of"]

ORDER, SAMPLE, BATCH, SHARD = range(4)
"""The purpose of a seed, as the first number of its path: the order of an epoch, the transforms of a sample, building a batch,
or the random numbers of a shard. Without it, a shard's dropout could draw the same numbers as a sample's transforms."""

RULES = {
    "drop": "leaves out the samples that do not fill a step",
    "weigh": "makes one smaller step of them, in which each shard weighs as much as its number of samples",
}
"""The rules for the end of an epoch."""

NUMBER_BYTES = 16
"""The number of bytes that are hashed for a seed, and for each number of a path."""


def seed_of(seed: int, *path: int) -> int:
    """A seed of 64 bits for one place of a training, such as ``seed_of(seed, SAMPLE, epoch, index)``.

    It stays the same in all versions: it is the BLAKE2b digest of 8 bytes (RFC 7693) with the personalization ``herringbone``,
    read as a little-endian integer. The input is ``seed`` and then the numbers of ``path``, each as a little-endian integer of
    16 bytes in two's complement. All have the same width, so paths of different lengths never collide.

    Raises:
        ArgumentError: a number has more than 128 bits with its sign.
    """
    try:
        text = b"".join(index(number).to_bytes(NUMBER_BYTES, "little", signed=True) for number in (seed, *path))
    except OverflowError:
        raise ArgumentError(f"seed_of: {(seed, *path)} has a number beyond 128 bits; pass smaller ones") from None
    return int.from_bytes(blake2b(text, digest_size=8, person=b"herringbone").digest(), "little")


def order(seed: int, epoch: int, samples: int) -> npt.NDArray[np.int64]:
    """The order of the samples of an epoch: a permutation of the numbers below ``samples``.

    It stays the same in all versions of numpy. numpy promises stable bits for its bit generators, but not for
    ``Generator.permutation`` (NEP 19). So each sample gets the next raw 64 bits of Philox4x64-10 (Salmon et al., SC 2011). Its
    key is ``seed_of(seed, ORDER, epoch)``, and its counter starts at 1. Samples are sorted by these bits, and equal bits by the
    number of the sample.
    """
    import numpy as np

    raw = np.random.Philox(key=seed_of(seed, ORDER, epoch)).random_raw(samples)
    return np.argsort(raw, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True)
class Epochs:
    """The samples of a data set, divided among shards step by step and epoch by epoch.

    A step takes the next ``shards * batch`` samples of the epoch's order, and shard k gets the k-th ``batch`` of them. Steps
    are counted from 0 through all epochs. Every method depends only on the fields and its arguments.
    """

    samples: int
    """How many samples the data set has."""
    shards: int
    batch: int
    """The samples of one shard in a full step."""
    seed: int = 0
    rule: str = "drop"
    """The rule for samples that do not fill a step at the end of an epoch.

    ``"drop"`` leaves them out. ``"weigh"`` makes one smaller step of them, in order and as evenly as possible: the first shards
    get one more. A shard's weight is in proportion to its samples there, and shards without samples are left out of that step.
    """
    shuffle: bool = True
    """Whether each epoch has its own random order; if not, all have the data set's."""
    _orders: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("samples", "shards", "batch", "seed"):
            object.__setattr__(self, name, whole("Epochs", name, getattr(self, name), "a whole number"))
        if self.samples < 1:
            raise ArgumentError("Epochs: the data set has no samples; pass one with at least one")
        for name in ("shards", "batch"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"Epochs: {name} is {getattr(self, name)}; pass 1 or more")
        if self.rule not in RULES:
            known = "; ".join(f"{name!r} {meaning}" for name, meaning in RULES.items())
            raise ArgumentError(f"Epochs: there is no rule {self.rule!r}; pass one of these: {known}")
        if self.rule == "drop" and self.samples < self.full:
            raise ArgumentError(
                f"Epochs: the data set has {self.samples} samples, and one step of {self.shards} shards takes {self.full}, so "
                'rule="drop" would leave out all samples; pass rule="weigh", or a smaller batch'
            )
        seed_of(self.seed)

    @property
    def full(self) -> int:
        """The samples of a full step, of all shards together."""
        return self.shards * self.batch

    @property
    def steps(self) -> int:
        """How many steps an epoch has."""
        return self.samples // self.full if self.rule == "drop" else -(-self.samples // self.full)

    def epoch_of(self, step: int) -> int:
        """The epoch of this step, from 0."""
        if step < 0:
            raise ArgumentError(f"Epochs: step is {step}; steps count from 0")
        return step // self.steps

    def indices(self, step: int, shard: int) -> npt.NDArray[np.int64]:
        """The numbers of the samples that a shard has in this step, in order; none if the shard is left out.

        The orders of the last two requested epochs are kept, because a loader prefetches from the next one.
        """
        epoch = self.epoch_of(step)
        first, count = self._place(step, shard)
        if not self.shuffle:
            import numpy as np

            return np.arange(first, first + count, dtype=np.int64)
        if epoch not in self._orders:
            while len(self._orders) > 1:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order(self.seed, epoch, self.samples)
        return self._orders[epoch][first : first + count].copy()

    def count(self, step: int, shard: int) -> int:
        """How many samples a shard has in this step."""
        return self._place(step, shard)[1]

    def weight(self, step: int, shard: int) -> float:
        """The factor of a shard's gradient in an average over all shards: 1.0 in full steps, 0.0 if the shard is left out."""
        return self.count(step, shard) * self.shards / self._left(step)

    def record(self) -> dict[str, Any]:
        """The fields that a checkpoint has to keep, in addition to the seed and the number of shards; JSON can hold them."""
        return {"samples": self.samples, "batch": self.batch, "rule": self.rule, "shuffle": self.shuffle}

    def check(self, record: Mapping[str, Any]) -> None:
        """Refuse to continue from the :meth:`record` of different epochs, in which steps have other samples.

        Raises:
            ArgumentError: a value differs; the text has both values.
        """
        for name, own in self.record().items():
            if name not in record:
                raise ArgumentError(f"Epochs: the checkpoint has no {name}; load one that Epochs.record() is part of")
            if record[name] != own:
                raise ArgumentError(
                    f"Epochs: the checkpoint was made with {name}={record[name]!r}, and this training has {name}={own!r}; "
                    "continue with the checkpoint's value"
                )

    def _left(self, step: int) -> int:
        """The samples of a step, of all shards together."""
        return min(self.full, self.samples - step % self.steps * self.full)

    def _place(self, step: int, shard: int) -> tuple[int, int]:
        """Where a shard's samples begin in the epoch's order, and how many it has."""
        self.epoch_of(step)
        if not 0 <= shard < self.shards:
            raise ArgumentError(f"Epochs: shard is {shard}; shards count from 0 to {self.shards - 1}")
        # A full step is the case in which every shard gets a whole batch and nothing remains.
        each, more = divmod(self._left(step), self.shards)
        first = step % self.steps * self.full + shard * each + min(shard, more)
        return first, each + (shard < more)
