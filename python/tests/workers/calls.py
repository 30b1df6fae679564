"""What torch asks of a group besides moving data, and what goes through its own C++ code; two ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import cases
import dispatching
import torch
import torch.distributed as dist
from cases import error_of
from torch.nn.parallel import DistributedDataParallel
from values import rank, same, size

import herringbone

CASES, case = cases.registry()

CPU = torch.device("cpu")


def total() -> float:
    return float(sum(range(1, size() + 1)))


def mine(length: int = 4) -> torch.Tensor:
    return torch.full((length,), float(rank() + 1))


@case
def a_backend_has_options() -> None:
    backend = dist.group.WORLD._get_backend(CPU)
    assert backend.options.backend == "herringbone"
    assert backend.supports_splitting


@case
def calls_are_numbered_and_named() -> None:
    group = dist.new_group()
    group._set_sequence_number_for_group()
    before = group._get_sequence_number_for_group()
    first = dist.all_reduce(mine(), group=group, async_op=True)
    second = dist.broadcast(mine(), 0, group=group, async_op=True)
    first.wait(), second.wait()
    assert (first._get_sequence_number(), second._get_sequence_number()) == (before + 1, before + 2)
    assert group._get_sequence_number_for_group() == before + 2
    assert group._get_backend(CPU)._get_sequence_number_for_group() == before + 2
    real = dist.new_group(backend="gloo")
    theirs = [dist.all_reduce(mine(), group=real, async_op=True), dist.broadcast(mine(), 0, group=real, async_op=True)]
    assert [first._get_op_type(), second._get_op_type()] == [work._get_op_type() for work in theirs]
    for work in theirs:
        work.wait()


@case
def works_measure_their_time_when_asked() -> None:
    group = dist.new_group()
    work = dist.all_reduce(mine(), group=group, async_op=True)
    work.wait()
    error_of(RuntimeError, work._get_duration, "_enable_collectives_timing")
    group._enable_collectives_timing()
    if rank() == 1:
        time.sleep(0.2)
    work = dist.all_reduce(mine(), group=group, async_op=True)
    work.wait()
    assert rank() == 1 or work._get_duration() >= 100


def events(call: Callable[[], object], name: str) -> list[torch.autograd.profiler_util.FunctionEvent]:
    dist.barrier()
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        call()
    return [event for event in profile.function_events if event.name == name]


@case
def the_profiler_sees_every_call() -> None:
    outputs = [torch.zeros(4) for _ in range(size())]

    def message() -> None:
        dist.send(mine(), 1) if rank() == 0 else dist.recv(torch.zeros(4), 0)

    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(mine()),
        "broadcast": lambda: dist.broadcast(mine(), 0),
        "reduce": lambda: dist.reduce(mine(), 0),
        "all_gather": lambda: dist.all_gather(outputs, mine()),
        "all_to_all": lambda: dist.all_to_all(outputs, [mine() for _ in outputs]),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.zeros(4), [mine() for _ in outputs]),
        "send" if rank() == 0 else "recv": message,
    }
    for name, call in calls.items():
        [event] = events(call, f"herringbone:{name}")
        assert event.is_async and event.count == 1 and event.input_shapes[0] == [4], (name, event)
    assert len(events(calls["all_reduce"], "c10d::allreduce_")) == 1


@case
def an_event_ends_with_its_work() -> None:
    def late() -> None:
        work = dist.all_reduce(mine(), async_op=True) if rank() == 0 else None
        time.sleep(0.2)
        work.wait() if work is not None else dist.all_reduce(mine())

    [event] = events(late, "herringbone:all_reduce")
    assert rank() == 1 or event.cpu_time >= 100_000, f"{event.cpu_time} us"


@case
def a_monitored_barrier_names_the_missing() -> None:
    limit = timedelta(seconds=20)
    dist.monitored_barrier(timeout=limit)
    dist.monitored_barrier(timeout=limit, wait_all_ranks=True)
    if rank() == 0:
        short = timedelta(seconds=0.3)
        error = error_of(
            herringbone.OperationTimeoutError,
            lambda: dist.monitored_barrier(timeout=short),
            "Rank 1 failed to pass monitoredBarrier in 300 ms",
        )
        assert isinstance(error, dist.DistBackendError) and error.missing == ("rank 1",)
    else:
        time.sleep(1)
        error_of(RuntimeError, lambda: dist.monitored_barrier(timeout=limit), "Rank 1 successfully reached")
    dist.monitored_barrier(timeout=limit)


@case
def a_timeout_says_that_it_timed_out() -> None:
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank() == 0:
        error_of(herringbone.OperationTimeoutError, lambda: dist.barrier(group=group), "timed out", " timeout ")
    else:
        time.sleep(2)


@case
def what_does_not_fit_raises_what_torch_raises() -> None:
    parts = [torch.zeros(2) for _ in range(size())]
    for call in (
        lambda: dist.broadcast(mine(), size()),
        lambda: dist.all_gather(parts[:-1], torch.zeros(2)),
        lambda: dist.all_gather(parts, torch.zeros(3)),
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.zeros(3)),
        lambda: dist.all_reduce(torch.zeros(2, device="meta")),
    ):
        error_of(RuntimeError, call)
    error_of(ValueError, lambda: dist.broadcast(mine(), size()), f"root {size()}", f"0 to {size() - 1}")
    dist.barrier()


@case
def sparse_tensors_are_added() -> None:
    def part(owner: int, dense: tuple[int, ...]) -> torch.Tensor:
        indices = torch.tensor([[0, owner + 1, 0]])
        return torch.sparse_coo_tensor(indices, torch.ones(3, *dense) * (owner + 1), (size() + 1, *dense))

    for dense in ((), (2,), (2, 3)):
        expected = sum(part(owner, dense).to_dense() for owner in range(size()))
        tensor = part(rank(), dense)
        dist.all_reduce(tensor)
        assert tensor.is_coalesced() and tensor.indices().shape == (1, size() + 1)
        same(tensor.to_dense(), expected)
        averaged = part(rank(), dense)
        dist.all_reduce(averaged, dist.ReduceOp.AVG, async_op=True).wait()
        same(averaged.to_dense(), expected / size())
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0), (3,))
    dist.all_reduce(empty)
    assert empty._nnz() == 0
    error_of(NotImplementedError, lambda: dist.all_reduce(part(rank(), ()), dist.ReduceOp.MAX), "sparse", "max")
    unlike = torch.eye(2 + rank()).to_sparse()
    error_of(herringbone.MismatchError, lambda: dist.all_reduce(unlike), "sparse", "shape")
    dist.barrier()


@case
def ddp_trains_a_sparse_embedding() -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Embedding(6, 2, sparse=True))
    words = [torch.tensor([1, 2, 2 + one]) for one in range(size())]
    model(words[rank()]).sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_sparse
    expected = torch.zeros(6, 2)
    for batch in words:
        for word in batch:
            expected[word] += 1 / size()
    same(gradient.to_dense(), expected)


@case
def groups_in_another_order_and_with_options() -> None:
    turned = list(reversed(range(size())))
    group = dist.new_group(turned, sort_ranks=False)
    assert dist.get_rank(group) == turned.index(rank())
    parts = [torch.zeros(1) for _ in turned]
    dist.all_gather(parts, mine(1), group=group)
    assert [int(part) - 1 for part in parts] == turned
    reported = mine(1)
    dist.broadcast(reported, turned[0], group=group)
    assert int(reported) == turned[0] + 1
    dist.destroy_process_group(group)
    group = dist.new_group(pg_options=herringbone.Options(transport="tcp"))
    assert "by TCP (forced)" in group.describe() and "forced" not in dist.group.WORLD.describe()
    same_sum = mine()
    dist.all_reduce(same_sum, group=group)
    same(same_sum, torch.full((4,), total()))
    dist.destroy_process_group(group)


@case
def groups_meet_by_their_members_whatever_else_a_rank_has_made() -> None:
    def adds(group: dist.ProcessGroup) -> None:
        tensor = mine()
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((4,), total()))
        dist.monitored_barrier(group, timeout=timedelta(seconds=60))

    # torch names groups by how many a process has made, so from here on every rank has another name for the same group.
    alone = [dist.new_group([rank()], use_local_synchronization=True) for _ in range(rank())]
    everyone = {"ranks": list(range(size())), "use_local_synchronization": True, "timeout": timedelta(seconds=60)}
    pair = [dist.new_group(**everyone) for _ in range(2)]
    for group in pair if rank() % 2 else reversed(pair):
        dist.destroy_process_group(group)
    if rank() == 0:
        try:
            dist.new_group(**everyone, pg_options="none of ours")
            raise AssertionError("such options were taken")
        except TypeError:
            pass
    turned = {**everyone, "ranks": everyone["ranks"][::-1], "sort_ranks": False}
    forced = {**everyone, "pg_options": herringbone.Options(transport="tcp")}
    groups = [dist.new_group(**how) for how in (everyone, turned, turned, forced, everyone)]
    groups.append(dist.split_group(groups[0], split_ranks=[everyone["ranks"]]))
    for group in groups:
        adds(group)
    for group in groups + alone:
        dist.destroy_process_group(group)


@case
def groups_that_are_split() -> None:
    whole = dist.split_group(split_ranks=[list(range(size()))], group_desc="all again")
    assert whole.group_desc == "all again" and dist.get_process_group_ranks(whole) == list(range(size()))
    tensor = mine()
    dist.all_reduce(tensor, group=whole)
    same(tensor, torch.full((4,), total()))
    alone = dist.split_group(whole, split_ranks=[[one] for one in range(size())])
    assert dist.get_rank(alone) == 0 and dist.get_world_size(alone) == 1
    first = dist.split_group(whole, split_ranks=[[0]])
    assert (first is dist.GroupMember.NON_GROUP_MEMBER) == (rank() != 0)
    dist.destroy_process_group(alone)
    dist.destroy_process_group(whole)


@case
def works_of_a_group_of_several_backends_complete() -> None:
    group = dist.new_group(backend="cpu:herringbone,cuda:gloo")
    tensor = mine()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    deadline = time.monotonic() + 20
    while not work.is_completed():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    same(tensor, torch.full((4,), total()))
    if rank() == 0:
        late = dist.all_reduce(mine(), group=group, async_op=True)
        assert not late.is_completed()
        dist.barrier()
        late.wait()
    else:
        dist.barrier()
        dist.all_reduce(mine(), group=group)


@case
def ddps_built_in_hooks() -> None:
    for kind in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = DistributedDataParallel(torch.nn.Linear(4, 2, bias=False))
        model._register_builtin_comm_hook(kind)
        model(mine().view(1, 4)).sum().backward()
        same(model.module.weight.grad, torch.full((2, 4), total() / size()))


@case
def ddp_divides_by_the_ranks_that_still_have_inputs() -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 2, bias=False))
    with model.join(divide_by_initial_world_size=False):
        for _ in range(1 + rank()):
            model.zero_grad()
            model(mine().view(1, 4)).sum().backward()
    # Rank 0's only step is with both ranks, and rank 1's last one is alone.
    same(model.module.weight.grad, torch.full((2, 4), total() / size() if rank() == 0 else 2.0))


@case
def compiled_functions_and_models() -> None:
    def calls(tensor: torch.Tensor) -> torch.Tensor:
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        dist.broadcast(tensor, 0)
        outputs = [torch.zeros(4) for _ in range(size())]
        dist.all_to_all(outputs, [tensor * 1 for _ in outputs])
        dist.gather(tensor, outputs if rank() == 0 else None, 0)
        dist.scatter(tensor, outputs if rank() == 0 else None, 0)
        return tensor + 1

    same(torch.compile(calls, backend="aot_eager")(mine()), torch.full((4,), total() + 1))
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    compiled = torch.compile(model, backend="aot_eager")
    compiled(mine().view(1, 4)).sum().backward()
    same(model.module.weight.grad, torch.full((1, 4), total() / size()))


CASES.update(dispatching.CASES)


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
