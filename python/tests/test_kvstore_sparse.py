"""Arrays of which only some rows are there, in stores."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from herringbone import ArgumentError, UnsupportedError, kvstore

np = pytest.importorskip("numpy")

SHAPE = (4, 3)


def sparse(rows: list[int], value: float, dtype: str = "float32") -> kvstore.RowSparse:
    return kvstore.RowSparse(np.full((len(rows), SHAPE[1]), value, dtype), rows, SHAPE)


def test_rows_are_pulled_alone() -> None:
    kv = kvstore.create("local")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    kv.init("e", kvstore.RowSparse.of(rows))
    out = kvstore.RowSparse.zeros((4, 3))
    kv.row_sparse_pull("e", out=out, row_ids=np.array([3, 1, 3]))
    assert out.indices.tolist() == [1, 3] and np.array_equal(out.toarray()[[1, 3]], rows[[1, 3]])
    assert (out.toarray()[[0, 2]] == 0).all()
    kv.row_sparse_pull("e", out=out, row_ids=np.array([], np.int64))
    assert (out.toarray() == 0).all()
    kv.push("e", [kvstore.RowSparse(np.ones((1, 3), np.float32), [2], (4, 3))] * 2)
    outs = [kvstore.RowSparse.zeros((4, 3)) for _ in range(2)]
    kv.row_sparse_pull("e", out=outs, row_ids=[[2], [0, 1, 2, 3]])
    assert (outs[0].data == 2).all() and outs[1].toarray().sum() == 6
    with pytest.raises(ArgumentError, match="rows go from 0 to 3"):
        kv.row_sparse_pull("e", out=out, row_ids=[4])
    with pytest.raises(ArgumentError, match="use pull for dense arrays"):
        kv.row_sparse_pull("e", out=np.zeros((4, 3)), row_ids=[1])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kv.pull("e", out=out)
    assert "are left alone" in str(said[0].message)
    with pytest.raises(ArgumentError, match="use push and row_sparse_pull"):
        kv.pushpull("e", out)


@pytest.mark.parametrize("kind", ["local", "device"])
def test_rows_that_are_pushed_to_a_dense_key_are_added_up_as_a_whole_array(kind: str) -> None:
    kv, out = kvstore.create(kind), np.full(SHAPE, 9, np.float32)
    kv.init("w", np.ones(SHAPE, np.float32))
    kv.push("w", [sparse([0, 2], 1), sparse([2, 3], 2)])
    kv.pull("w", out)
    assert out[:, 0].tolist() == [1, 0, 3, 2]
    kv.set_optimizer("test")
    kv.push("w", sparse([1], 5))
    kv.pull("w", out)
    assert out[:, 0].tolist() == [1, 5, 3, 2]
    with pytest.raises(ArgumentError, match="row-sparse and dense arrays"):
        kv.push("w", [sparse([1], 5), out])
    seen = []
    kv._set_updater(lambda key, received, stored: seen.append(type(received)))
    kv.push("w", sparse([1], 5))
    kv.wait_all()
    assert seen == [np.ndarray]


def test_rows_pushed_to_a_dense_key_are_compressed_as_a_whole_array() -> None:
    kv, out = kvstore.create("device"), np.zeros(SHAPE, np.float32)
    kv.init("w", out)
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    kv.push("w", [sparse([0], 0.75), sparse([1], 0.25)])
    kv.pull("w", out)
    assert out[:, 0].tolist() == [0.5, 0, 0, 0]


def test_whole_values_are_pulled_into_row_sparse_arrays() -> None:
    kv = kvstore.create()
    kv.init("e", sparse([1, 3], 2))
    kv.init("w", sparse([1], 7).toarray())
    out, dense = sparse([0], 9), np.zeros(SHAPE, np.float32)
    kv.pull("e", out=[out, dense], ignore_sparse=False)
    assert out.indices.tolist() == [1, 3] and (out.data == 2).all() and np.array_equal(dense, out.toarray())
    kv.push("e", [sparse([0], 1), sparse([2], 0)])  # a row of zeros is there, too
    kv.pull("e", out=out, ignore_sparse=False)
    assert out.indices.tolist() == [0, 2] and out.data[:, 0].tolist() == [1, 0]
    double = sparse([], 0, "float64")
    kv.pull(["w", "e"], out=[double, out], ignore_sparse=False, async_op=True)
    assert double.indices.tolist() == [1] and double.data.dtype == np.float64 and (double.data == 7).all()
    with pytest.raises(ArgumentError, match=r"in out for key 'w' has shape \(2, 3\), but the value has \(4, 3\)"):
        kv.pull("w", out=kvstore.RowSparse.zeros((2, 3)), ignore_sparse=False)


def test_pulled_rows_have_the_type_of_their_array() -> None:
    kv = kvstore.create()
    kv.init("e", sparse([1, 3], 2.5))
    outs = [sparse([], 0, dtype) for dtype in ("float64", "float16", "int32")]
    kv.row_sparse_pull("e", out=outs, row_ids=[1])
    assert [out.dtype.name for out in outs] == ["float64", "float16", "int32"]
    assert [out.data[0, 0] for out in outs] == [2.5, 2.5, 2]
    with pytest.raises(ArgumentError, match="row_sparse_pull: an array in out for key 'e' has shape"):
        kv.row_sparse_pull("e", out=kvstore.RowSparse.zeros((4, 2)), row_ids=[1])


@pytest.mark.parametrize("indices", [[1.5], [True], ["1"], [float("nan")]])
def test_numbers_of_rows_are_whole_numbers(indices: list[Any]) -> None:
    with pytest.raises(TypeError, match="RowSparse: indices are .*; pass whole numbers"):
        kvstore.RowSparse(np.ones((1, 3)), indices, (4, 3))


def test_rows_that_are_none_of_such_an_array_are_refused() -> None:
    for shape, error in (((-1, 3), ValueError), ((4.5, 3), TypeError), (None, TypeError), ("43", TypeError), ((), ArgumentError)):
        with pytest.raises(error, match="RowSparse: .*shape"):
            kvstore.RowSparse(np.ones((1, 3)), [0], shape)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rows go from 0 to 3, not from 18446744073709551615"):
        kvstore.RowSparse(np.ones((1, 3)), np.array([2**64 - 1], np.uint64), (4, 3))
    with pytest.raises(TypeError, match="RowSparse takes no masked arrays"):
        kvstore.RowSparse(np.ma.masked_array(np.ones((1, 3)), True), [0], (4, 3))
    with pytest.raises(ArgumentError, match="0-dimensional"):
        kvstore.RowSparse.of(3.0)


def test_arrays_without_rows_or_columns_have_no_rows_that_are_not_zero() -> None:
    for shape in ((0, 3), (3, 0), (0,), (2, 0, 4)):
        found = kvstore.RowSparse.of(np.zeros(shape))
        assert found.shape == shape and found.indices.size == 0
    assert kvstore.RowSparse.of(np.array([0, 2, 0, 1])).indices.tolist() == [1, 3]


@pytest.mark.parametrize("dtype", ["U1", "complex64", ">f4", "O"])
def test_row_sparse_values_are_of_types_that_can_be_summed(dtype: str) -> None:
    kv = kvstore.create("local")
    with pytest.raises(UnsupportedError, match="init does not reduce"):
        kv.init("e", kvstore.RowSparse(np.ones((1, 3)).astype(dtype), [2], (4, 3)))
