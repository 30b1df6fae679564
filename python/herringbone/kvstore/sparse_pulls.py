"""Pulls into row-sparse arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..arguments import level
from ..communicator import Communicator
from ..errors import ArgumentError
from .sparse import RowSparse, wanted_rows
from .values import Keyed, check_shapes

__all__ = ["SparsePulls"]


class SparsePulls:
    """The part of a :class:`KVStore` that copies rows into a :class:`RowSparse`."""

    _communicator: Communicator | None
    _stored: dict[Any, Any]

    def row_sparse_pull(self, key: Any, out: Any, priority: int = 0, row_ids: Any = None) -> None:
        """Copy some rows of a row-sparse value into ``out``, in its type; all other rows of ``out`` become zero.

        Args:
            out: a :class:`RowSparse`, or a list of them; in a store of several workers one per key.
            row_ids: whole numbers for each of ``out``, or for all; in any order, with repetitions.
        """
        self._stores("row_sparse_pull")
        level("row_sparse_pull", "priority", priority)
        pairs = self._pairs("row_sparse_pull", key, out)
        copies = []
        for one, outs in pairs.items():
            stored = self._known("row_sparse_pull", one)
            if stored.rows is None or not all(isinstance(target, RowSparse) for target in outs):
                raise ArgumentError(f"row_sparse_pull: key {one!r} and its out have to be row-sparse; use pull for dense arrays")
            if self._communicator is not None and len(outs) > 1:
                raise ArgumentError(f"row_sparse_pull: key {one!r} has {len(outs)} outs; a store of several workers takes one")
            check_shapes("row_sparse_pull", one, outs, stored.value)
            copies += [(stored, target) for target in outs]
        wanted = wanted_rows("row_sparse_pull", row_ids, [stored.value.shape for stored, _ in copies])
        self._wait_for_all(self._stored[one].variable for one in pairs)
        for (stored, target), rows in zip(copies, wanted):
            target.replace(self._rows_of(stored, rows).astype(target.dtype), rows)

    def _rows_of(self, stored: Any, rows: Any) -> Any:
        """Rows of a row-sparse value while nothing is being pushed to it."""
        return stored.value[rows]

    def _pull_sparse(self, pairs: Keyed) -> None:
        """Give row-sparse arrays the stored rows."""
        sparse = {one: [array for array in outs if isinstance(array, RowSparse)] for one, outs in pairs.items()}
        wanted = [one for one, outs in sparse.items() if outs]
        self._wait_for_all(self._stored[one].variable for one in wanted)
        for one in wanted:
            there = self._rows_there(self._stored[one])
            for target in sparse[one]:
                target.replace(there.data.astype(target.dtype), there.indices)

    def _rows_there(self, stored: Any) -> RowSparse:
        """The rows of a value while nothing is being pushed to it."""
        return RowSparse.of(stored.settled()) if stored.rows is None else RowSparse.at(stored.value, stored.rows)

    def _stores(self, call: str) -> None:
        raise NotImplementedError

    def _pairs(self, call: str, key: Any, values: Any) -> Keyed:
        raise NotImplementedError

    def _known(self, call: str, key: Any) -> Any:
        raise NotImplementedError

    def _wait_for_all(self, things: Iterable[Any]) -> None:
        raise NotImplementedError
