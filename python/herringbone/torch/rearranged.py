"""Gradients of buckets that DDP has built in another way than those which residuals are kept of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import errors
from .tensors import packed

__all__ = ["Averaged", "Layout", "Pieces", "Rearranged", "pairs"]

Averaged = torch.futures.Future[torch.Tensor]

Layout = tuple[int, ...]
"""The numbers of a bucket's parameters, in the order in which they lie in it."""

Pieces = Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
"""Parameters, and where their gradients lie."""


def pairs(bucket: Any) -> Pieces:
    """The bucket's parameters with their gradients."""
    return list(zip(bucket.parameters(), bucket.gradients()))


class _Arrived:
    """A bucket of DDP's that waits for some of the other ones to be reduced."""

    def __init__(self, buffer: torch.Tensor, waits: set[int]) -> None:
        """``waits`` are the numbers of those buckets."""
        self.buffer, self.waits = buffer, waits
        self.future: Averaged = torch.futures.Future()


class Rearranged:
    """The gradients of one step, put together as they were when residuals were saved.

    A training that is resumed begins with the buckets that DDP builds at first, and has those of later only from the second
    step on. What is left of a bucket fits that bucket alone, so gradients wait here until all of one of them have come.
    """

    def __init__(self, layouts: dict[int, Layout], reduce: Callable[[int, torch.Tensor, Pieces], Averaged]) -> None:
        """``reduce`` averages a bucket of ``layouts``: its number, its buffer, and where each gradient lies in that."""
        self._layouts, self._reduce = layouts, reduce
        self._pieces: dict[int, tuple[torch.nn.Parameter, torch.Tensor]] = {}
        self._issued: set[int] = set()
        self._arrived: list[_Arrived] = []
        self._lock = threading.Lock()

    def add(self, bucket: Any, numbers: Layout) -> Averaged:
        """Take a bucket of DDP's; it is averaged once all its gradients are."""
        self._pieces.update(zip(numbers, pairs(bucket)))
        waits = {index for index, layout in self._layouts.items() if set(layout) & set(numbers)}
        arrived = _Arrived(bucket.buffer(), waits)
        with self._lock:
            self._arrived.append(arrived)
        for index, layout in self._layouts.items():
            if index not in self._issued and all(number in self._pieces for number in layout):
                self._issued.add(index)
                self._send(index, [self._pieces[number] for number in layout])
        known = {number for layout in self._layouts.values() for number in layout}
        if not known.issuperset(numbers) or (bucket.is_last() and self._layouts.keys() - self._issued):
            raise errors.ConfigError(
                "compression_hook: what was loaded is left of a model with other parameters; load the state of this model, or none"
            )
        return arrived.future

    def _send(self, index: int, pieces: Pieces) -> None:
        flat = packed([gradient for _, gradient in pieces])
        parts = torch.split(flat, [gradient.numel() for _, gradient in pieces])

        def put_back(future: Averaged) -> None:
            try:
                future.value()
            except BaseException as error:
                self._end(index, error)
                return
            for (_, gradient), part in zip(pieces, parts):
                gradient.copy_(part.view_as(gradient))
            self._end(index, None)

        views = [(parameter, part) for (parameter, _), part in zip(pieces, parts)]
        self._reduce(index, flat, views).add_done_callback(put_back)

    def _end(self, index: int, error: BaseException | None) -> None:
        """A bucket is reduced, or has failed: those of DDP's that wait for nothing else are over."""
        with self._lock:
            over = []
            for arrived in self._arrived:
                if index in arrived.waits:
                    arrived.waits.discard(index)
                    if error is not None or not arrived.waits:
                        over.append(arrived)
            self._arrived = [arrived for arrived in self._arrived if arrived not in over]
        for arrived in over:
            if error is None:
                arrived.future.set_result(arrived.buffer)
            else:
                arrived.future.set_exception(error)  # type: ignore[arg-type]
