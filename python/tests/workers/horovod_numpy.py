"""Horovod's interface for numpy, in cases that every rank runs in the same order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from cases import MUCH, error_of, registry, run, check_out_of_memory

import herringbone.horovod.numpy as hvd
from herringbone.errors import UnsupportedError

CASES, case = registry()


class Descent:
    """A plain optimizer, as programs bring their own."""

    rate = 1.0

    def __init__(self) -> None:
        self.states: list[int] = []

    def create_state(self, index: int, _: Any) -> int:
        self.states.append(index)
        return index

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if isinstance(index, list):
            for each in zip(index, weight, grad, strict=True):
                self.update(*each, None)
            return
        assert state in (index, None)
        weight -= self.rate * grad


@case
def reductions() -> None:
    size, rank = hvd.size(), hvd.rank()
    array = np.arange(4, dtype=np.float32) + rank
    assert np.allclose(hvd.allreduce(array), np.arange(4) + (size - 1) / 2)
    assert np.array_equal(hvd.allreduce_(array.copy(), op=hvd.Sum), size * np.arange(4) + size * (size - 1) / 2)
    assert hvd.allreduce(np.float32(rank), op=hvd.Max) == size - 1
    assert np.allclose(
        hvd.allreduce(array.reshape(2, 2).T, average=False), size * np.array([[0, 2], [1, 3]]) + size * (size - 1) / 2
    )
    one, two = hvd.grouped_allreduce([array, 2 * array], op=hvd.Sum, priority=1)
    assert np.allclose(2 * one, two)
    hvd.grouped_allreduce_([array], op=hvd.Sum)
    assert np.allclose(array, one)
    assert (hvd.reducescatter(np.ones((2 * size, 3)), op=hvd.Sum) == size).all()
    assert hvd.grouped_reducescatter([np.ones(size + 1)], op=hvd.Sum)[0].shape == (2 if rank == 0 else 1,)
    error_of(ValueError, lambda: hvd.allreduce(np.ones(2, np.complex64)), "allreduce: Tensor type complex64 is not supported")
    error_of(ValueError, lambda: hvd.allreduce_(np.ones((2, 3)).T), "not C-contiguous")
    error_of(ValueError, lambda: hvd.grouped_allreduce_([np.ones((2, 3)).T]), "grouped_allreduce_: the array is not C-contiguous")
    error_of(ValueError, lambda: hvd.reducescatter(np.ones(size, np.complex64)), "reducescatter: Tensor type complex64")
    error_of(TypeError, lambda: hvd.allreduce_(op=hvd.Sum), "allreduce_() missing a required argument: 'array'")  # type: ignore[call-arg]
    error_of(TypeError, lambda: hvd.allreduce_([1.0]), "allreduce_ takes numpy arrays, not list")
    error_of(NotImplementedError, lambda: hvd.reducescatter(np.ones(size), op=hvd.Adasum), "whole tensors")
    masked = np.ma.array(np.ones(size), mask=[True] + [False] * (size - 1))
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter, hvd.broadcast):
        arguments = (masked, 0) if call is hvd.broadcast else (masked,)
        error_of(TypeError, lambda call=call, arguments=arguments: call(*arguments), f"{call.__name__} takes no masked arrays")
    for priority in (0.0, None):
        error_of(TypeError, lambda priority=priority: hvd.allreduce(array, priority=priority), "allreduce: priority is a")
    error_of(
        ValueError, lambda: hvd.allreduce(array, process_set=hvd.ProcessSet([0])), "allreduce: Process set provided does not"
    )
    ones = np.ones(size)
    for op in (hvd.Sum, hvd.Adasum):
        error_of(TypeError, lambda op=op: hvd.allreduce(ones, op=op, process_set=3), "allreduce: process_set is a int, not a P")
    for name, more in (("allreduce_", {}), ("grouped_reducescatter", {"op": hvd.Sum})):
        arrays = [ones] if name.startswith("grouped_") else ones
        for factor in ("prescale_factor", "postscale_factor"):
            begin = functools.partial(getattr(hvd, name), arrays, **{factor: "2"}, **more)
            error_of(TypeError, begin, f"{name}: {factor} is a str, not a number")
    for name in ("allreduce", "allreduce_", "allgather", "reducescatter"):
        for wrong in (3, ones):
            begin = functools.partial(getattr(hvd, f"grouped_{name}"), wrong)
            error_of(TypeError, begin, f"grouped_{name}: arrays is a {type(wrong).__name__}, not a list; pass a list")
    rowless, splits = np.complex64(1), [1] + [0] * (size - 1)
    error_of(ValueError, lambda: hvd.allgather(rowless), "allgather: a tensor without dimensions has no rows", "reshape(1)")
    error_of(ValueError, lambda: hvd.alltoall(rowless, splits), "alltoall: a tensor without dimensions has no rows")
    assert hvd.broadcast(rowless * rank, 1) == 1
    for wrapper in (hvd.DistributedOptimizer, functools.partial(hvd.DistributedTrainer, {})):
        error_of(TypeError, functools.partial(wrapper, Descent(), process_set=[0]), ": process_set is a list, not a ProcessSet")
        error_of(TypeError, functools.partial(wrapper, Descent(), gradient_predivide_factor="2"), "predivide_factor is a str")
        error_of(ValueError, functools.partial(wrapper, Descent(), gradient_predivide_factor=0), "predivide_factor is 0; pass 1")
    error_of(hvd.HorovodInternalError, lambda: hvd.allreduce(np.ones(2 + rank), name="x"), "Mismatched ALLREDUCE")


@case
def moves() -> None:
    size, rank = hvd.size(), hvd.rank()
    assert hvd.allgather(np.full((rank + 1, 2), True)).shape == (size * (size + 1) // 2, 2)
    assert hvd.allgather(np.array([rank], "datetime64[s]")).astype(int).tolist() == list(range(size))
    assert hvd.grouped_allgather([np.array([rank])])[0].tolist() == list(range(size))
    array = np.array([rank])
    assert hvd.broadcast(array, 1)[0] == 1 and array[0] == rank
    assert hvd.broadcast_(array, 1)[0] == 1 and array[0] == 1
    assert hvd.alltoall(np.arange(size) + 10 * rank).tolist() == [10 * other + rank for other in range(size)]
    error_of(ValueError, lambda: hvd.alltoall(np.ones(size), [-1] * size), "alltoall: splits are [-1, ", "no length is below 0")
    error_of(ValueError, lambda: hvd.alltoall(np.array(1.0)), "It has 1 rows")
    error_of(ValueError, lambda: hvd.broadcast_(array, size), f"broadcast_: root_rank {size} is not one of")
    error_of(ValueError, lambda: hvd.broadcast_(np.ones((2, 3)).T, 0), "broadcast_: the array is not C-contiguous")
    error_of(
        UnsupportedError, lambda: hvd.grouped_allgather([np.array([None])]), "grouped_allgather does not move Python objects"
    )
    received, lengths = hvd.alltoall(np.full(size, rank), splits=[1] * size)
    assert received.tolist() == list(range(size)) and lengths.tolist() == [1] * size
    assert hvd.broadcast_object({"a": np.ones(2)} if rank else None, 1)["a"].tolist() == [1, 1]
    assert hvd.allgather_object(rank) == list(range(size))
    hvd.barrier()
    assert hvd.join() in range(size)


@case
def a_lack_of_memory_ends_the_operation_and_not_the_job() -> None:
    share, splits = np.ones(MUCH // 2, np.uint8), [0] * hvd.size()
    splits[1] = share.size
    calls: list[Callable[[], Any]] = [lambda: hvd.allgather(share), lambda: hvd.alltoall(share, splits)[0]]
    much, floats, columns = np.zeros(MUCH, np.uint8), np.zeros(MUCH // 4, np.float32), np.zeros((2, MUCH // 2), np.uint8).T
    refused: list[Callable[[], Any]] = [
        lambda: hvd.allreduce(floats, name="result"),
        lambda: hvd.allreduce(floats, name="scaled", prescale_factor=0.5),
        lambda: hvd.grouped_allreduce([floats, np.ones(3, np.float32), np.ones(4, np.float32)], name="grouped"),
        lambda: hvd.broadcast(much, 0, name="result"),
        lambda: hvd.allgather(columns, name="copy"),
        lambda: hvd.broadcast_object({"much": much} if hvd.rank() == 0 else None, 0),
    ]
    for call in calls + refused:
        check_out_of_memory(hvd.rank(), call, hvd.HorovodInternalError)
    everything = hvd.size() * share.size
    assert [call().size for call in calls] == [everything, everything if hvd.rank() == 1 else 0]


@case
def training() -> None:
    size, rank = hvd.size(), hvd.rank()
    late = hvd.Parameter(np.full(3, 5.0) if rank == 0 else None)
    params = {"late": late, "known": hvd.Parameter(np.full(2, float(rank))), "idle": hvd.Parameter(np.ones(1))}
    hvd.broadcast_parameters(params, root_rank=0)
    assert late.data.tolist() == [5.0] * 3 and params["known"].data.tolist() == [0.0] * 2
    late.grad, params["known"].grad = np.full(3, float(rank)), np.full(2, 2.0 * rank)
    optimizer = Descent()
    trainer = hvd.DistributedTrainer(params, optimizer, {"rate": 0.5}, num_groups=2)
    trainer.step(batch_size=2)
    mean = (size - 1) / 2
    assert np.allclose(late.data, 5 - 0.5 * mean / 2) and np.allclose(params["known"].data, -0.5 * mean)
    assert optimizer.states == [0, 1]
    error_of(TypeError, lambda: hvd.DistributedTrainer(params, hvd.DistributedOptimizer(optimizer)), "again")
    error_of(ValueError, lambda: hvd.broadcast_parameters([np.ones(1)], 0), "invalid params of type")


@case
def optimizers() -> None:
    weights, gradients = [np.zeros(2), np.zeros(3)], [np.full(2, float(hvd.rank())), np.full(3, 1.0)]
    wrapped = hvd.DistributedOptimizer(Descent(), gradient_predivide_factor=2.0)
    wrapped.update([0, 1], weights, gradients, None)
    assert np.allclose(weights[0], -(hvd.size() - 1) / 2) and np.allclose(weights[1], -1)
    wrapped.update(0, weights[0], np.ones(2), None)
    assert np.allclose(weights[0], -(hvd.size() - 1) / 2 - 1) and wrapped.rate == 1.0


if __name__ == "__main__":
    hvd.init()
    run(CASES, hvd.rank())
