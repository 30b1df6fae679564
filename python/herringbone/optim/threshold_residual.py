"""What a worker sends of its updates, and what it keeps for later: arithmetic on numpy arrays, without peers and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..correction import with_momentum
from .threshold_code import Change

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Residual", "apply", "threshold_of"]

SAMPLED = 1 << 16
"""So many elements at least tell a tensor's threshold."""
SURPLUS = 2
"""At most this times the wanted share is sent, whatever the sample says."""


def threshold_of(magnitudes: Array, share: float) -> float:
    """What about ``share`` of the magnitudes exceed or equal. Of a large tensor it is read from every so many-th element."""
    sample = magnitudes[:: max(1, magnitudes.size // SAMPLED)]
    kept = min(sample.size, max(1, round(share * sample.size)))
    return float(np.partition(sample, sample.size - kept)[sample.size - kept])


class Residual:
    """A tensor's velocity, and what was not sent of its updates: float32, flat.

    The velocity is of this worker's gradients, and is summed up before elements are chosen (momentum correction). Where something is
    sent the velocity can begin anew (momentum factor masking), so that a late gradient does not go on to push an element that has moved.
    Both are of Lin et al., "Deep Gradient Compression" (ICLR 2018), where all that is left of an element is sent at once.
    """

    def __init__(self, elements: int) -> None:
        self.velocity = np.zeros(elements, np.float32)
        self.left = np.zeros(elements, np.float32)

    def add(self, gradient: Array, rate: float, momentum: float) -> None:
        """Take in a gradient: what is to be sent grows by ``rate`` times the velocity."""
        if momentum:
            gradient = with_momentum(self.velocity, gradient, float(momentum))
        self.left -= np.float32(rate) * gradient

    def take(self, share: float, threshold: float | None, masks: bool = False) -> Change:
        """Choose what is sent: elements of which at least ``threshold`` is left, or if it is ``None`` about a ``share`` of them.

        Each of them changes by the threshold, and the rest of it stays, as in Strom, "Scalable Distributed DNN Training Using
        Commodity GPU Cloud Computing" (INTERSPEECH 2015). ``masks``: their velocity begins anew.
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
