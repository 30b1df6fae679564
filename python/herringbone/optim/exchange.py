"""An average of arrays over a group, started and ended separately, and repeated over another group if ranks are lost: numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..arguments import whole
from ..communicator import Communicator
from ..compression import Residuals, compressed
from ..errors import HerringboneError
from ..work import Work

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["BUCKET_BYTES", "Exchange", "Wire", "slices"]

BUCKET_BYTES = 25 << 20
"""The default for the most bytes of one all-reduce."""


def slices(elements: int, itemsize: int, bucket_bytes: int) -> list[slice]:
    """Consecutive slices that make up an array of this many elements, each of at most ``bucket_bytes`` or of one element."""
    step = max(1, bucket_bytes // itemsize)
    return [slice(first, min(first + step, elements)) for first in range(0, elements, step)]


class Wire:
    """How arrays are sent: in all-reduces of a limited number of bytes, with or without a codec."""

    def __init__(self, call: str, codec: str | None, feedback: bool, bucket_bytes: int) -> None:
        """``feedback``: use error feedback with the codec.

        Raises:
            TypeError, ValueError: no codec has this name, or the number makes no sense.
        """
        compressed(call, codec, None, None)
        bucket_bytes = whole(call, "bucket_bytes", bucket_bytes, "a number of bytes")
        if bucket_bytes < 1:
            raise ValueError(f"{call}: bucket_bytes is {bucket_bytes}; pass 1 or more")
        self.codec, self.bucket_bytes = codec, bucket_bytes
        self.residuals = Residuals() if codec is not None and feedback and codec != "exact" else None

    def coded(self, array: Array, name: str) -> dict[str, Any]:
        """The arguments of :meth:`Communicator.all_reduce` for an array. Codecs are for float32 only."""
        if self.codec is None or array.dtype != "f4":
            return {}
        if self.residuals is None:
            return {"compression": self.codec}
        return {"compression": self.codec, "tensor": name, "residuals": self.residuals}

    def saved_residuals(self) -> dict[str, dict[str, Any]] | None:
        """The residuals for a checkpoint, if there are any.

        They are tensors, which ``torch.load`` reads with its default ``weights_only=True``. :class:`herringbone.Residuals`
        loads tensors and arrays.
        """
        if self.residuals is None:
            return None
        import torch

        kept = self.residuals.state_dict().items()
        return {name: {**state, "left": torch.from_numpy(state["left"])} for name, state in kept}


class Exchange:
    """The average of some arrays over the ranks of a group.

    It never changes its arrays, so it can be repeated from them. The results are new arrays, which appear only once all
    of them are complete.
    """

    def __init__(self, values: Sequence[Array], wire: Wire, name: str) -> None:
        """``values`` are this rank's, of one dimension, of the same types and lengths on all ranks; they must not change."""
        self.values, self._wire, self._name = list(values), wire, name
        self._results: list[Array] = []
        self._works: list[Work[Any]] = []
        self._group: Communicator | None = None
        self._is_over = False

    @classmethod
    def over(cls, averages: Sequence[Array], wire: Wire, name: str) -> Exchange:
        """An exchange that has succeeded elsewhere, with these averages."""
        exchange = cls([], wire, name)
        exchange._results, exchange._is_over = list(averages), True
        return exchange

    def issue(self, group: Communicator) -> None:
        """Start it over ``group``, if it has not started there yet.

        Raises:
            HerringboneError: it cannot start. It can be started again.
        """
        if self._is_over or self._group is group:
            return
        self.abandon()
        self._group = group
        try:
            self._start(group)
        except BaseException:
            self.abandon()
            raise

    def wait(self) -> list[Array]:
        """The averages, once all are there.

        Raises:
            HerringboneError: one of them failed. It can be started again.
        """
        try:
            for work in self._works:
                work.wait()
        except BaseException:
            self.abandon()
            raise
        self._works, self._group, self._is_over = [], None, True
        return self._results

    def abandon(self) -> None:
        """Wait until all started calls have ended, successfully or not, because they use memory."""
        if self._is_over:
            return
        works, self._works, self._group = self._works, [], None
        for work in works:
            try:
                work.wait()
            except HerringboneError:
                continue
        self._results = []

    def _start(self, group: Communicator) -> None:
        import numpy as np

        self._results = [np.empty_like(values) for values in self.values]
        for number, (values, results) in enumerate(zip(self.values, self._results)):
            for at, part in enumerate(slices(values.size, values.itemsize, self._wire.bucket_bytes)):
                coded = self._wire.coded(values, f"{self._name} {number} {at}")
                self._works.append(group.all_reduce(values[part], "average", out=results[part], async_op=True, **coded))
