"""A rank that submits named operations in its own order, in one of several ways, and prints what it saw as JSON.

Usage: named.py WAY. The place is the environment's.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import herringbone
from herringbone._herringbone import Controller, NamedResult, NamedWork

NAMES = {
    "float32": "f32",
    "float16": "f16",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "uint16": "bf16",
    "uint8": "u8",
}
"""numpy has no bfloat16: its bits are in uint16."""


KEPT: list[object] = []
"""What lives until the end of the process."""


class Ranks:
    """This rank's controller, and the calls of the tests."""

    def __init__(self, **options: Any) -> None:
        self.group = herringbone.init(timeout=60)
        self.rank, self.size = self.group.rank, self.group.size
        self.controller = Controller(self.group._native, **options)

    def reduce(self, name: str, array: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None = None, **more: Any) -> NamedWork:
        target = array if out is None else out
        return self.controller.submit("allreduce", name, array, target, dtype=NAMES[array.dtype.name], shape=array.shape, **more)

    def move(self, operation: str, name: str, array: np.ndarray[Any, Any], **more: Any) -> NamedWork:
        return self.controller.submit(operation, name, array, None, dtype=NAMES[array.dtype.name], shape=array.shape, **more)

    def counters(self) -> dict[str, int]:
        return self.controller.counters()

    def barrier(self, name: str) -> None:
        self.controller.submit("barrier", name, None, None, dtype="u8", shape=[]).wait()

    def leave(self) -> None:
        self.controller.shutdown()
        self.group.close()


def values(rank: int, name: int, count: int, dtype: str) -> np.ndarray[Any, Any]:
    """Numbers that say whose they are; of bfloat16 the upper halves of float32."""
    numbers = np.random.default_rng(1000 * rank + name).standard_normal(count).astype(np.float32)
    if dtype == "bfloat16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    return numbers.astype(dtype)


def held(result: NamedResult, dtype: Any) -> np.ndarray[Any, Any]:
    """What an operation has brought."""
    assert result.data is not None
    return np.frombuffer(result.data, dtype).reshape(result.shape)


def error_of(call: Callable[[], object]) -> str:
    """The type and text of the error of a call."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def any_order() -> dict[str, Any]:
    """Names come in another order on each rank, over and over; sums are those of all ranks, and the cache saves rank 0 all."""
    ranks = Ranks()
    order = random.Random(ranks.rank)
    expected = {name: sum(values(rank, name, 100 + name, "float32") for rank in range(ranks.size)) for name in range(40)}
    seen = []
    for step in range(30):
        names = list(range(40))
        order.shuffle(names)
        arrays = {name: values(ranks.rank, name, 100 + name, "float32") for name in names}
        works = [ranks.reduce(f"tensor.{name}", arrays[name]) for name in names]
        for work in works:
            work.wait(30)
        assert all(np.allclose(arrays[name], expected[name], atol=1e-5) for name in names), step
        if step in (9, 29):
            seen.append(ranks.counters())
    ranks.leave()
    return {"first": seen[0], "last": seen[1]}


def reference(name: int, size: int, count: int, dtype: str, op: str, before: float, after: float) -> Any:
    """What a fold of all ranks' values is near to, in float64."""
    wide = [values(rank, name, count, dtype) for rank in range(size)]
    if dtype == "bfloat16":
        wide = [(bits.astype(np.uint32) << 16).view(np.float32) for bits in wide]
    all_of = np.stack([array.astype(np.float64) for array in wide]) * before
    folds: dict[str, Any] = {
        "sum": all_of.sum,
        "average": all_of.mean,
        "min": all_of.min,
        "max": all_of.max,
        "product": all_of.prod,
    }
    return folds[op](axis=0) * after


def fused() -> dict[str, Any]:
    """Tensors that run as one have the bits of tensors that run alone, whatever their type, operation and factors.

    The last two are so large that they are not copied together with the others.
    """
    ranks = Ranks(cycle_time=0.02)
    counts = [1, 3, 17, 1000, 4097, 70001, 80000]
    checked = 0
    for dtype in ("float32", "bfloat16", "float16", "float64", "int32"):
        for op in ("sum", "average", "min", "max", "product"):
            for before, after in ((1.0, 1.0), (0.5, 3.0)):
                kind = {"bfloat16": "uint16"}.get(dtype, dtype)
                one_by_one, together = [], []
                scales: dict[str, Any] = {"prescale": before, "postscale": after}
                for number, count in enumerate(counts):
                    array = values(ranks.rank, number, count, dtype)
                    assert array.dtype == kind
                    alone = np.empty_like(array)
                    ranks.reduce(f"alone.{dtype}.{op}.{before}.{number}", array, alone, op=op, **scales).wait(30)
                    one_by_one.append(alone)
                ranks.barrier(f"between.{checked}")
                before_fusion = ranks.counters()["fused_tensors"]
                works = []
                for number, count in enumerate(counts):
                    array = values(ranks.rank, number, count, dtype)
                    out = np.empty_like(array)
                    name = f"fused.{dtype}.{op}.{before}.{number}"
                    works.append(ranks.reduce(name, array, out, op=op, group=(f"group {checked}", len(counts)), **scales))
                    together.append(out)
                for work in works:
                    work.wait(30)
                assert ranks.counters()["fused_tensors"] == before_fusion + len(counts)
                # Parts of one array lie one behind the other: they are not copied together.
                whole = np.concatenate([values(ranks.rank, number, count, dtype) for number, count in enumerate(counts)])
                ends = np.cumsum([0, *counts])
                pieces = [whole[ends[number] : ends[number + 1]] for number in range(len(counts))]
                named = [f"whole.{dtype}.{op}.{before}.{number}" for number in range(len(counts))]
                more: dict[str, Any] = {"op": op, "group": (f"pieces {checked}", len(counts)), **scales}
                for work in [ranks.reduce(name, piece, **more) for name, piece in zip(named, pieces, strict=True)]:
                    work.wait(30)
                assert whole.tobytes() == b"".join(alone.tobytes() for alone in one_by_one), (dtype, op, before)
                for number, (alone, out) in enumerate(zip(one_by_one, together, strict=True)):
                    assert alone.tobytes() == out.tobytes(), (dtype, op, before, number)
                    if dtype in ("float32", "float64"):
                        near = reference(number, ranks.size, counts[number], dtype, op, before, after)
                        assert np.allclose(out, near, atol=1e-4), (dtype, op, before, number)
                checked += 1
    ranks.leave()
    return {"checked": checked}


def adasum_of(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    dot, first, second = (float((one * two).sum()), float((one * one).sum()), float((two * two).sum()))
    least = np.sqrt(np.finfo(np.float64).tiny)
    of_first = 1.0 if first < least else 1 - dot / (2 * first)
    of_second = 1.0 if second < least else 1 - dot / (2 * second)
    return of_first * one + of_second * two


def adasum() -> dict[str, Any]:
    """Adasum is what numpy makes of it, and orthogonal tensors add up."""
    ranks = Ranks()
    for dtype, close in (("float64", 1e-12), ("float32", 1e-5), ("float16", 2e-2)):
        level = [values(rank, 5, 5000, dtype).astype(np.float64) for rank in range(ranks.size)]
        while len(level) > 1:
            level = [adasum_of(one, two) for one, two in zip(level[::2], level[1::2], strict=True)]
        array = values(ranks.rank, 5, 5000, dtype)
        out = np.empty_like(array)
        ranks.reduce(f"ada.{dtype}", array, out, op="adasum").wait(30)
        assert np.allclose(out, level[0], atol=close, rtol=close), dtype
    unit = np.zeros(ranks.size)
    unit[ranks.rank] = ranks.rank + 1
    ranks.reduce("orthogonal", unit, op="adasum").wait(30)
    assert (unit == np.arange(1, ranks.size + 1)).all(), unit
    same = np.full(3, 7.0)
    ranks.reduce("parallel", same, op="adasum").wait(30)
    assert np.allclose(same, 7.0), same
    ranks.leave()
    return {}


def moves() -> dict[str, Any]:
    """Allgathers of rows that differ in number, alone and fused; alltoalls, reducescatters and broadcasts."""
    ranks = Ranks(cycle_time=0.01)
    me, size = ranks.rank, ranks.size
    for step in range(3):
        # The second step is known to the cache, the third has other numbers of rows.
        rows = [(rank + step // 2) % 3 for rank in range(size)]
        parts = [np.full((rows[rank], 2), rank + step, np.float32) for rank in range(size)]
        result = ranks.move("allgather", "ragged", parts[me]).result()
        assert result.shape == (sum(rows), 2)
        assert (held(result, np.float32) == np.concatenate(parts)).all()
        ranks.barrier(f"moves.{step}")
        works = [
            ranks.move("allgather", f"g{width}", np.full((rows[me], width), me, np.float32), group=("gathers", 3))
            for width in (1, 4, 2)
        ]
        for width, work in zip((1, 4, 2), works, strict=True):
            expected = np.concatenate([np.full((rows[rank], width), rank, np.float32) for rank in range(size)])
            assert (held(work.result(), np.float32) == expected).all()
        splits = [(me + to + step // 2) % 3 for to in range(size)]
        source = np.concatenate([np.full((splits[to], 3), 10 * me + to, np.int32) for to in range(size)])
        result = ranks.move("alltoall", "swap", source, splits=splits).result()
        received = [(rank + me + step // 2) % 3 for rank in range(size)]
        assert result.received_splits == received
        expected = np.concatenate([np.full((received[rank], 3), 10 * rank + me, np.int32) for rank in range(size)])
        assert (held(result, np.int32) == expected).all()
        even = ranks.move("alltoall", "even", np.arange(2 * size, dtype=np.int64)).result()
        assert held(even, np.int64).tolist() == [2 * me, 2 * me + 1] * size
        for count in (2 * size, 2 * size + 1, size - 1):
            whole = np.arange(count * 2, dtype=np.float32).reshape(count, 2) + me
            result = ranks.move("reducescatter", f"rows.{count}", whole, op="average", postscale=2.0).result()
            sizes = [count // size + (rank < count % size) for rank in range(size)]
            own = slice(sum(sizes[:me]), sum(sizes[: me + 1]))
            expected = 2 * (np.arange(count * 2, dtype=np.float32).reshape(count, 2) + (size - 1) / 2)[own]
            assert (held(result, np.float32) == expected).all(), count
        copied = np.full(5, me, np.float64)
        out = np.zeros(5)
        ranks.controller.submit("broadcast", "copy", copied, out, dtype="f64", shape=[5], root=size - 1).wait(30)
        assert (out == size - 1).all()
    error = error_of(lambda: ranks.move("alltoall", "odd", np.zeros(size + 1)).wait(30))
    assert size == 1 or error.startswith("NamedError: odd: tensor's first dimension"), error
    frozen, out = np.ones(2), np.zeros(2)
    frozen.flags.writeable = False
    ranks.reduce("read", frozen, out).wait(30)
    error = error_of(lambda: ranks.reduce("written", np.ones(2), frozen).wait(30))
    assert (out == size).all() and error == "ValueError: the array is read-only: pass array.copy()", error
    # A refusal concerns this rank alone, and whoever leaves shuts all down: each is refused before.
    ranks.barrier("all refused")
    ranks.leave()
    return {}


def mismatches() -> dict[str, Any]:
    """Ranks that do not agree are told on every rank, and go on."""
    ranks = Ranks()
    me = ranks.rank
    said = []

    def reduce_error(name: str, array: np.ndarray[Any, Any], **more: Any) -> str:
        return error_of(lambda: ranks.reduce(name, array, **more).wait(30))

    for step in range(2):
        said.append(reduce_error("types", np.zeros(2, np.float32 if me == 0 else np.float64)))
        said.append(reduce_error("shapes", np.zeros(2 + me)))
        said.append(reduce_error("factors", np.zeros(2), postscale=1.0 + (me == 1)))
        said.append(reduce_error("ops", np.zeros(2), op="sum" if me == 0 else "min"))
        array = np.zeros(2)
        roots = ranks.controller.submit("broadcast", "roots", array, array, dtype="f64", shape=[2], root=me)
        said.append(error_of(roots.wait))
        good = np.ones(2)
        ranks.reduce("good", good).wait(30)
        assert (good == ranks.size).all(), step
    first = ranks.reduce("twice" if me else "twice too", np.ones(2))
    twice = error_of(lambda: ranks.reduce("twice" if me else "twice too", np.ones(2)))
    ranks.reduce("twice too" if me else "twice", np.ones(2)).wait(30)
    first.wait(30)
    assert said[:5] == said[5:]
    pending = ranks.reduce("of one rank", np.ones(2)) if me == 0 else None
    ranks.barrier("before the end")
    ranks.leave()
    after = [error_of(lambda: pending.wait(30))] if pending else []
    after.append(error_of(lambda: ranks.reduce("late", np.ones(2))))
    return {"said": said[:5], "twice": twice, "after": after}


def joins() -> dict[str, Any]:
    """A rank without data contributes zeros; the last one to join is told to all."""
    ranks = Ranks()
    me, size = ranks.rank, ranks.size
    last = None
    for _ in range(2):
        for step in range(2 * (me + 1)):
            array = np.ones(50_000 if step % 2 else 3)
            ranks.reduce(f"step.{step}", array, op="average").wait(30)
            # A rank has joined after as many steps as it has: those that are left are the ones with more.
            left = sum(2 * (rank + 1) > step for rank in range(size))
            assert np.isclose(array, left / size).all(), (step, array, left)
        if me == size - 1:
            gathered = error_of(lambda: ranks.move("allgather", "no", np.zeros((1, 1))).wait(30))
            assert gathered == "NamedError: Allgather is not supported with Join at this time.", gathered
        last = ranks.controller.join().result().last_joined
        assert last == size - 1, last
    array = np.ones(3)
    ranks.reduce("all again", array).wait(30)
    assert (array == size).all()
    ranks.leave()
    return {"last": last}


def idles() -> dict[str, Any]:
    """Ranks that wait take no time of a core, also if some of them have submitted what others have not."""
    ranks = Ranks()
    ranks.reduce("first", np.ones(4)).wait(30)
    work = ranks.reduce("waits", np.ones(4)) if ranks.rank == 0 else None
    time.sleep(0.3)
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(4)
    after = resource.getrusage(resource.RUSAGE_SELF)
    share = (after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime) / (time.monotonic() - began)
    agreements = ranks.counters()["agreements"]
    if work is None:
        work = ranks.reduce("waits", np.ones(4))
    work.wait(30)
    ranks.leave()
    return {"share": share, "agreements": agreements}


def lost() -> dict[str, Any]:
    """The last rank dies while others wait for it: they are told which one, and nothing is taken any more."""
    ranks = Ranks()
    ranks.reduce("first", np.ones(4)).wait(30)
    if ranks.rank == ranks.size - 1:
        # The others have what it has sent, and wait.
        time.sleep(0.5)
        print(json.dumps({}), flush=True)
        os._exit(0)
    work = ranks.reduce("waits", np.ones(4))
    began = time.monotonic()
    waited = error_of(lambda: work.wait(30))
    took = time.monotonic() - began
    late = error_of(lambda: ranks.reduce("late", np.ones(4)))
    ranks.controller.shutdown()
    ranks.group.close()
    return {"waited": waited, "late": late, "took": took}


def stalls() -> dict[str, Any]:
    """Rank 0 says which rank is missing, also of what the cache knows, and then all ranks shut down."""
    ranks = Ranks(stall_warning=1.0, stall_shutdown=2.0)
    ranks.reduce("known", np.ones(4)).wait(30)
    work = ranks.reduce("other" if ranks.rank == 1 else "known", np.ones(4))
    said = error_of(lambda: work.wait(30))
    ranks.leave()
    return {"said": said}


def traces(path: str) -> dict[str, Any]:
    """Rank 0 writes what happens to each tensor, and the file is whole after the end."""
    ranks = Ranks(cycle_time=0.01)
    ranks.reduce("before", np.ones(4)).wait(30)
    ranks.controller.start_timeline(path, True)
    ranks.group.barrier()
    for step in range(2):
        works = [ranks.reduce(name, np.ones(4), group=("pair", 2)) for name in ("a", "b")]
        for work in works:
            work.wait(30)
        ranks.move("allgather", f"rows.{step}", np.ones((1, 2))).wait(30)
    ranks.controller.stop_timeline()
    ranks.group.barrier()
    ranks.reduce("after", np.ones(4)).wait(30)
    exists = Path(path).exists()
    ranks.leave()
    return {"events": json.loads(Path(path).read_text()) if ranks.rank == 0 and exists else []}


def killed_while_it_traces(path: str) -> dict[str, Any]:
    """All ranks are killed, once they have run a few operations and while one more waits for a rank."""
    ranks = Ranks()
    ranks.controller.start_timeline(path)
    ranks.group.barrier()
    for _ in range(3):
        ranks.reduce("whole", np.ones(4)).wait(30)
    # What ran before it is in the file.
    ranks.barrier("after all")
    if ranks.rank == 0:
        KEPT.append(ranks.reduce("half", np.ones(4)))
        deadline = time.monotonic() + 30
        while "half" not in Path(path).read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    else:
        error_of(ranks.group.barrier)  # until rank 0 is lost
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("this process is dead")


def tunes(path: str) -> dict[str, Any]:
    """The autotuner tries its grid and goes on with the right sums."""
    ranks = Ranks(autotune=True, autotune_log=path, autotune_warmup_samples=0, autotune_steps_per_sample=1, cycle_time=0.0)
    for step in range(130):
        arrays = [np.ones(100) for _ in range(3)]
        works = [ranks.reduce(f"t{number}", array) for number, array in enumerate(arrays)]
        for work in works:
            work.wait(30)
        assert all((array == ranks.size).all() for array in arrays), step
    ranks.leave()
    return {"log": Path(path).read_text().splitlines() if ranks.rank == 0 else []}


def ways_out(way: str) -> dict[str, Any]:
    """Processes that fork, or end with work under way, come to their ends."""
    ranks = Ranks()
    ranks.reduce("first", np.ones(4)).wait(30)
    said = ""
    if way == "fork":
        work = ranks.reduce("waits", np.ones(4)) if ranks.rank == 0 else None
        child = os.fork()
        if child == 0:
            is_reported = error_of(lambda: ranks.reduce("x", np.ones(1))).startswith("ForkedError")
            is_reported = is_reported and (work is None or error_of(work.wait).startswith("ForkedError"))
            ranks.controller.shutdown()
            os._exit(0 if is_reported else 1)
        said = str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        (work or ranks.reduce("waits", np.ones(4))).wait(30)
        ranks.leave()
    elif way == "exit":
        # Nothing is shut down by hand, and rank 0 has something that nobody else has.
        KEPT.extend([ranks, ranks.reduce("of one rank", np.ones(4)) if ranks.rank == 0 else None])
        ranks.barrier("all have come so far")
    return {"said": said}


WAYS: list[Callable[..., dict[str, Any]]] = [
    any_order,
    fused,
    adasum,
    moves,
    mismatches,
    joins,
    idles,
    lost,
    stalls,
    traces,
    killed_while_it_traces,
    tunes,
    ways_out,
]


if __name__ == "__main__":
    result = {way.__name__: way for way in WAYS}[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(result), flush=True)
