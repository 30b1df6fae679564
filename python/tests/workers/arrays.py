"""Collectives on numpy arrays in processes that never import torch."""

from __future__ import annotations

import gc
import math
import os
import pickle
import signal
import sys
import threading
import time
from decimal import Decimal

import cases
import ml_dtypes
import numpy as np
from cases import MUCH, error_of, check_out_of_memory

import herringbone
from herringbone._herringbone import Completions

CASES, case = cases.registry()

SIGNS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e-42, 1.0], np.float32)


def inputs(shape: tuple[int, ...], dtype: object, seed: int = 0) -> list[np.ndarray]:
    """All ranks' inputs: small whole numbers, whose sums every type holds exactly."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 3, shape).astype(dtype) for _ in range(group.size)]


def wild(count: int, seed: int) -> list[np.ndarray]:
    """All ranks' inputs: floats of every magnitude and kind, so that each order of adding gives other bits."""
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(group.size):
        floats = (generator.standard_normal(count) * 10.0 ** generator.integers(-30, 30, count)).astype(np.float32)
        places = generator.integers(0, count, count // 16)
        floats[places] = generator.choice(SIGNS, places.size)
        values.append(floats)
    return values


def canonical(values: list[np.ndarray]) -> np.ndarray:
    """The contract's order of adding: the binary trie over the ranks, of which each half is added first."""
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    with np.errstate(all="ignore"):
        return canonical(values[:half]) + canonical(values[half:])


def bits(values: np.ndarray) -> np.ndarray:
    """The bit patterns, where every NaN is the one that the contract writes."""
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


@case
def torch_is_not_imported() -> None:
    assert "torch" not in sys.modules


@case
def all_reduce_of_every_type_and_op() -> None:
    types = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", ml_dtypes.bfloat16)
    folds = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}
    for dtype in types:
        values = inputs((3, 7), dtype)
        for op, fold in folds.items():
            array = values[group.rank].copy()
            assert group.all_reduce(array, op) is array
            expected = fold(np.stack(values).astype(np.float64), axis=0).astype(dtype)
            assert array.dtype == dtype and np.array_equal(array, expected), (dtype, op)


@case
def results_go_where_they_are_wanted() -> None:
    values = inputs((5,), np.float32)
    mine, out = values[group.rank].copy(), np.empty(5, np.float32)
    assert group.all_reduce(mine, "average", out=out) is out
    assert np.array_equal(mine, values[group.rank])
    assert np.allclose(out, np.mean(values, axis=0))
    for root in range(group.size):
        group.reduce(mine, root, out=out)
        if group.rank == root:
            assert np.array_equal(out, np.sum(values, axis=0))
        assert np.array_equal(mine, values[group.rank])


@case
def the_other_collectives() -> None:
    for root in range(group.size):
        text = np.array([f"from {group.rank}"])
        group.broadcast(text, root)
        assert text[0] == f"from {root}"
    values = inputs((group.size * 2, 3), np.int64)
    part = group.reduce_scatter(values[group.rank])
    assert part.shape == (2, 3)
    assert np.array_equal(part, np.sum(values, axis=0)[2 * group.rank : 2 * group.rank + 2])
    whole = group.all_gather(np.full((2, 3), group.rank, np.int16))
    assert whole.shape == (group.size * 2, 3)
    assert np.array_equal(whole, np.repeat(np.arange(group.size, dtype=np.int16), 6).reshape(-1, 3))
    assert group.all_gather(np.array(group.rank, np.float32)).tolist() == list(range(group.size))
    assert group.all_reduce(np.empty(0, np.float32)).size == 0
    group.barrier()


@case
def the_same_bits_in_every_cut() -> None:
    values = wild(40_000, seed=11)
    expected = bits(canonical(values))
    mine = values[group.rank]
    assert np.array_equal(bits(group.all_reduce(mine.copy())), expected)
    cuts = [0, 1, 17, 4096, 25_001, 40_000]
    for start, end in zip(cuts, cuts[1:]):
        assert np.array_equal(bits(group.all_reduce(mine[start:end].copy())), expected[start:end])
    fused = np.concatenate([np.zeros(50_000, np.float32), mine])
    assert np.array_equal(bits(group.all_reduce(fused))[50_000:], expected)
    length = 40_000 // group.size * group.size
    part = group.reduce_scatter(mine[:length].copy())
    start = group.rank * part.size
    assert np.array_equal(bits(part), expected[start : start + part.size])


@case
def several_at_once() -> None:
    values = [inputs((10_000 + i,), np.float32, i) for i in range(16)]
    works = [group.all_reduce(value[group.rank].copy(), async_op=True) for value in values]
    for work, value in zip(works, values):
        assert np.array_equal(work.wait(), np.sum(value, axis=0))
        assert work.done()


def mapped(values: np.ndarray) -> np.ndarray:
    """A mapped array with these values."""
    array = group.empty(values.shape, values.dtype)
    array[...] = values
    return array


def address(array: np.ndarray) -> int:
    """Where its memory begins."""
    return array.__array_interface__["data"][0]


@case
def sums_of_mapped_arrays_have_the_same_bits() -> None:
    for count in (1, 1000, 300_001):
        values = wild(count, seed=count)
        expected = bits(canonical(values))
        mine = values[group.rank]
        some = mapped(mine) if group.rank % 2 else mine.copy()
        for array in (mapped(mine), some, np.frombuffer(mapped(np.append(mine[:1], mine)), np.float32)[1:]):
            assert np.array_equal(bits(group.all_reduce(array)), expected)
        for source, out in ((mapped(mine), mapped(mine)), (mapped(mine), mine.copy()), (mine, mapped(mine))):
            assert group.all_reduce(source, out=out) is out
            assert np.array_equal(bits(out), expected) and np.array_equal(bits(source), bits(mine))
    works = [group.all_reduce(mapped(mine), async_op=True) for _ in range(4)]
    assert all(np.array_equal(bits(work.wait()), expected) for work in works)


@case
def every_collective_takes_mapped_arrays() -> None:
    values = inputs((group.size * 2, 3), np.int64, seed=5)
    total = np.sum(values, axis=0)
    mine = mapped(values[group.rank])
    part = group.reduce_scatter(mine, out=group.empty((2, 3), "int64"))
    assert np.array_equal(part, np.split(total, group.size)[group.rank])
    whole = group.all_gather(mine, out=group.empty((group.size * mine.shape[0], 3), "int64"))
    assert np.array_equal(whole, np.vstack(values))
    group.reduce(mine, 0)
    assert np.array_equal(mine, total if group.rank == 0 else values[group.rank])
    assert np.array_equal(group.broadcast(mine, 0), total)
    members = [0, group.size - 1]
    if group.rank in members:
        with group.subgroup(members) as pair:
            array = pair.empty(5)
            array[:] = group.rank
            assert pair.all_reduce(array).tolist() == [group.size - 1] * 5


@case
def mapped_arrays_are_arrays() -> None:
    for shape, dtype in ((7, "float32"), ((), np.int16), ((2, 3), ml_dtypes.bfloat16), ((0, 4), "float64"), (3, "U5")):
        array = group.empty(shape, dtype)
        assert array.shape == np.empty(shape).shape and array.dtype == np.dtype(dtype)
        assert array.flags.writeable and array.flags.c_contiguous and not array.astype(bool).any()
    array = herringbone.empty((4, 2), communicator=group)
    array[:] = 3
    copied = pickle.loads(pickle.dumps(array))
    copied += 1
    assert array.tolist() == [[3, 3]] * 4 and copied.tolist() == [[4, 4]] * 4
    error_of(NotImplementedError, lambda: group.empty(3, object), "pickle")
    error_of(ValueError, lambda: group.empty((2, -1)))
    error_of(herringbone.ConfigError, lambda: group.empty(1 << 50), "mapped buffer", f"rank {group.rank}")


@case
def mapped_memory_lives_as_long_as_an_array_over_it() -> None:
    gc.collect()
    array = group.empty(100_000)
    place = address(array)
    array[:] = 1
    part = array[50_000:].view("int32")
    del array
    assert address(group.empty(100_000)) != place
    assert (part.view("float32") == 1).all()
    work = group.all_reduce(part.view("float32"), async_op=True)
    del part
    assert (work.wait() == group.size).all()
    del work
    again = group.empty(100_000)
    assert address(again) == place and not again.any()


@case
def a_forked_child_leaves_mapped_memory_alone() -> None:
    array = group.empty(50_000)
    array[:] = 7
    child = os.fork()
    if child == 0:
        try:
            del array
            gc.collect()
            error_of(herringbone.ForkedError, lambda: group.empty(3))
            error_of(herringbone.ClosedError, lambda: herringbone.empty(3), "init")
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert (array == 7).all() and address(group.empty(50_000)) != address(array)
    assert (group.all_reduce(array) == 7 * group.size).all()


def order_of_completion(works: list[herringbone.Work]) -> list[int]:
    """The places of the works in the order in which they end."""
    queue = Completions()
    for place, work in enumerate(works):
        work._handle.notify(queue, place)
    return [queue.next() for _ in works]


@case
def an_urgent_operation_overtakes() -> None:
    large = [np.ones(1_000_000, np.float32) for _ in range(8)]
    small = np.ones(10, np.float32)
    group.barrier()
    works = [group.all_reduce(array, async_op=True) for array in large]
    works.append(group.all_reduce(small, async_op=True, priority=1))
    order = order_of_completion(works)
    # Through shared memory the large ones may be over before the small one is issued.
    if os.environ.get("HERRINGBONE_TRANSPORT") == "tcp":
        assert order[-1] != len(large), order
    for work in works:
        assert (work.wait() == group.size).all()


@case
def every_collective_takes_a_priority() -> None:
    ones = np.ones(group.size * 3, np.float32)
    for level in (-1, 0, 1, 7):
        assert (group.all_reduce(ones.copy(), priority=level) == group.size).all()
        assert (group.reduce_scatter(ones, priority=level) == group.size).all()
        assert group.all_gather(ones, priority=level).size == ones.size * group.size
        assert (group.broadcast(ones.copy(), priority=level) == 1).all()
        group.reduce(ones.copy(), priority=level)
    group.all_reduce(ones.copy(), priority=np.int64(1))
    error_of(ValueError, lambda: group.all_reduce(ones, priority=1 << 40), "all_reduce: priority", "2147483647")
    wrong = lambda: group.broadcast(ones, priority="high")
    error_of(TypeError, wrong, "broadcast: priority is a str, not a whole number; above 0 is urgent")
    error_of(TypeError, lambda: group.broadcast(ones, root="0"), "broadcast: root is a str, not a rank")


@case
def wrong_arrays_are_refused_with_the_alternative() -> None:
    ones = np.ones((4, 4), np.float32)
    frozen = ones.copy()
    frozen.flags.writeable = False
    error_of(ValueError, lambda: group.all_reduce(ones.T), "ascontiguousarray")
    error_of(ValueError, lambda: group.all_reduce(frozen), "read-only")
    error_of(ValueError, lambda: group.all_reduce(ones, "mean"), "did you mean 'average'", f"rank {group.rank}")
    error_of(ValueError, lambda: group.all_reduce(ones, "SUM"), "did you mean 'sum'")
    error_of(ValueError, lambda: group.all_reduce(ones, "band"), "none of")
    error_of(TypeError, lambda: group.all_reduce(ones, ones), "op is a ndarray", "average")
    error_of(ValueError, lambda: group.broadcast(ones, group.size), "root")
    error_of(ValueError, lambda: group.all_reduce(ones, out=np.ones(3, np.float32)), "out has 3")
    error_of(ValueError, lambda: group.reduce_scatter(np.ones(group.size + 1, np.float32)), "multiple")
    error_of(TypeError, lambda: group.all_reduce([1.0]), "numpy")
    for call in (group.all_reduce, group.broadcast, group.all_gather, lambda scalar: group.reduce(scalar, 0)):
        error_of(TypeError, lambda call=call: call(ones.mean()), "scalar", "numpy.array(value)")
    error_of(NotImplementedError, lambda: group.all_reduce(ones, "bit_and"), "f32", "bit_and", "integers")
    error_of(NotImplementedError, lambda: group.all_reduce(ones > 0), "uint8")
    error_of(NotImplementedError, lambda: group.all_reduce(ones.astype(complex)), "float64")
    error_of(NotImplementedError, lambda: group.all_reduce(ones.astype(">f4")), "float32")
    error_of(NotImplementedError, lambda: group.broadcast(np.array([{}])), "pickle")


@case
def wrong_arguments_are_named() -> None:
    ones, error = np.ones(4, np.float32), TypeError
    error_of(error, lambda: group.all_reduce(ones, out="x"), "all_reduce: out is a str, not a numpy array")
    error_of(error, lambda: group.all_reduce(ones, timeout="5"), "all_reduce: timeout is a str")
    error_of(error, lambda: herringbone.init(timeout="5"), "init: timeout is a str, not a number of seconds")
    for seconds in (-1, math.nan, math.inf, 1e30, 10**400, Decimal("sNaN")):
        error_of(ValueError, lambda seconds=seconds: group.all_reduce(ones, timeout=seconds), "all_reduce: timeout is", "from 0")
        error_of(ValueError, lambda seconds=seconds: group.recv(ones, timeout=seconds), "recv: timeout is", "from 0")
    error_of(ValueError, lambda: group.shrink(timeout=-1), "shrink: timeout is -1")
    work = group.all_reduce(ones.copy(), async_op=True)
    error_of(ValueError, lambda: work.wait(math.nan), "wait: timeout is nan")
    work.wait()
    for priority in (0.0, 0j, Decimal(0), np.zeros(2, int), None):
        error_of(error, lambda priority=priority: group.all_reduce(ones, priority=priority), "all_reduce: priority is a")
    error_of(error, lambda: group.all_gather(ones, counts=4), "all_gather: counts are a int, not a length for each rank")
    error_of(ValueError, lambda: group.all_reduce(ones, compression="zip"), 'all_reduce: no codec is called "zip"')
    error_of(
        herringbone.ConfigError, lambda: group.subgroup([0, 1 << 70]), f"subgroup on rank {group.rank}: {1 << 70} is no rank"
    )
    error_of(error, lambda: group.subgroup([group.rank], name=5), "subgroup: name is a int, not a text")
    half, said = "a\ud800", "'a\\ud800', which has half of a surrogate pair"
    error_of(ValueError, lambda: group.subgroup([group.rank], half), f"subgroup: name is {said}")
    error_of(ValueError, lambda: group.all_reduce(ones, compression=half), f"all_reduce: compression is {said}")
    error_of(ValueError, lambda: group.all_reduce(ones, compression="int8", tensor=half), f"all_reduce: tensor is {said}")
    error_of(ValueError, lambda: group.explain(1, collective=half), f"explain: collective is {said}")
    error_of(ValueError, lambda: herringbone.Residuals().forget(half), f"Residuals.forget: tensor is {said}")
    error_of(ValueError, lambda: herringbone.Options(token=half), f"Options: token is {said}")
    error_of(ValueError, lambda: herringbone.Engine(2).var(half), f"var: name is {said}")
    error_of(ValueError, lambda: herringbone.init(rank=1 << 70), f"init: rank is {1 << 70}; pass a number of 32 bits")
    for length in (1 << 61, 1 << 70):
        error_of(ValueError, lambda length=length: group.all_gather(ones, counts=[length] * group.size), "larger than any array")
    error_of(herringbone.ConfigError, lambda: group.empty(1 << 70), f"empty: {4 << 70} bytes")
    error_of(ValueError, lambda: group.explain(1 << 70), f"explain: count is {1 << 70}, not a number of elements")
    error_of(error, lambda: herringbone.init(options={"token": "x"}), "init: options is a dict", "Options(")
    error_of(error, lambda: group.subgroup("0"), "subgroup: ranks is a str", "[0, 1]")
    error_of(error, lambda: group.subgroup(0), "subgroup: ranks is a int")
    masked = np.ma.array(ones, mask=[1, 0, 0, 0])
    for call in (group.all_reduce, group.broadcast, group.all_gather, lambda array: group.all_reduce(ones, out=array)):
        error_of(error, lambda call=call: call(masked), "masked", "filled")
    unsupported = herringbone.UnsupportedError
    for kind in ("U3", "S3", "datetime64[s]", "timedelta64[s]", "V3", object, [("a", "f4")]):
        refused = error_of(unsupported, lambda kind=kind: group.all_reduce(np.zeros(2, kind)), "no number")
        assert "astype" not in str(refused)
    assert group.empty(np.int64(3)).shape == (3,) and group.empty([2, np.int64(3)]).shape == (2, 3)
    error_of(error, lambda: group.empty(2.5), "empty: shape is a float, not a whole number")
    error_of(error, lambda: group.empty((2, 2.5)), "empty", "float")


@case
def subgroups() -> None:
    members = [0, group.size - 1]
    if group.rank in members:
        with group.subgroup(members) as pair:
            assert pair.size == 2 and pair.rank == members.index(group.rank)
            assert pair.address == group.address and group.address.rsplit(":", 1)[1].isdigit()
            array = np.full(3, group.rank, np.float32)
            pair.broadcast(array, 1)
            assert array.tolist() == [group.size - 1] * 3
        error_of(herringbone.ClosedError, pair.barrier)
    error_of(herringbone.ConfigError, lambda: group.subgroup([-1, 0]), "-1 is no rank")
    group.barrier()


@case
def what_is_chosen_is_explained() -> None:
    algorithm, why = group.explain(16).split(": ", 1)
    assert algorithm and why
    assert group.explain(16, "float16", "broadcast").startswith("tree: ")
    error_of(ValueError, lambda: group.explain(16, collective="allreduce"), "allreduce")
    error_of(NotImplementedError, lambda: group.explain(16, "complex64"), "float32")
    ones = np.ones(3, np.float32)
    assert group.explain(np.int64(16)) == group.explain(16)
    error_of(ValueError, lambda: group.explain(-1), "explain: count is -1, not a number of elements")
    error_of(ValueError, lambda: group.explain(1, collective="allreduce"), "allreduce: use all_reduce, reduce")
    error_of(TypeError, lambda: group.explain(ones), "explain: count is a ndarray, not a number of elements")
    error_of(TypeError, lambda: group.explain(16, collective=0), "explain: collective is a int, not a name")


@case
def ranks_that_disagree_get_an_error_and_go_on() -> None:
    mine = np.ones(4 if group.rank else 5, np.float32)
    error = error_of(herringbone.MismatchError, lambda: group.all_reduce(mine), "rank 0")
    assert group.recent()[-1]["state"] == "failed: Mismatch"
    assert set(error.calls) <= set(range(group.size)) and len(error.calls) >= 2
    assert group.all_reduce(np.ones(3, np.float32)).tolist() == [group.size] * 3


@case
def python_runs_while_a_thread_waits() -> None:
    group.barrier()
    if group.rank == 0:
        time.sleep(0.6)
        group.barrier()
        return
    waiter = threading.Thread(target=group.barrier)
    waiter.start()
    counted = 0
    while waiter.is_alive():
        counted += 1
        time.sleep(0.005)
    assert counted > 20


@case
def ctrl_c_ends_a_wait() -> None:
    group.barrier()
    work = None
    if group.rank == 0:
        # A shell that starts jobs in the background has them ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work = group.barrier(async_op=True)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        error_of(KeyboardInterrupt, work.wait)
        work.wait()
    else:
        time.sleep(0.8)
        group.barrier()


@case
def ctrl_c_ends_a_call_that_waits() -> None:
    group.barrier()
    array = np.ones(3, np.float32)
    if group.rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        error_of(KeyboardInterrupt, lambda: group.all_reduce(array))
    else:
        time.sleep(0.8)
        group.all_reduce(array)
    group.barrier()
    assert (array == group.size).all()


@case
def an_output_may_be_part_of_the_input_or_overlap_it() -> None:
    for count in (3, 3000, 100_000):
        values = [value.astype(np.float32) for value in inputs((group.size * count,), np.float32, count)]
        whole, own = values[group.rank].copy(), slice(group.rank * count, (group.rank + 1) * count)
        group.reduce_scatter(whole, out=whole[own])
        np.testing.assert_array_equal(whole[own], sum(values)[own])
        group.all_gather(whole[own], out=whole)
        np.testing.assert_array_equal(whole, sum(values))
        for shift in (1, count // 2):
            moved = values[group.rank].copy()
            group.reduce_scatter(moved, out=moved[shift : shift + count])
            np.testing.assert_array_equal(moved[shift : shift + count], sum(values)[own])
            moved = values[group.rank].copy()
            group.all_reduce(moved[:-shift], out=moved[shift:])
            np.testing.assert_array_equal(moved[shift:], sum(values)[:-shift])
            np.testing.assert_array_equal(moved[:shift], values[group.rank][:shift])


@case
def operations_on_overlapping_arrays_run_in_order() -> None:
    for count in (6, 300_000):
        array = np.ones(count, np.int32)
        works = [
            group.all_reduce(array, out=array, async_op=True),
            group.all_reduce(array[: count // 2], out=array[: count // 2], async_op=True),
            group.all_reduce(array, out=array, async_op=True),
        ]
        for work in works:
            work.wait()
        np.testing.assert_array_equal(array, group.size ** np.repeat([3, 2], count // 2))


@case
def a_forked_child_is_told_so() -> None:
    into = np.empty(3)
    work = group.recv(into, group.rank, 77, async_op=True)
    child = os.fork()
    if child == 0:
        try:
            where = f"on rank {group.rank}: "
            error_of(herringbone.ForkedError, group.barrier, f"{where}barrier: ")
            error_of(herringbone.ForkedError, lambda: group.send(np.ones(3), 0), f"{where}send: ")
            error_of(herringbone.ForkedError, lambda: group.recv(into, 0), f"{where}recv: ")
            error_of(herringbone.ForkedError, work.wait, f"{where}recv: ")
            error_of(herringbone.ForkedError, lambda: group.explain(1), f"{where}explain: ")
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    group.send(np.ones(3), group.rank, 77, async_op=True).wait()
    work.wait()
    group.barrier()


@case
def counters_count() -> None:
    stats = group.stats()
    assert sum(stats["operations"]["barrier"].values()) >= 4
    moved = sum(stats[way]["sent"] for way in ("workers_shm", "workers_tcp", "reducers_tcp"))
    assert moved > 0
    assert stats["failed"] >= 1 and stats["waiting_s"] > 0


@case
def the_last_operations_are_remembered() -> None:
    group.subgroup(range(group.size), "for recent").all_reduce(np.ones(3, np.float64), op="max")
    last = group.recent()[-1]
    called = {
        "group": "for recent",
        "sequence": 0,
        "collective": "all_reduce",
        "root": None,
        "dtype": "f64",
        "op": "max",
        "count": 3,
        "priority": 0,
        "state": "done",
    }
    assert {key: last[key] for key in called} == called, last
    assert last["issued_s"] >= last["began_s"] >= last["ended_s"] >= 0, last
    assert last["text"].startswith("for recent #0 all_reduce max of 3 f64 by "), last


@case
def a_result_that_finds_no_memory_fails_the_call_on_all_ranks() -> None:
    share, everything = np.zeros(MUCH, np.uint8), np.zeros(group.size * MUCH, np.uint8)
    own = np.empty(MUCH, np.uint8)
    calls = [
        lambda: group.all_gather(share),
        lambda: group.all_gather(share, counts=[MUCH] * group.size, async_op=True).wait(),
        lambda: group.gather(share, 1),
        lambda: group.scatter(everything, 1) if group.rank == 1 else group.scatter(None, 1, out=own),
        lambda: group.all_to_all(everything),
        lambda: group.all_to_all(everything, sends=[MUCH] * group.size, receives=[MUCH] * group.size),
        lambda: group.reduce_scatter(everything),
        lambda: herringbone.broadcast_state(group, [1, share] if group.rank == 0 else None, root=0),
    ]
    for call in calls:
        check_out_of_memory(group.rank, call, herringbone.OutOfMemoryError)
        assert group.all_reduce(np.ones(1)) == group.size


@case
def the_end() -> None:
    array = herringbone.empty(1000)
    array[:] = 5
    herringbone.finalize()
    assert (array == 5).all()
    error_of(herringbone.ClosedError, lambda: group.all_reduce(array))  # noqa: F821  # deleted below
    error_of(herringbone.ClosedError, lambda: group.explain(1), f"on rank {group.rank}: explain: ")
    error_of(herringbone.ClosedError, lambda: group.recv(array), f"on rank {group.rank}: recv: ")  # noqa: F821
    error_of(herringbone.ClosedError, lambda: herringbone.empty(3), "init")
    del array
    error_of(herringbone.ClosedError, group.barrier)
    assert "torch" not in sys.modules


if __name__ == "__main__":
    group = herringbone.init(timeout=60)
    cases.run(CASES, group.rank)
