"""Mistakes in calls of torch.distributed: each is told to the caller, and the group works as before."""

from __future__ import annotations

import time
from datetime import timedelta

import cases
import torch
import torch.distributed as dist
from cases import error_of
from values import rank, same, size

import herringbone
import herringbone.torch

CASES, case = cases.registry()


def check_the_group_works() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(size())))
    whole = torch.zeros(size())
    dist.all_gather_into_tensor(whole, torch.tensor([float(rank())]))
    same(whole, torch.arange(float(size())))
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.ones(size()))
    same(part, torch.full((1,), float(size())))
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensor, 0)


class Oops(Exception):
    pass


def fail_in_a_block(device: torch.device | None, async_ops: bool) -> None:
    with dist._coalescing_manager(device=device, async_ops=async_ops):
        dist.all_reduce(torch.ones(3))
        raise Oops


@case
def a_coalescing_block_that_fails() -> None:
    for device in (None, torch.device("cpu")):
        for async_ops in (False, True):
            error_of(Oops, lambda: fail_in_a_block(device, async_ops))
            check_the_group_works()


@case
def a_refused_call_in_a_coalescing_block() -> None:
    def refused() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(3))
            dist.barrier()
            dist.broadcast(torch.empty(3, device="meta"), 0)

    error_of(herringbone.UnsupportedError, refused, "meta")
    check_the_group_works()

    def refused_at_the_end() -> None:
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(3, dtype=torch.float8_e5m2))

    error_of(herringbone.UnsupportedError, refused_at_the_end, "float8_e5m2")
    check_the_group_works()


@case
def a_batch_of_messages_that_fails() -> None:
    other = (rank() + 1) % size()
    message = torch.empty(3, device="meta")
    error_of(RuntimeError, lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, message, other)]))
    check_the_group_works()
    message = torch.ones(3).to_sparse()
    error_of(NotImplementedError, lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, message, other)]))
    check_the_group_works()


@case
def a_work_that_is_dropped_delivers_its_result() -> None:
    turned = torch.arange(6.0).view(2, 3).t()
    expected = turned * size()
    listed = [torch.zeros(2) for _ in range(size())]
    coalesced = torch.ones(2, 3).t()
    dist.all_reduce(turned, async_op=True)
    dist.all_gather(listed, torch.ones(2), async_op=True)
    with dist._coalescing_manager(async_ops=True):
        dist.all_reduce(coalesced)
    deadline = time.monotonic() + 20
    while not (torch.equal(turned, expected) and listed[-1].all() and (coalesced == size()).all()):
        assert time.monotonic() < deadline, (turned, listed, coalesced)
        time.sleep(0.01)
    lost = dist.all_reduce(torch.ones(2, 3).t(), async_op=True)
    lost.wait()
    same(lost.result()[0], torch.full((3, 2), float(size())))


@case
def tensors_of_another_shape() -> None:
    mine = torch.ones(2, 3)
    parts = [torch.zeros(2, 3) for _ in range(size() - 1)] + [torch.zeros(3, 2)]
    place, sizes = f"number {size() - 1} of the outputs", ("(3, 2)", "(2, 3)")
    error_of(ValueError, lambda: dist.all_gather(parts, mine), "all_gather:", place, *sizes)
    error_of(ValueError, lambda: dist.reduce_scatter(mine, parts), "reduce_scatter:", *sizes)
    error_of(ValueError, lambda: dist.all_gather(parts[:1], mine), "1 outputs", "one for each")
    check_the_group_works()


@case
def wrong_arguments_are_named() -> None:
    ones = torch.ones(2)
    work = dist.all_reduce(ones, async_op=True)
    error_of(TypeError, lambda: work.wait(5), "wait: timeout is a int", "datetime.timedelta")
    work.wait(timedelta(seconds=30))
    valid = f"its ranks are 0 to {size() - 1}"
    error_of(ValueError, lambda: dist.broadcast(ones, -1), "broadcast: root -1", valid)
    error_of(ValueError, lambda: dist.reduce(ones, size() + 3), f"reduce: root {size() + 3}", valid)
    error_of(ValueError, lambda: dist.isend(ones, size() + 3), f"send: dst {size() + 3}", valid)
    ours = dist.distributed_c10d._get_default_group()
    for wrong, error in ((timedelta(seconds=-1), ValueError), (5, TypeError)):
        error_of(error, lambda wrong=wrong: ours.set_timeout(wrong), "set_timeout: timeout is")
    error_of(ValueError, lambda: dist.new_group(timeout=timedelta(seconds=-1)), "new_group: timeout is -1.0")
    urgent = herringbone.torch.priority(1 << 40)
    error_of(ValueError, urgent.__enter__, "priority: level is 1099511627776", "2147483647")
    three = torch.tensor(3)
    for size_like in (three, [three], (three,)):
        assert herringbone.torch.empty(size_like).shape == (3,)
    error_of(TypeError, lambda: herringbone.torch.empty(2.5), "empty: size is a float, not a whole number")
    error_of(TypeError, lambda: herringbone.torch.empty((2, 2.5)), "empty", "float")
    check_the_group_works()


@case
def errors_name_calls_that_every_torch_has() -> None:
    whole, part = torch.ones(2 * size() + 1), torch.ones(2)
    gathers = error_of(ValueError, lambda: dist.all_gather_into_tensor(whole, part), "all_gather_into_tensor:")
    scatters = error_of(ValueError, lambda: dist.reduce_scatter_tensor(part, whole), "reduce_scatter_tensor:")
    assert "single" not in f"{gathers} {scatters}"


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
