"""Arrays of which only some rows are there."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError

__all__ = ["RowSparse", "wanted_rows"]


class RowSparse:
    """An array of which only some rows are there; the others are zero. MXNet's ``row_sparse``, over numpy.

    ``indices`` ascend, and ``data[i]`` is row ``indices[i]``.
    """

    def __init__(self, data: Any, indices: Any, shape: tuple[int, ...]) -> None:
        """Rows in any order; one that is given several times is an error."""
        import numpy as np

        self.shape = tuple(int(length) for length in shape)
        self.data = np.asarray(data)
        self.indices = np.asarray(indices, dtype=np.int64).reshape(-1)
        if not self.shape or self.data.shape != (self.indices.size, *self.shape[1:]):
            raise ArgumentError(f"RowSparse: data of shape {self.data.shape} are not {self.indices.size} rows of {self.shape}")
        check_rows("RowSparse", self.indices, self.shape)
        order = np.argsort(self.indices, kind="stable")
        self.data, self.indices = np.ascontiguousarray(self.data[order]), self.indices[order]
        if (self.indices[1:] == self.indices[:-1]).any():
            raise ArgumentError("RowSparse: a row is given twice; add its values first")

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: Any = "float32") -> RowSparse:
        """One without rows."""
        import numpy as np

        return cls(np.zeros((0, *shape[1:]), dtype), np.zeros(0, np.int64), shape)

    @classmethod
    def of(cls, array: Any) -> RowSparse:
        """The rows of an array that are not all zero."""
        import numpy as np

        array = np.asarray(array)
        rows = np.flatnonzero(array.reshape(array.shape[0], -1).any(axis=1))
        return cls(array[rows], rows, array.shape)

    @classmethod
    def at(cls, array: Any, there: Any) -> RowSparse:
        """The rows of an array where ``there``, an array of as many numbers, is not 0. They are copies."""
        import numpy as np

        rows = np.flatnonzero(there)
        return cls(array[rows], rows, array.shape)

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self.data.dtype

    def toarray(self) -> Any:
        """The whole array."""
        import numpy as np

        whole = np.zeros(self.shape, self.dtype)
        whole[self.indices] = self.data
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.toarray() if dtype is None else self.toarray().astype(dtype)

    def replace(self, data: Any, indices: Any) -> None:
        """Take the rows of another one of the same shape."""
        other = RowSparse(data, indices, self.shape)
        self.data, self.indices = other.data, other.indices

    def __repr__(self) -> str:
        return f"<RowSparse of {self.indices.size} rows of {self.shape}, {self.dtype}>"


def check_rows(call: str, rows: Any, shape: tuple[int, ...]) -> None:
    """Refuse rows that an array does not have."""
    if rows.size and not (rows.min() >= 0 and rows.max() < shape[0]):
        raise ArgumentError(f"{call}: rows go from 0 to {shape[0] - 1}, not from {rows.min()} to {rows.max()}")


def wanted_rows(call: str, row_ids: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """The rows that ``row_ids`` asks for, of arrays of these shapes: ascending, and each once."""
    import numpy as np

    if row_ids is None:
        raise ArgumentError(f"{call}: pass row_ids, the rows to copy")
    several = isinstance(row_ids, (list, tuple)) and len(row_ids) > 0 and np.ndim(row_ids[0]) > 0
    given = list(row_ids) if several else [row_ids] * len(shapes)
    if len(given) != len(shapes):
        raise ArgumentError(
            f"{call}: {len(shapes)} outs and {len(given)} lists of row_ids; pass one list for each, or one for all"
        )
    wanted = []
    for ids, shape in zip(given, shapes):
        asked = np.asarray(ids).reshape(-1)
        if asked.size and asked.dtype.kind not in "iu":
            raise TypeError(f"{call}: row_ids are {asked.dtype}; pass whole numbers")
        if asked.size and asked.dtype.kind == "u" and asked.max() >= shape[0]:
            raise ArgumentError(f"{call}: rows go from 0 to {shape[0] - 1}, not to {asked.max()}")
        rows = np.unique(asked.astype(np.int64))
        check_rows(call, rows, shape)
        wanted.append(rows)
    return wanted
