"""Cases of Horovod's operations on torch tensors, which every rank runs in the same order."""

from __future__ import annotations

import functools
import json
import os
import random
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cases import MUCH, error_of, registry, check_out_of_memory

import herringbone.horovod.torch as hvd

OPERATIONS, case = registry()
"""The cases of this file."""


Pair = namedtuple("Pair", "x y")


class Mapped(dict):
    """A class that does not travel as plain data."""


def own(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """This rank's tensor: small whole numbers, whose sums every type holds exactly."""
    generator = torch.Generator().manual_seed(hvd.rank())
    return torch.randint(-8, 8, shape, generator=generator).to(dtype)


def everybody(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """All ranks' tensors, stacked."""
    made = [torch.randint(-8, 8, shape, generator=torch.Generator().manual_seed(rank)) for rank in range(hvd.size())]
    return torch.stack(made).to(dtype)


@case
def places() -> None:
    assert (hvd.local_rank(), hvd.local_size()) == (hvd.rank(), hvd.size())
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.rank() == int(os.environ["HOROVOD_RANK"])
    assert hvd.is_homogeneous() and hvd.is_initialized()
    assert not (hvd.mpi_built() or hvd.mpi_enabled() or hvd.gloo_built() or hvd.gloo_enabled() or hvd.nccl_built())
    error_of(ValueError, hvd.mpi_threads_supported, "MPI is not enabled")


@case
def allreduces_of_all_types() -> None:
    for dtype in (torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.uint8):
        for shape in ((), (17,), (3, 5, 7), (0, 4)):
            tensor, expected = own(shape).abs().to(dtype), everybody(shape).abs().to(torch.float64).sum(0)
            before = tensor.clone()
            assert torch.equal(hvd.allreduce(tensor, op=hvd.Sum).double(), expected), (dtype, shape)
            assert torch.equal(tensor, before)
            assert torch.equal(hvd.allreduce_(tensor, op=hvd.Sum).double(), expected)
            assert torch.equal(tensor.double(), expected)


@case
def allreduces_of_all_operations() -> None:
    tensor, all_of = own((9,)), everybody((9,))
    for op, expected in (
        (hvd.Average, all_of.mean(0)),
        (hvd.Sum, all_of.sum(0)),
        (hvd.Min, all_of.amin(0)),
        (hvd.Max, all_of.amax(0)),
        (hvd.Product, all_of.prod(0)),
    ):
        assert torch.allclose(hvd.allreduce(tensor, op=op), expected), op
    assert torch.allclose(hvd.allreduce(tensor, average=True), all_of.mean(0))
    scaled = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert torch.allclose(scaled, 2 * all_of.sum(0))
    narrow = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert narrow.dtype == torch.float32 and torch.equal(narrow, all_of.sum(0))
    error_of(ValueError, lambda: hvd.allreduce(tensor, average=True, op=hvd.Sum), "supersedes average")
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(2, dtype=torch.bool)), "is not supported")
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(2, 3).t()), "required to be contiguous")
    error_of(ValueError, lambda: hvd.allreduce(tensor, op=77), "op is 77; pass Average, Sum")
    error_of(ValueError, lambda: hvd.allreduce(tensor, name="\ud800"), "allreduce: name is 'allreduce.\\ud800', which has half")
    for name in ("allreduce", "allreduce_async_", "allgather", "alltoall", "reducescatter", "broadcast_"):
        more = [0] if name == "broadcast_" else []
        said = f"{name} takes torch tensors, not "
        error_of(TypeError, lambda name=name, more=more: getattr(hvd, name)(3, *more), f"{said}int", "horovod.numpy takes arrays")
        if not more and name != "alltoall":
            error_of(TypeError, lambda name=name: getattr(hvd, f"grouped_{name}")([3]), f"grouped_{said}int")
            for wrong in (3, torch.ones(2)):
                begin = functools.partial(getattr(hvd, f"grouped_{name}"), wrong)
                error_of(TypeError, begin, f"grouped_{name}: tensors is a {type(wrong).__name__}, not a list; pass a list")
    error_of(TypeError, lambda: hvd.broadcast_parameters({"a": 1}, 0), "broadcast_parameters takes torch tensors, not int")
    for name, more in (("allreduce", {}), ("allreduce_async_", {"op": hvd.Adasum}), ("reducescatter", {"op": hvd.Sum})):
        call = functools.partial(getattr(hvd, name), tensor, **more)
        error_of(TypeError, functools.partial(call, process_set=3), f"{name}: process_set is a int, not a ProcessSet")
        for factor in ("prescale_factor", "postscale_factor"):
            error_of(TypeError, functools.partial(call, **{factor: "2"}), f"{name}: {factor} is a str, not a number")


@case
def a_group_of_no_tensors_has_no_results() -> None:
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        assert list(call([])) == [], call
    for begin in (hvd.grouped_allreduce_async_, hvd.grouped_allreduce_async, hvd.grouped_allgather_async):
        assert list(hvd.synchronize(begin([]))) == []


@case
def tensors_whose_memory_is_not_their_values() -> None:
    strange = [
        (torch.quantize_per_tensor(torch.ones(hvd.size()), 0.5, 1, torch.qint8), "torch.qint8"),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]), "nested"),
    ]
    for tensor, word in strange:
        calls = (hvd.allreduce_, hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter)
        for call in (*calls, lambda one: hvd.broadcast(one, 0), lambda one: hvd.broadcast_(one, 0)):
            error_of(NotImplementedError, lambda call=call, tensor=tensor: call(tensor), word)
        for grouped in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
            error_of(NotImplementedError, lambda call=grouped, tensor=tensor: call([tensor]), word)
        error_of(NotImplementedError, lambda tensor=tensor: hvd.broadcast_parameters([("a", tensor)], 0), word)


@case
def names_in_any_order() -> None:
    for turn in range(5):
        names = [f"tensor.{turn}.{number}" for number in range(40)]
        random.Random(100 * turn + hvd.rank()).shuffle(names)
        handles = {name: hvd.allreduce_async(torch.full((50,), float(name.split(".")[2])), name=name) for name in names}
        for name, handle in sorted(handles.items()):
            assert (hvd.synchronize(handle) == float(name.split(".")[2])).all()
            error_of(ValueError, lambda over=handle: hvd.poll(over), "was not created or has been cleared")


@case
def groups() -> None:
    tensors = [own((number + 1,)) for number in range(4)]
    sums = [everybody((number + 1,)).sum(0) for number in range(4)]
    assert all(map(torch.equal, hvd.grouped_allreduce(tensors, op=hvd.Sum, name="group"), sums))
    assert all(map(torch.equal, hvd.grouped_allreduce_([each.clone() for each in tensors], op=hvd.Sum), sums))
    gathered = hvd.grouped_allgather([torch.full((hvd.rank(), 2), hvd.rank()), torch.tensor([hvd.rank()])])
    assert gathered[1].tolist() == list(range(hvd.size())) and len(gathered[0]) == sum(range(hvd.size()))
    parts = hvd.grouped_reducescatter([torch.ones(hvd.size()), torch.ones(2 * hvd.size(), 3)], op=hvd.Sum)
    assert [tuple(part.shape) for part in parts] == [(1,), (2, 3)] and (parts[0] == hvd.size()).all()


@case
def allgathers() -> None:
    for dtype in (torch.uint8, torch.bool, torch.int16, torch.float16, torch.float32, torch.complex64):
        tensor = torch.full((hvd.rank() + 1, 3), 1).to(dtype)
        everything = hvd.allgather(tensor)
        assert everything.shape == (sum(range(hvd.size() + 1)), 3) and everything.dtype == dtype
        assert (everything == 1).all()
    assert hvd.allgather(torch.empty(0, 2)).shape == (0, 2)
    error_of(
        ValueError, lambda: hvd.allgather(torch.tensor(1j)), "allgather: a tensor without dimensions has no rows", "reshape(1)"
    )


@case
def broadcasts() -> None:
    for root in range(hvd.size()):
        tensor = torch.full((5,), float(hvd.rank()))
        assert (hvd.broadcast(tensor, root) == root).all() and (tensor == hvd.rank()).all()
        assert (hvd.broadcast_(tensor, root) == root).all() and (tensor == root).all()
    assert hvd.broadcast(torch.tensor(1j * hvd.rank()), 1).item() == 1j
    error_of(ValueError, lambda: hvd.broadcast(torch.ones(1), hvd.size()), f"root_rank {hvd.size()} is not one of")
    error_of(TypeError, lambda: hvd.broadcast_(torch.ones(1), 0, process_set=[0]), "broadcast_: process_set is a list")
    error_of(TypeError, lambda: hvd.broadcast_object(1, process_set=3), "broadcast_object: process_set is a int")
    numbered: Any = 5  # other calls take such names, too
    assert (hvd.broadcast_object(1, name=numbered), hvd.allgather_object(1, name=numbered)) == (1, [1] * hvd.size())
    error_of(TypeError, lambda: hvd.barrier(3), "barrier: process_set is a int")


@case
def alltoalls() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.alltoall(torch.arange(size) + 10 * rank).tolist() == [10 * other + rank for other in range(size)]
    tensor = torch.full((sum(range(size)), 2), rank)
    received, lengths = hvd.alltoall(tensor, splits=torch.arange(size, dtype=torch.int32))
    assert lengths.tolist() == [rank] * size and lengths.dtype == torch.int32
    assert received[:, 0].tolist() == [other for other in range(size) for _ in range(rank)]
    assert hvd.alltoall(torch.arange(2.0 * size + 3), splits=[2] * size)[0].shape == (2 * size,)
    rowless, splits = torch.tensor(1j), [1] + [0] * (size - 1)
    error_of(ValueError, lambda: hvd.alltoall(rowless, splits), "alltoall: a tensor without dimensions has no rows")
    error_of(TypeError, lambda: hvd.alltoall(tensor, process_set=3), "alltoall: process_set is a int, not a ProcessSet")
    error_of(ValueError, lambda: hvd.alltoall(torch.empty(size + 1)), "not an even multiple of the number of workers")
    error_of(ValueError, lambda: hvd.alltoall(torch.empty(1), splits=[1] * size), "greater than the first dimension")
    error_of(ValueError, lambda: hvd.alltoall(torch.empty(1), splits=[1]), "does not equal number of workers")
    error_of(
        TypeError, lambda: hvd.alltoall(torch.empty(1), splits=[0.5] * size), "one of splits is a float, not a number of rows"
    )
    error_of(ValueError, lambda: hvd.alltoall(torch.empty(size), splits=torch.ones(size)), "contain integer elements")


@case
def reducescatters() -> None:
    size, rank = hvd.size(), hvd.rank()
    part = hvd.reducescatter(torch.arange(2 * size + 1.0).repeat(3, 1).t().contiguous(), op=hvd.Sum)
    first = 2 * rank + min(rank, 1)
    assert part.shape == (3 if rank == 0 else 2, 3)
    assert part[:, 0].tolist() == [size * (first + row) for row in range(len(part))]
    for call in (hvd.reducescatter, lambda x, op: hvd.grouped_reducescatter([x], op=op)):
        error_of(NotImplementedError, functools.partial(call, torch.ones(size), op=hvd.Adasum), "whole tensors")


@case
def gradients() -> None:
    size, rank = hvd.size(), hvd.rank()

    def gradient(call: object, shape: tuple[int, ...]) -> torch.Tensor:
        tensor = torch.ones(shape, requires_grad=True)
        (call(tensor) * 3).sum().backward()  # type: ignore[operator]  # it is a function
        assert tensor.grad is not None
        return tensor.grad

    assert (gradient(lambda x: hvd.allreduce(x, op=hvd.Sum), (4,)) == 3 * size).all()
    assert (gradient(lambda x: hvd.allreduce(x), (4,)) == 3).all()
    assert (gradient(lambda x: torch.cat(hvd.grouped_allreduce([x, x], op=hvd.Sum)), (4,)) == 6 * size).all()
    assert (gradient(lambda x: hvd.allgather(x), (rank + 1, 2)) == 3).all()
    assert (gradient(lambda x: hvd.broadcast(x, 1), (4,)) == (3 if rank == 1 else 0)).all()
    assert (gradient(lambda x: hvd.alltoall(x, [1] * size)[0], (size,)) == 3).all()
    assert (gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size,)) == 3 * size).all()


@case
def adasum() -> None:
    size, rank = hvd.size(), hvd.rank()
    orthogonal = torch.zeros(size)
    orthogonal[rank] = rank + 1.0
    assert torch.allclose(hvd.allreduce(orthogonal, op=hvd.Adasum), torch.arange(1.0, size + 1))
    parallel = hvd.allreduce(torch.full((6,), 2.0), op=hvd.Adasum)
    assert torch.allclose(parallel, torch.full((6,), 2.0))


@case
def sparse() -> None:
    tensor = torch.sparse_coo_tensor([[hvd.rank(), 0]], [1.0, 2.0], (hvd.size(),), check_invariants=True)
    reduced = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)().to_dense()
    assert reduced.tolist() == [2.0 * hvd.size() + 1] + [1.0] * (hvd.size() - 1)
    averaged = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Average)().to_dense()
    assert torch.allclose(averaged, reduced / hvd.size())
    dense = "sparse_allreduce_async: the tensor is torch.strided, not sparse; use allreduce_async"
    error_of(ValueError, lambda: hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum), dense)
    error_of(ValueError, lambda: hvd.sparse_allreduce_async(tensor, "largest", hvd.Max), "op is Max; pass Average or Sum")
    error_of(TypeError, lambda: hvd.sparse_allreduce_async([1], "list", hvd.Sum), "sparse_allreduce_async takes torch tensors")


@case
def objects() -> None:
    sent = {"a": [1, (2, 3)], 7: {4, 5}, "bytes": b"\x00x", "tensor": torch.arange(3), "none": None, "empty": {}}
    received = hvd.broadcast_object(sent if hvd.rank() == 1 else None, root_rank=1)
    assert str(received) == str(sent)
    gathered = hvd.allgather_object({"rank": hvd.rank(), "list": list(range(hvd.rank()))})
    assert gathered == [{"rank": rank, "list": list(range(rank))} for rank in range(hvd.size())]
    wrong, reported = (
        (TypeError, "is of the type function") if hvd.rank() == 0 else (hvd.HorovodInternalError, "rank 0 has an object")
    )
    pickles = "_object(..., allow_pickle=True) on all ranks" if hvd.rank() == 0 else "its own error says why"
    error_of(wrong, lambda: hvd.broadcast_object(own), reported, pickles)
    error_of(wrong, lambda: hvd.allgather_object(own if hvd.rank() == 0 else 1), reported, pickles)


@case
def objects_arrive_as_their_own_types_on_every_rank() -> None:
    sent = {
        "pair": Pair(1, [2]),
        "order": OrderedDict(b=1, a=2),
        "counted": Counter("aab"),
        "raw": bytearray(b"x"),
        "type": torch.float16,
    }
    received = hvd.broadcast_object(sent if hvd.rank() == 0 else None)
    assert received == sent and [type(each) for each in received.values()] == [type(each) for each in sent.values()]
    wrong, reported = (
        (TypeError, "is of the type Mapped") if hvd.rank() == 0 else (hvd.HorovodInternalError, "rank 0 has an object")
    )
    error_of(wrong, lambda: hvd.broadcast_object(Mapped(a=1)), reported)


@case
def objects_are_pickled_if_all_ranks_say_so_and_the_job_has_a_token() -> None:
    received = hvd.broadcast_object(Mapped(a=1) if hvd.rank() == 0 else None, allow_pickle=True)
    assert type(received) is Mapped and received == {"a": 1}
    gathered = hvd.allgather_object(Mapped(rank=hvd.rank()) if hvd.rank() else [0], allow_pickle=True)
    assert gathered == [[0], *(Mapped(rank=rank) for rank in range(1, hvd.size()))]
    if hvd.rank() == 0:
        hvd.broadcast_object(Mapped(a=1), allow_pickle=True)
    else:
        error_of(ValueError, lambda: hvd.broadcast_object(None), "rank 0 sent a pickled object; pass allow_pickle=True")
    token = os.environ.pop("HERRINGBONE_TOKEN")
    error_of(ValueError, lambda: hvd.broadcast_object(1, allow_pickle=True), "the job needs a token: set HERRINGBONE_TOKEN")
    os.environ["HERRINGBONE_TOKEN"] = ""
    error_of(ValueError, lambda: hvd.broadcast_object(1, allow_pickle=True), "the job needs a token")
    os.environ["HERRINGBONE_TOKEN"] = token


@case
def memory_that_lacks_fails_the_operation_on_all_ranks() -> None:
    floats, columns = torch.zeros(MUCH // 4), torch.zeros(2, MUCH // 2, dtype=torch.uint8).t()
    halves = torch.zeros(MUCH // 2)
    weight = torch.nn.Parameter(torch.zeros(MUCH // 4))
    weight.grad = torch.zeros(MUCH // 4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.1), [("weight", weight)], op=hvd.Adasum)
    calls: list[Callable[[], object]] = [
        optimizer.step,
        lambda: hvd.allreduce(floats, name="result"),
        lambda: hvd.allreduce(halves, name="narrow", compression=hvd.Compression.fp16),
        lambda: hvd.allreduce(floats, name="adaptive", op=hvd.Adasum),
        lambda: hvd.broadcast(floats, 1, name="result"),
        lambda: hvd.broadcast_parameters({"columns": columns}, 0),
    ]
    for call in calls:
        check_out_of_memory(hvd.rank(), call, hvd.HorovodInternalError)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@case
def mistakes_of_ranks_are_told_to_all() -> None:
    rank = hvd.rank()
    error, none = hvd.HorovodInternalError, torch.ones
    error_of(error, lambda: hvd.allreduce(none(2 + rank), name="x"), "Mismatched ALLREDUCE tensor shapes")
    other = torch.ones(2, dtype=torch.float64 if rank else torch.float32)
    error_of(error, lambda: hvd.allreduce(other, name="x"), "Mismatched data types")
    op = hvd.Sum if rank else hvd.Max
    error_of(error, lambda: hvd.allreduce(none(2), op=op, name="x"), "Mismatched reduction operation")
    factor = 2.0 if rank else 1.0
    error_of(error, lambda: hvd.allreduce(none(2), prescale_factor=factor, name="x"), "Mismatched prescale")
    error_of(error, lambda: hvd.broadcast(none(2), min(rank, 1), name="x"), "Mismatched BROADCAST root ranks")
    error_of(error, lambda: hvd.allgather(none(2, 2 + rank), name="x"), "Mismatched ALLGATHER tensor shapes")
    hvd.allreduce(none(2), name="x")
    begun = hvd.allreduce_async(none(200, 200), name="twice")

    def again() -> None:
        for _ in range(10):
            hvd.allreduce_async(none(200, 200), name="twice")

    error_of(ValueError, again, "Requested to allreduce, allgather, or broadcast a tensor with the same name")
    hvd.synchronize(begun)
    hvd.barrier()


@case
def joins() -> None:
    size, rank = hvd.size(), hvd.rank()
    for early in (0, size - 1):
        if rank != early:
            for batch in range(3):
                averaged = hvd.allreduce(torch.full((5,), float(size)), name=f"batch.{batch}")
                assert (averaged == size - 1).all()
        assert hvd.join() != early
    if rank:
        error_of(hvd.HorovodInternalError, lambda: hvd.allgather(torch.ones(2)), "is not supported with Join")
    hvd.join()
    assert (hvd.allreduce(torch.ones(2)) == 1).all()


@case
def process_sets() -> None:
    assert str(hvd.global_process_set) == f"ProcessSet(process_set_id=0, ranks={list(range(hvd.size()))}, mpi_comm=None)"
    error_of(ValueError, lambda: hvd.add_process_set([0]), "Set HOROVOD_DYNAMIC_PROCESS_SETS=1")
    even, odd = hvd.ProcessSet(range(0, hvd.size(), 2)), hvd.ProcessSet(range(1, hvd.size(), 2))
    hvd.shutdown()
    assert not hvd.is_initialized()
    error_of(ValueError, hvd.rank, "Horovod has not been initialized; use hvd.init().")
    hvd.init(process_sets=[even, odd])
    mine, foreign = (odd, even) if hvd.rank() % 2 else (even, odd)
    assert (mine.included(), foreign.included(), mine.rank()) == (True, False, hvd.rank() // 2)
    assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=mine).tolist() == mine.ranks
    root = mine.ranks[-1]
    assert hvd.broadcast(torch.tensor([hvd.rank()]), root, process_set=mine).item() == root
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=foreign), "is not a member of")
    error_of(ValueError, foreign.rank, "not part of provided process set")
    error_of(NotImplementedError, lambda: hvd.allreduce(torch.ones(1), op=hvd.Adasum, process_set=mine), "non-global")
    hvd.shutdown()
    duplicate = [hvd.ProcessSet([0]), hvd.ProcessSet([0])]
    error_of(ValueError, lambda: hvd.init(process_sets=duplicate), "process_sets entry number 1 is a duplicate")
    error_of(TypeError, lambda: hvd.init(process_sets=[[0]]), "init: one of process_sets is a list, not a ProcessSet")
    error_of(TypeError, lambda: hvd.init(process_sets=3), "init: process_sets is a int, not a list")
    hvd.init(process_sets="dynamic")
    added = hvd.add_process_set([0, 1])
    assert (added.size(), added.process_set_id) == (2, 1)
    error_of(ValueError, lambda: hvd.add_process_set([1, 0]), "duplicate process set")
    error_of(TypeError, lambda: hvd.remove_process_set([0, 1]), "remove_process_set: process_set is a list, not a ProcessSet")
    error_of(ValueError, lambda: hvd.add_process_set([0, 1 + hvd.rank() % 2 + 1]), "rank 0 has")
    if added.included():
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=added).tolist() == [2.0, 2.0]
    assert hvd.remove_process_set(added) and not hvd.remove_process_set(added)
    assert not hvd.remove_process_set(hvd.global_process_set)
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=added), "does not exist")
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "0"


@case
def some_ranks_as_the_world() -> None:
    hvd.shutdown()
    half = [0, 1] if hvd_launched() < 2 else [2, 3]
    hvd.init(comm=half)
    assert (hvd.size(), hvd.rank()) == (2, hvd_launched() % 2)
    assert hvd.allgather(torch.tensor([hvd_launched()])).tolist() == half
    hvd.shutdown()
    error_of(ValueError, lambda: hvd.init(comm="communicator"), "Expected list of rank integers")
    hvd.init()


def hvd_launched() -> int:
    """The rank that the launcher gave to this process."""
    return int(os.environ["HOROVOD_RANK"])


@case
def timelines() -> None:
    file = Path(os.environ["RESULTS"]) / "timeline.json"
    hvd.start_timeline(str(file), mark_cycles=True)
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name="traced")
    hvd.stop_timeline()
    if hvd.rank() == 0:
        text = file.read_text()
        assert isinstance(json.loads(text), list)
        assert "allreduce.traced" in text and "NEGOTIATE_ALLREDUCE" in text and "CYCLE_START" in text
    hvd.barrier()
