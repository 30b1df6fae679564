"""Handles gradients if DDP's buckets differ from the buckets that have residuals."""

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
"""The numbers of a bucket's parameters, in their order within it."""

Pieces = Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
"""Parameters, and the places of their gradients."""


def pairs(bucket: Any) -> Pieces:
    """The bucket's parameters with their gradients."""
    return list(zip(bucket.parameters(), bucket.gradients()))


class _Arrived:
    """A bucket of DDP's that waits until some of the saved buckets are reduced."""

    def __init__(self, buffer: torch.Tensor, waits: set[int]) -> None:
        """``waits`` are the numbers of these saved buckets."""
        self.buffer, self.waits = buffer, waits
        self.future: Averaged = torch.futures.Future()


class Rearranged:
    """The gradients of one step, grouped as they were when residuals were saved.

    A resumed training begins with DDP's initial buckets, and has the later ones only from the second step on. A residual fits
    only its own bucket, so gradients wait here until all gradients of a saved bucket have come.
    """

    def __init__(self, layouts: dict[int, Layout], reduce: Callable[[int, torch.Tensor, Pieces], Averaged]) -> None:
        """``reduce`` averages a bucket of ``layouts``, from its number, its buffer, and the place of each gradient in that."""
        self._layouts, self._reduce = layouts, reduce
        self._pieces: dict[int, tuple[torch.nn.Parameter, torch.Tensor]] = {}
        self._issued: set[int] = set()
        self._arrived: list[_Arrived] = []
        self._lock = threading.Lock()

    def add(self, bucket: Any, numbers: Layout) -> Averaged:
        """Add a bucket of DDP's; it is averaged once all its gradients are."""
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
                "compression_hook: the loaded residuals belong to a model with other parameters; load the state of this model, or none"
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
        """Note that a saved bucket is reduced, or has failed; DDP's buckets that wait for nothing else are then complete."""
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
