"""Every collective through torch.distributed, against values computed here from all ranks' inputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cases
import torch
import torch.distributed as dist
from cases import error_of
from values import Op, all_gathered, fold, pieces, rank, same, size

import herringbone
import herringbone.torch
from herringbone._herringbone import Completions

CASES, case = cases.registry()

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.int16)


@case
def the_backend_is_known_without_an_import() -> None:
    assert dist.get_backend() == "herringbone"
    group = dist.group.WORLD
    assert group.name() == "herringbone" and group.rank() == rank() and group.size() == size()
    assert group.stats()["failed"] == 0
    assert isinstance(group.recent(), list)
    assert isinstance(group.describe(), str)
    assert group.address.rsplit(":", 1)[1].isdigit()
    assert group.explain(16).startswith("one_shot: ")
    assert group.explain(16, torch.float16, "broadcast").startswith("tree: ")
    error_of(NotImplementedError, lambda: group.explain(16, torch.float8_e5m2), "float8_e5m2")
    error_of(TypeError, lambda: group.explain(torch.ones(3)), "explain: count is a Tensor, not a number of elements")
    error_of(TypeError, lambda: group.explain(16, "float32"), "explain: dtype is a str, not one of torch's")


@case
def all_reduce_of_every_length() -> None:
    for length in (0, 1, 2, 3, 7, 63, 1025, 65_537, 1_300_001):
        inputs = pieces(length, torch.float32, length)
        tensor = inputs[rank()].clone()
        dist.all_reduce(tensor)
        same(tensor, fold(inputs, Op.SUM))


@case
def tensors_that_are_not_in_order() -> None:
    inputs = pieces((6, 5, 4), torch.float32)
    for view in (lambda t: t.permute(2, 0, 1), lambda t: t[::2, 1:, ::3], lambda t: t[:, 2]):
        base = inputs[rank()].clone()
        work = dist.all_reduce(view(base), async_op=True)
        work.wait()
        expected = inputs[rank()].clone()
        view(expected).copy_(fold([view(value) for value in inputs], Op.SUM))
        same(base, expected)
    error_of(ValueError, lambda: dist.all_reduce(torch.ones(1).expand(4)), "contiguous")


@case
def parameters_and_scalars() -> None:
    parameter = torch.nn.Parameter(torch.full((), float(rank())))
    dist.all_reduce(parameter)
    assert parameter.item() == sum(range(size()))


@case
def broadcast_of_any_type_from_every_root() -> None:
    for dtype in (*FLOATS, *INTEGERS, torch.bool, torch.int16, torch.complex64, torch.float8_e5m2):
        for root in range(size()):
            inputs = [value.to(dtype) for value in pieces((3, 5), torch.float32, root)]
            tensor = inputs[rank()].clone()
            dist.broadcast(tensor, root)
            assert torch.equal(tensor.view(torch.uint8), inputs[root].view(torch.uint8))


@case
def reduce_to_every_root() -> None:
    for root in range(size()):
        inputs = pieces(1001, torch.float32, root)
        tensor = inputs[rank()].clone()
        dist.reduce(tensor, root, Op.SUM)
        same(tensor, fold(inputs, Op.SUM) if rank() == root else inputs[rank()])


@case
def all_gather_in_every_form() -> None:
    for dtype in (torch.float32, torch.int16, torch.bool):
        inputs = pieces((2, 3), dtype)
        for outputs in (
            [torch.empty(2, 3, dtype=dtype) for _ in range(size())],
            list(torch.empty(size(), 2, 3, dtype=dtype).unbind()),
            [torch.empty(3, 2, dtype=dtype).t() for _ in range(size())],
        ):
            dist.all_gather(outputs, inputs[rank()])
            for output, expected in zip(outputs, inputs):
                same(output.contiguous(), expected)
        whole = torch.empty(2 * size(), 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, inputs[rank()])
        same(whole, torch.cat(inputs))
    in_place = torch.zeros(size(), 4)
    in_place[rank()] = rank() + 1
    dist.all_gather_into_tensor(in_place, in_place[rank()])
    same(in_place, torch.arange(1.0, size() + 1).unsqueeze(1).expand(-1, 4).contiguous())


@case
def reduce_scatter_in_every_form() -> None:
    for op in (Op.SUM, Op.AVG, Op.MAX):
        inputs = pieces((size(), 7), torch.float32)
        expected = fold(inputs, op)[rank()]
        output = torch.empty(7)
        dist.reduce_scatter_tensor(output, inputs[rank()].clone(), op)
        same(output, expected)
        dist.reduce_scatter(output.zero_(), [part.clone() for part in inputs[rank()]], op)
        same(output, expected)


@case
def mapped_tensors_in_every_collective() -> None:
    for dtype in FLOATS + INTEGERS:
        inputs = pieces((size(), 1003), dtype, 3)
        tensor = herringbone.torch.empty((size(), 1003), dtype)
        for other in (tensor, tensor if rank() % 2 else inputs[rank()].clone()):
            dist.all_reduce(other.copy_(inputs[rank()]))
            same(other, fold(inputs, Op.SUM))
        output = herringbone.torch.empty(1003, dtype)
        dist.reduce_scatter_tensor(output, tensor.copy_(inputs[rank()]))
        same(output, fold(inputs, Op.SUM)[rank()])
        dist.all_gather_into_tensor(tensor, output)
        same(tensor, fold(inputs, Op.SUM))
        dist.broadcast(tensor.copy_(inputs[rank()]), size() - 1)
        same(tensor, inputs[-1])
    works = [dist.all_reduce(herringbone.torch.empty(5000).fill_(n), async_op=True) for n in range(4)]
    for n, work in enumerate(works):
        work.wait()
        same(work.result()[0], torch.full((5000,), float(n * size())))


@case
def mapped_tensors_are_tensors() -> None:
    tensor = herringbone.torch.empty([3, 4])
    assert tensor.dtype == torch.get_default_dtype() and tensor.shape == (3, 4) and not tensor.any()
    assert tensor.is_leaf and not tensor._is_view() and tensor.is_contiguous()
    tensor.fill_(2).requires_grad_().sum().backward()
    same(tensor.grad, torch.ones(3, 4))
    same(torch.nn.Parameter(tensor.detach()).detach(), torch.full((3, 4), 2.0))
    assert herringbone.torch.empty((0, 2), torch.bool).shape == (0, 2)
    place = tensor.data_ptr()
    part = tensor.detach()[1:]
    del tensor
    assert herringbone.torch.empty((3, 4)).data_ptr() != place
    same(part, torch.full((2, 4), 2.0))
    del part
    assert herringbone.torch.empty((3, 4)).data_ptr() == place
    error_of(herringbone.ConfigError, lambda: herringbone.torch.empty(1 << 50), "mapped buffer")
    error_of(herringbone.ConfigError, lambda: herringbone.torch.empty(1 << 70), f"empty: {4 << 70} bytes")
    error_of(TypeError, lambda: herringbone.torch.empty(3, group=dist.new_group(backend="gloo")), "herringbone")
    group = dist.new_group()
    survivor = herringbone.torch.empty(10, group=group).fill_(4)
    dist.destroy_process_group(group)
    dist.all_reduce(survivor)
    same(survivor, torch.full((10,), 4.0 * size()))


@case
def the_backend_allocates_for_torch() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    assert not backend.supports_tensor_alloc(torch.device("meta")) and not backend.supports_tensor_alloc(-1)
    tensor = backend.allocate_tensor(7, dtype=torch.float64, device=torch.device("cpu"))
    same(tensor, torch.zeros(7, dtype=torch.float64))


@case
def an_urgent_operation_overtakes() -> None:
    tensors = [torch.ones(1_000_000) for _ in range(8)]
    dist.barrier()
    works: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    with herringbone.torch.priority(1):
        works.append(dist.all_reduce(torch.ones(10), async_op=True))
    queue = Completions()
    for place, work in enumerate(works):
        [handle] = work._handles
        handle.notify(queue, place)
    order = [queue.next() for _ in works]
    # Through shared memory the large ones may be over before the small one is issued.
    if os.environ.get("HERRINGBONE_TRANSPORT") == "tcp":
        assert order[-1] != len(tensors), order
    for work in works:
        work.wait()


@case
def priorities_nest_and_end() -> None:
    from herringbone.torch.priorities import current_priority

    with herringbone.torch.priority(1):
        dist.barrier()
        with contextlib.suppress(ValueError), herringbone.torch.priority(-2):
            assert current_priority() == -2
            dist.all_gather_object([None] * size(), "x")
            raise ValueError
        assert current_priority() == 1
    assert current_priority() == 0
    wrong = herringbone.torch.priority("high")
    error_of(TypeError, wrong.__enter__, "priority: level is a str, not a whole number; above 0 is urgent")


@case
def objects() -> None:
    gathered: list[object] = [None] * size()
    dist.all_gather_object(gathered, {"rank": rank(), "text": "x" * rank()})
    assert gathered == [{"rank": i, "text": "x" * i} for i in range(size())]
    values: list[object] = [("root", 7)] if rank() == 0 else [None]
    dist.broadcast_object_list(values, 0)
    assert values == [("root", 7)]


@case
def barriers_hold_until_the_last_rank_comes() -> None:
    dist.barrier()
    before = time.monotonic()
    if rank() == 0:
        time.sleep(0.3)
    dist.barrier()
    assert time.monotonic() - before >= 0.25


@case
def many_operations_in_flight() -> None:
    inputs = [pieces(20_000 + i, torch.float32, i) for i in range(24)]
    tensors = [values[rank()].clone() for values in inputs]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    for tensor, values in zip(tensors, inputs):
        same(tensor, fold(values, Op.SUM))


@case
def futures_and_their_callbacks() -> None:
    first = dist.all_reduce(torch.ones(3), async_op=True).get_future()
    doubled = first.then(lambda future: future.value()[0] * 2)
    same(doubled.wait(), torch.full((3,), 2.0 * size()))

    def another(_: torch.futures.Future) -> torch.Tensor:
        return dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()[0]

    chained = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    for _ in range(6):
        chained = chained.then(another)
    same(chained.wait(), torch.full((2,), float(size())))


def started(value: float, group: dist.ProcessGroup | None = None) -> torch.futures.Future:
    return dist.all_reduce(torch.full((100,), value), async_op=True, group=group).get_future()


def late() -> None:
    """Callbacks come at another time on each rank."""
    time.sleep(random.random() * 0.003)


def again(future: torch.futures.Future, by: float = 1.0) -> float:
    late()
    return float(started(by * future.wait()[0][0].item()).wait()[0][0])


class Stages:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.seen = group, []

    def second(self, future: torch.futures.Future) -> torch.futures.Future:
        """The next stages are callbacks in this one, in another group, too."""
        late()
        return started(future.value()[0][0].item(), self.group).then(self.third)

    def third(self, future: torch.futures.Future) -> float:
        late()
        return again(started(future.value()[0][0].item()))

    def note(self, future: torch.futures.Future) -> None:
        late()
        self.seen.append(again(future))


@case
def calls_of_callbacks_match_while_the_program_makes_others() -> None:
    """All calls are alike but for their values: one that is taken for another's gives a wrong sum, and no error."""
    n, other = size(), dist.new_group(range(size()))
    stages = Stages(other)
    futures, expected, noted, sums = [], [], [], []
    forms = [
        (again, n**2),
        (functools.partial(again, by=3.0), 3 * n**2),
        (lambda future: again(future, 5.0), 5 * n**2),
        (lambda future: stages.second(future).wait(), n**4),
    ]
    for turn in range(24):
        value = 1.0 + turn
        callback, factor = forms[turn % len(forms)]
        first = started(value)
        if turn % 5 == rank() % 5:
            first.wait()  # then the callback runs here, at once
        futures.append(first.then(callback))
        expected.append(factor * value)
        if turn % 4 == 1:
            both = torch.futures.collect_all([started(-value), started(value, other)])
            futures.append(both.then(lambda both: [again(part) for part in both.value()]))
            expected.append([-value * n**2, value * n**2])
        first.add_done_callback(stages.note)
        noted.append(value * n**2)
        futures.append(futures[-1].then(lambda before: again(started(2.0)) + 0 * len(str(before.value()))))
        expected.append(2.0 * n**2)
        sums.append(torch.full((100,), value))
        dist.all_reduce(sums[-1])
        assert sums[-1][0] == n * value
    assert [future.wait() for future in futures] == expected
    while len(stages.seen) < len(noted):
        time.sleep(0.001)
    assert stages.seen == noted
    dist.destroy_process_group(other)


@case
def a_callback_that_fails_or_calls_nothing_leaves_its_turn() -> None:
    def failing(_: torch.futures.Future) -> None:
        raise ValueError("not this one")

    failed = started(1.0).then(failing)
    quiet = started(1.0).then(lambda future: future.value()[0][0].item())
    dropped = torch.futures.collect_all([started(1.0)])
    del dropped
    last = started(1.0).then(again)
    assert last.wait() == size() ** 2 and quiet.wait() == size()
    error_of((ValueError, RuntimeError), failed.wait, "not this one")
    error_of(TypeError, lambda: started(1.0).then(3), "then")


@case
def callbacks_of_messages_keep_no_others_waiting() -> None:
    """When a message comes, or the program completes a future of its own, is not in the order of collectives."""
    n, own = size(), torch.futures.Future()
    message = torch.zeros(2)
    if rank() == 0:
        received = dist.irecv(message, 1).get_future().then(lambda _: message[0].item())
    both = torch.futures.collect_all([started(2.0), own]).then(lambda both: again(both.value()[0]))
    assert started(1.0).then(again).wait() == n**2
    if rank() == 1:
        dist.send(torch.full((2,), 7.0), 0)
    own.set_result(None)
    assert both.wait() == 2 * n**2
    if rank() == 0:
        assert received.wait() == 7


@case
def a_work_answers_after_its_caller_has_waited() -> None:
    options = dist.AllreduceOptions()
    options.reduceOp, options.asyncOp = Op.MAX, False
    in_order = torch.full((3,), float(rank()))
    for tensor in (in_order, torch.full((2, 3), float(rank())).t()):
        work = dist.group.WORLD.allreduce([tensor], options)
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
        work.synchronize()
        same(work.get_future().wait()[0], torch.full(tensor.shape, size() - 1.0))
        (result,) = work.result()
        assert result is tensor


@case
def coalesced_calls() -> None:
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [torch.full((n + 1,), float(rank())) for n in range(4)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all((tensor == sum(range(size()))).all() for tensor in tensors)
    with dist._coalescing_manager(device=torch.device("cpu")):
        group = dist.group.WORLD
        tensors = [torch.full((n + 1,), float(rank())) for n in range(4)]
        for tensor in tensors:
            group.allreduce(tensor)
    assert all((tensor == sum(range(size()))).all() for tensor in tensors)
    with dist._coalescing_manager():
        outputs = [torch.empty(size()) for _ in range(3)]
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.tensor([float(rank())]))
    assert all(output.tolist() == list(range(size())) for output in outputs)


@case
def functional_collectives() -> None:
    import torch.distributed._functional_collectives as functional

    result = functional.all_reduce(torch.full((3,), float(rank())), "sum", dist.group.WORLD)
    assert result.tolist() == [sum(range(size()))] * 3
    result = functional.all_gather_tensor(torch.tensor([float(rank())]), 0, dist.group.WORLD)
    assert result.tolist() == list(range(size()))


@case
def overlapping_groups() -> None:
    pairs = [(i, (i + 1) % size()) for i in range(size())] if size() > 2 else [(0, 1)]
    groups = {pair: dist.new_group(pair) for pair in pairs}
    works = []
    for pair, group in groups.items():
        if rank() in pair:
            tensor = torch.full((5000,), float(rank()))
            works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, sum(pair)))
    for work, tensor, expected in works:
        work.wait()
        assert (tensor == expected).all()


@case
def a_forked_child_does_not_wait() -> None:
    store = dist.distributed_c10d._get_default_store()
    if rank() > 0:
        store.wait(["the child has ended"])
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if rank() == 0:
        child = os.fork()
        if child == 0:
            try:
                error_of(herringbone.ForkedError, work.wait)
                os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        store.set("the child has ended", "")
        assert os.waitstatus_to_exitcode(status) == 7
    work.wait()


@case
def tensors_without_memory() -> None:
    freed = torch.ones(3)
    freed.untyped_storage().resize_(0)
    for tensor in (freed, torch._efficientzerotensor(3)):
        error_of(herringbone.UnsupportedError, lambda: dist.all_reduce(tensor), "without memory")
        error_of(herringbone.UnsupportedError, lambda: dist.all_reduce(tensor, async_op=True), "without memory")


@case
def a_group_of_another_backend() -> None:
    other = dist.new_group(backend="gloo")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=other)
    assert tensor.tolist() == [size()] * 3


@case
def what_is_not_there_names_the_alternative() -> None:
    ones = torch.ones(2)
    parts = [torch.ones(2) for _ in range(size())]
    missing = herringbone.UnsupportedError
    assert issubclass(missing, NotImplementedError)
    error_of(missing, lambda: dist.all_reduce(torch.ones(2, device="meta")), "a meta tensor has no values")
    error_of(missing, lambda: dist.all_reduce(ones.to(torch.float8_e5m2)), "float8_e5m2", "torch.float32")
    error_of(missing, lambda: dist.all_reduce(ones.bool(), Op.AVG), "average", "MAX")
    error_of(missing, lambda: dist.reduce(ones.to(torch.complex64), 0, Op.MAX), "view_as_real")
    error_of(missing, lambda: dist.all_reduce(ones, Op.BAND), "f32", "bit_and", "integers")
    error_of(missing, lambda: dist.reduce(ones, 0, Op.BXOR), "float32", "bit_xor", "integers")
    error_of(ValueError, lambda: dist.all_gather_into_tensor(torch.empty(3), torch.empty(2)), "elements")
    halves: Any = [0.5] * size()
    error_of(TypeError, lambda: dist.all_to_all_single(ones, ones, halves, halves), "one of output_split_sizes is a float, not")
    error_of(ValueError, lambda: dist.all_gather(parts[:-1], ones), "ranks")


def disagree(mine: Callable[[], object], others: Callable[[], object]) -> None:
    """Let the last rank call something else than the others; all get the error, and the next call works."""
    call = mine if rank() == size() - 1 else others
    error = error_of(herringbone.MismatchError, call, f"rank {size() - 1}")
    assert isinstance(error, dist.DistBackendError) and isinstance(error, RuntimeError)
    inputs = pieces(11, torch.float32)
    tensor = inputs[rank()].clone()
    dist.all_reduce(tensor)
    same(tensor, fold(inputs, Op.SUM))


@case
def ranks_that_disagree_get_an_error_and_go_on() -> None:
    def usual() -> None:
        dist.all_reduce(torch.ones(4))

    disagree(lambda: dist.all_reduce(torch.ones(5)), usual)
    disagree(lambda: dist.all_reduce(torch.ones(4, dtype=torch.float64)), usual)
    disagree(lambda: dist.all_reduce(torch.ones(4), Op.MAX), usual)
    disagree(lambda: dist.broadcast(torch.ones(4), 0), usual)
    disagree(dist.barrier, lambda: dist.all_reduce(torch.ones(3_000_000)))


@case
def two_ranks_that_both_believe_to_be_the_root() -> None:
    group = dist.new_group()

    def two_calls() -> None:
        dist.broadcast(torch.ones(4), 0 if rank() == 0 else size() - 1, group=group)
        # A root is done at once: it hears of the disagreement at its next call.
        dist.barrier(group)

    error_of(herringbone.MismatchError, two_calls, "broadcast")


@case
def a_late_rank_is_named_by_the_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank() != 0:
        started = time.monotonic()
        error_of(herringbone.OperationTimeoutError, lambda: dist.barrier(group), "rank 0", " timeout ")
        assert time.monotonic() - started < 10, "the timeout is half a second, and the rest is margin"
    dist.barrier()


@case
def a_wait_can_be_shorter_than_the_operation() -> None:
    if rank() == 0:
        time.sleep(0.5)
    work = dist.barrier(async_op=True)
    if rank() != 0:
        error_of(herringbone.OperationTimeoutError, lambda: work.wait(timedelta(seconds=0.05)), " timeout ")
    work.wait()


@case
def groups_that_only_their_members_make() -> None:
    # torch's own count of groups differs between ranks afterwards, until the next init_process_group.
    if rank() < 2:
        for _ in range(2):
            local = dist.new_group([0, 1], use_local_synchronization=True)
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=local)
            assert tensor.item() == 2
            dist.destroy_process_group(local)
    dist.barrier()


@case
def destroy_and_begin_again() -> None:
    for _ in range(2):
        dist.destroy_process_group()
        dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
        assert all(value.item() == i for i, value in enumerate(all_gathered(torch.tensor(rank()))))


@case
def an_aborted_group_answers() -> None:
    group = dist.new_group()
    if rank() == 0:
        work = dist.barrier(group, async_op=True)
        group.abort()
        error_of(herringbone.HerringboneError, work.wait)
        error_of(herringbone.ClosedError, lambda: dist.barrier(group))
    dist.barrier()


@case
def a_call_that_one_rank_aborts_fails_on_all() -> None:
    """On the rank that waits in it, and on those that make it later, though the rank that aborts has sent what they need."""
    if size() == 2:
        return  # Where one rank aborts and the other waits in the call, it ends: nobody comes late to it.
    sums = [functools.partial(dist.all_reduce, torch.ones(count)) for count in (1000, 300_000)]
    for call, aborter in itertools.product((dist.barrier, *sums), (0, size() - 1)):
        group, waits = dist.new_group(), (aborter + 1) % size()
        work = call(group=group, async_op=True) if rank() in (aborter, waits) else None
        dist.barrier()
        lost = functools.partial(error_of, herringbone.PeerLostError)
        if rank() == aborter:
            group.abort()
            error_of(herringbone.ClosedError, work.wait)
        # What to do about it is said in torch's words.
        why = f"rank {aborter} is lost: it aborted the group; the group cannot continue without it: restart the job (torchrun"
        if rank() == waits:
            lost(work.wait, why)
        dist.barrier()
        if rank() != aborter:
            lost(lambda call=call, group=group: call(group=group), why)
        dist.destroy_process_group(group)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
