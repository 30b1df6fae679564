"""Row-sparse arrays, which store only some of their rows."""

from __future__ import annotations

from typing import Any

from ..arguments import lengths
from ..arrays import refuse_masked
from ..errors import ArgumentError
from ..needs import needs

__all__ = ["RowSparse", "wanted_rows"]


class RowSparse:
    """An array that stores only some of its rows; the others are zero. MXNet's ``row_sparse``, over numpy.

    ``indices`` ascend, and ``data[i]`` is row ``indices[i]``.
    """

    def __init__(self, data: Any, indices: Any, shape: tuple[int, ...]) -> None:
        """Make it from rows in any order; a repeated row is an error.

        Args:
            data: the rows' values, of shape ``(rows, *shape[1:])``.
            indices: the rows' numbers, from 0.
            shape: the whole array's.

        Raises:
            TypeError: ``indices`` or ``shape`` contains anything but whole numbers, or ``data`` is masked.
            ArgumentError, ValueError: these are not rows of such an array.
        """
        needs("herringbone.kvstore.RowSparse", "numpy")
        import numpy as np

        self.shape = lengths("RowSparse", "shape", shape)
        if not self.shape:
            raise ArgumentError("RowSparse: shape is (), which has no rows; pass a shape with at least one dimension")
        self.indices = numbers_of_rows("RowSparse", "indices", indices, self.shape)
        refuse_masked("RowSparse", data)
        self.data = np.asarray(data)
        if self.data.shape != (self.indices.size, *self.shape[1:]):
            raise ArgumentError(f"RowSparse: data of shape {self.data.shape} are not {self.indices.size} rows of {self.shape}")
        order = np.argsort(self.indices, kind="stable")
        self.data, self.indices = np.ascontiguousarray(self.data[order]), self.indices[order]
        if (self.indices[1:] == self.indices[:-1]).any():
            raise ArgumentError("RowSparse: a row is given twice; add its values first")

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: Any = "float32") -> RowSparse:
        """An array without stored rows."""
        import numpy as np

        shape = lengths("RowSparse.zeros", "shape", shape)
        return cls(np.zeros((0, *shape[1:]), dtype), np.zeros(0, np.int64), shape)

    @classmethod
    def of(cls, array: Any) -> RowSparse:
        """The rows of an array that are not all zero."""
        import numpy as np

        array = np.asarray(array)
        if not array.shape:
            raise ArgumentError("RowSparse.of: the array is 0-dimensional, and has no rows")
        rows = np.flatnonzero(array.any(axis=tuple(range(1, array.ndim))))
        return cls(array[rows], rows, array.shape)

    @classmethod
    def at(cls, array: Any, there: Any) -> RowSparse:
        """Copies of the rows of an array where ``there``, with one number per row, is not 0."""
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
        """Take over the rows of another array of the same shape."""
        other = RowSparse(data, indices, self.shape)
        self.data, self.indices = other.data, other.indices

    def __repr__(self) -> str:
        return f"<RowSparse of {self.indices.size} rows of {self.shape}, {self.dtype}>"


def numbers_of_rows(call: str, argument: str, given: Any, shape: tuple[int, ...]) -> Any:
    """The given numbers of rows of an array of this shape, after checks.

    Raises:
        TypeError: they are not whole numbers.
        ArgumentError: the array does not have such rows.
    """
    import numpy as np

    rows = np.asarray(given).reshape(-1)
    if rows.size and rows.dtype.kind not in "iu":
        raise TypeError(f"{call}: {argument} are {rows.dtype}; pass whole numbers")
    if rows.size and not (rows.min() >= 0 and rows.max() < shape[0]):
        raise ArgumentError(f"{call}: rows go from 0 to {shape[0] - 1}, not from {rows.min()} to {rows.max()}")
    return rows.astype(np.int64)


def wanted_rows(call: str, row_ids: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """The rows in ``row_ids``, for arrays of these shapes: ascending, each once."""
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
        wanted.append(np.unique(numbers_of_rows(call, "row_ids", ids, shape)))
    return wanted
