"""The parts of a worker's updates that it sends, and that it keeps for later: arithmetic on numpy arrays, without peers or
torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..correction import with_momentum
from .threshold_code import Change

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Residual", "apply", "threshold_of"]

SAMPLED = 1 << 16
"""The least number of elements from which a tensor's threshold is estimated."""
SURPLUS = 2
"""At most this times the wanted share is sent, even if the sample suggests more."""


def threshold_of(magnitudes: Array, share: float) -> float:
    """The threshold that about ``share`` of the magnitudes reach. For a large tensor it is estimated from evenly spaced
    elements."""
    sample = magnitudes[:: max(1, magnitudes.size // SAMPLED)]
    kept = min(sample.size, max(1, round(share * sample.size)))
    return float(np.partition(sample, sample.size - kept)[sample.size - kept])


class Residual:
    """A tensor's velocity, and the unsent rest of its updates: float32, flat.

    The velocity accumulates this worker's gradients before elements are chosen (momentum correction). For sent elements the
    velocity can restart from zero (momentum factor masking), so that a late gradient does not keep pushing an element that has
    moved. Both are from Lin et al., "Deep Gradient Compression" (ICLR 2018), which sends the whole rest of an element at once.
    """

    def __init__(self, elements: int) -> None:
        self.velocity = np.zeros(elements, np.float32)
        self.left = np.zeros(elements, np.float32)

    def add(self, gradient: Array, rate: float, momentum: float) -> None:
        """Add a gradient: the unsent rest grows by ``rate`` times the velocity."""
        if momentum:
            gradient = with_momentum(self.velocity, gradient, float(momentum))
        self.left -= np.float32(rate) * gradient

    def take(self, share: float, threshold: float | None, masks: bool = False) -> Change:
        """Choose the elements to send: those whose unsent rest reaches ``threshold``, or if it is ``None`` about a ``share`` of
        them.

        Each of them changes by the threshold, and keeps the remainder, as in Strom, "Scalable Distributed DNN Training Using
        Commodity GPU Cloud Computing" (INTERSPEECH 2015). ``masks``: their velocity restarts from zero.
        """
        magnitudes = np.abs(self.left)
        if magnitudes.size == 0:
            return Change(0.0, np.zeros(0, np.int64), np.zeros(0, bool))
        least = np.float32(threshold_of(magnitudes, share) if threshold is None else threshold)
        places = np.flatnonzero(magnitudes >= max(least, np.finfo(np.float32).tiny))
        most = SURPLUS * max(1, round(share * magnitudes.size))
        if threshold is None and places.size > most:
            largest = np.argpartition(magnitudes[places], places.size - most)[places.size - most :]
            places = np.sort(places[largest])
        change = Change(float(least), places, self.left[places] < 0)
        apply(self.left, change, -1.0)
        if masks:
            self.velocity[places] = 0
        return change


def apply(values: Array, change: Change, factor: float) -> None:
    """Change ``values``, float32 and flat, by ``factor`` times a change."""
    step = np.float32(change.magnitude) * np.float32(factor)
    values[change.places] += np.where(change.is_negative, -step, step)
