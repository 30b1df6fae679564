"""How torch's DistributedDataParallel groups gradients into buckets.

The rule follows ``compute_bucket_assignment_by_size`` in torch/csrc/distributed/c10d/reducer.cpp, and ``_BucketCapacityConfig``
in torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from .document import Buckets, Parameter

__all__ = ["CAP_BYTES", "FIRST_BYTES", "arrival", "assigned", "grouped"]

FIRST_BYTES = 1 << 20
"""Limit of the first bucket, if the program passes no ``bucket_cap_mb``."""
CAP_BYTES = 25 << 20
"""Limit of the other buckets, if the program passes none."""


def assigned(parameters: Sequence[Parameter], order: Iterable[int], limits: Sequence[int]) -> list[list[int]]:
    """Buckets of the parameters whose indices are in ``order``, in the order in which buckets become full.

    Each dtype has its own buckets and limits. A bucket is full when its bytes reach its limit. The last limit applies to all
    further buckets; without limits all parameters are in one bucket.
    """
    full: list[list[int]] = []
    open_buckets: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    left: dict[str, Iterator[int]] = {}
    bound: dict[str, int | None] = {}
    for index in order:
        dtype = parameters[index].dtype
        if dtype not in left:
            left[dtype] = itertools.chain(limits, itertools.repeat(limits[-1])) if limits else iter(())
            bound[dtype] = next(left[dtype], None)
        open_buckets.setdefault(dtype, []).append(index)
        sizes[dtype] = sizes.get(dtype, 0) + parameters[index].bytes
        limit = bound[dtype]
        if limit is not None and sizes[dtype] >= limit:
            full.append(open_buckets.pop(dtype))
            sizes[dtype], bound[dtype] = 0, next(left[dtype])
    return full + list(open_buckets.values())


def arrival(parameters: Sequence[Parameter]) -> list[int]:
    """Indices of the trainable parameters, in the order in which their gradients are ready.

    If the times are equal or unknown, the parameter that was registered later comes first, because backward passes run from the
    last layer to the first one. Parameters whose gradients never came are last.
    """
    trainable = [index for index, each in enumerate(parameters) if each.trainable]
    measured = any(each.ready_seconds is not None for each in parameters)

    def place(index: int) -> tuple[float, int]:
        ready = parameters[index].ready_seconds
        return ready if ready is not None else (float("inf") if measured else 0.0), -index

    return sorted(trainable, key=place)


def grouped(
    parameters: Sequence[Parameter],
    first_bytes: int = FIRST_BYTES,
    cap_bytes: int = CAP_BYTES,
    finds_unused: bool = False,
) -> Buckets:
    """The buckets of DistributedDataParallel for a model with these parameters.

    Args:
        parameters: all of the model, in the order of their registration.
        first_bytes: limit of the first bucket.
        cap_bytes: limit of the other buckets.
        finds_unused: whether the program passes ``find_unused_parameters`` without ``static_graph``: torch then keeps its first
            buckets.
    """
    trainable = [index for index, each in enumerate(parameters) if each.trainable]
    limits = [first_bytes, cap_bytes]
    if finds_unused:
        kept = _reversed(assigned(parameters, trainable, limits))
        return Buckets(first_bytes, cap_bytes, kept, kept)
    initial = _reversed(assigned(parameters, trainable, []))
    return Buckets(first_bytes, cap_bytes, initial, assigned(parameters, arrival(parameters), limits))


def _reversed(buckets: list[list[int]]) -> list[list[int]]:
    """Buckets from the one with the last parameters to the one with the first."""
    return sorted(buckets, key=min, reverse=True)
