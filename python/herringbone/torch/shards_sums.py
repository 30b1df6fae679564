"""The gradients of a worker's shards: folded one after the other, and summed over the workers while the last shard is computed.

Parameters are in buckets that depend only on their order, types and sizes, so the buckets are the same on all workers, with any
shards. A bucket's sum starts once all of its gradients have come and the earlier buckets have started, so the order is the same
everywhere, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from .. import _herringbone
from .._herringbone import accumulator, round_shard_sum
from ..errors import HerringboneError, UnsupportedError
from ..kinds import Span, kind_of
from .tensors import FOLDED

__all__ = ["BUCKET_BYTES", "FIRST_BUCKET_BYTES", "Bucket", "GradientSums", "buckets_of"]

BUCKET_BYTES = 25 << 20
"""A bucket is full beyond this number of bytes."""
FIRST_BUCKET_BYTES = 1 << 20
"""The same for the first bucket, so that the sums start early."""

OP = "average"
"""The sum over all shards is divided by their number, once."""


_Gradient = tuple[Span, torch.Tensor] | None
"""Its memory and the object that keeps it."""


class Bucket(NamedTuple):
    """Some of the parameters, which are summed in one call. ``at`` are their numbers among all."""

    dtype: torch.dtype
    at: tuple[int, ...]


def buckets_of(sizes: Sequence[tuple[torch.dtype, int]]) -> list[Bucket]:
    """The buckets of parameters of these types and numbers of elements, the last parameters first: their gradients come first."""
    buckets: list[Bucket] = []
    filled = 0
    for at in reversed(range(len(sizes))):
        dtype, elements = sizes[at]
        limit = FIRST_BUCKET_BYTES if len(buckets) < 2 else BUCKET_BYTES
        if not buckets or buckets[-1].dtype != dtype or filled >= limit:
            buckets.append(Bucket(dtype, ()))
            filled = 0
        buckets[-1] = Bucket(dtype, (*buckets[-1].at, at))
        filled += elements * dtype.itemsize
    return buckets


class _Filling:
    """A bucket's memory, and the progress of its sum."""

    def __init__(self, bucket: Bucket, parameters: Sequence[torch.nn.Parameter], partials: int) -> None:
        kind = FOLDED[bucket.dtype]
        self.at = bucket.at
        self.kind, self.wide = kind, accumulator(kind, OP)
        wide = torch.float64 if self.wide == "f64" else torch.float32
        self.lengths = [parameters[at].numel() for at in bucket.at]
        self.count = sum(self.lengths)
        self.partials = torch.empty((partials, self.count), dtype=wide)
        # A single partial sum can be made again if the sums have to be; of several only the last one.
        self.total = self.partials[0] if partials == 1 else torch.empty(self.count, dtype=wide)
        self.result = self.total if wide == bucket.dtype else torch.empty(self.count, dtype=bucket.dtype)
        self.waits_for = 0
        self.pending: _herringbone.Pending | None = None

    def places(self, place: int) -> list[Span]:
        """The memory for the partial sums of one of its parameters."""
        offset, width = sum(self.lengths[:place]), self.partials.element_size()
        bytes_ = self.lengths[place] * width
        return [(row.data_ptr() + offset * width, bytes_) for row in self.partials]

    def submit(self, sums: _herringbone.Communicator) -> None:
        """Start the sum over all workers."""
        width = self.partials.element_size()
        source = (self.partials.data_ptr(), self.partials.numel() * width)
        target = (self.total.data_ptr(), self.count * width)
        kind = kind_of("all_reduce", self.wide, OP)
        self.pending = sums.submit((kind, self.count, 0, source, target, self.partials, None, 0, None))

    def wait(self) -> None:
        """Wait until the sum has ended."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.wait(None)

    def rounded(self) -> list[torch.Tensor]:
        """The gradients, one after the other."""
        if self.result is not self.total:
            width, narrow = self.total.element_size(), self.result.element_size()
            total, into = (self.total.data_ptr(), self.count * width), (self.result.data_ptr(), self.count * narrow)
            round_shard_sum(self.kind, OP, total, into, (self.total, self.result))
        return list(torch.split(self.result, self.lengths))


def _checksum(gradient: torch.Tensor) -> int:
    """A digest of the gradient's bytes, because a change through ``.data`` or numpy gives no new version."""
    if gradient.layout != torch.strided or not gradient.numel():
        return 0
    # Its memory, in any order, if its values fill it.
    whole = gradient.detach()
    if not whole.is_contiguous():
        whole = whole.contiguous()
    bytes_ = whole.reshape(-1).view(torch.uint8).numpy()
    words = len(bytes_) // 8 * 8
    return int(bytes_[:words].view("u8").sum()) ^ int(bytes_[words:].sum())


class GradientSums:
    """The sums of one model's gradients for the shards that this worker carries."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], group: _herringbone.ShardGroup) -> None:
        self._parameters = parameters
        self._sums = group.sums
        buckets = buckets_of([(parameter.dtype, parameter.numel()) for parameter in parameters])
        self._buckets = [_Filling(bucket, parameters, group.partials) for bucket in buckets]
        parts: list[tuple[str, str, list[Span]]] = []
        self._place, self._bucket_of = [0] * len(parameters), [0] * len(parameters)
        for number, bucket in enumerate(self._buckets):
            for place, at in enumerate(bucket.at):
                self._place[at], self._bucket_of[at] = len(parts), number
                parts.append((bucket.kind, OP, bucket.places(place)))
        self._order = [at for bucket in self._buckets for at in bucket.at]
        self._native = group.partial_sums(parts, [bucket.partials for bucket in self._buckets])
        self._seen: list[tuple[torch.Tensor, int, int] | None] = [None] * len(parameters)
        self._last: list[_Gradient] = [None] * len(parameters)
        self._started = 0
        self.is_late = False
        """Whether a gradient has changed after its bucket's sum had started: the sums have to be made again."""

    def begin(self) -> None:
        """Called before the first shard's gradients come."""
        self.abandon()
        self._native.restart()
        self._started = 0
        self.is_late = False
        for bucket in self._buckets:
            bucket.waits_for = len(bucket.at)

    def take(self, at: int, weight: float) -> None:
        """Called when the last shard's gradient of a parameter is ready; the bucket's sum starts after its last gradient.

        The gradient can change again, in another backward pass or because the program changes it: that is found at the shard's
        end.
        """
        gradient = self._parameters[at].grad
        if self._seen[at] is None and gradient is not None:
            self._seen[at] = (gradient, gradient._version, _checksum(gradient))
            self._native.push(self._place[at], [self._read(at, weight)])
            self._has_come(at)

    def take_all(self, weight: float) -> None:
        """Called at the end of a shard that is not the last one: this object owns its gradients from here on."""
        self._native.push(0, [self._read(at, weight) for at in self._order])
        self._clear()

    def take_rest(self, weight: float) -> None:
        """Called at the end of the last shard: take gradients that have not come yet, and check whether others have changed."""
        self._last = [self._read(at, weight) for at in self._order]
        for at, last in zip(self._order, self._last):
            seen, gradient = self._seen[at], self._parameters[at].grad
            if seen is None:
                self._native.push(self._place[at], [last])
                self._has_come(at)
            elif gradient is not seen[0] or (gradient._version, _checksum(gradient)) != seen[1:]:
                self.is_late = True
        self._clear()

    def sum_again(self) -> None:
        """Make all sums again, because some rank's sums have begun too early."""
        self._native.push_again(0, self._last)
        self.is_late, self._started = False, 0
        self.start_all()

    def start_all(self) -> None:
        """Start the sums that have not started; on a worker without shards that is all of them."""
        while self._started < len(self._buckets):
            self._buckets[self._started].submit(self._sums)
            self._started += 1

    def wait(self) -> None:
        """Wait until all sums have ended."""
        for bucket in self._buckets:
            bucket.wait()

    def there(self) -> list[bool]:
        """For each parameter, whether a shard of this worker has given a gradient; all shards must be over."""
        there = self._native.there()
        return [there[place] for place in self._place]

    def abandon(self) -> None:
        """Wait for all started sums, even if they fail, because they use memory."""
        for bucket in self._buckets:
            try:
                bucket.wait()
            except HerringboneError:
                continue
        self._forget()

    def give_back(self, there: Sequence[bool]) -> None:
        """Make the averages the parameters' gradients; a parameter without a gradient on any shard gets none."""
        for bucket in self._buckets:
            for at, values in zip(bucket.at, bucket.rounded()):
                parameter = self._parameters[at]
                parameter.grad = values.as_strided(parameter.size(), parameter.stride()) if there[at] else None
        self._forget()

    def _has_come(self, at: int) -> None:
        self._buckets[self._bucket_of[at]].waits_for -= 1
        while self._started < len(self._buckets) and self._buckets[self._started].waits_for == 0:
            self._buckets[self._started].submit(self._sums)
            self._started += 1

    def _forget(self) -> None:
        """Release the last shard's gradients."""
        self._seen = [None] * len(self._parameters)
        self._last = [None] * len(self._parameters)

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _read(self, at: int, weight: float) -> _Gradient:
        """A parameter's gradient, if it has one, with its values in the parameter's order."""
        parameter = self._parameters[at]
        gradient = parameter.grad
        if gradient is None:
            return None
        if gradient.layout != torch.strided:
            raise UnsupportedError(f"Shards: parameter {at} has a gradient of {gradient.layout}; make it with sparse=False")
        if weight != 1.0:
            gradient = gradient * weight
        if gradient.stride() != parameter.stride() or gradient.dtype != parameter.dtype:
            gradient = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        return (gradient.data_ptr(), gradient.numel() * gradient.element_size()), gradient
