"""LocalSGD and PostLocalSGD beside synchronous training, and beside what torch has of the same kind."""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import cases
import torch
import torch.distributed as dist
from cases import error_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import herringbone
from herringbone.optim import DiLoCo, LocalSGD, PostLocalSGD
from herringbone.optim.agreement import agree
from herringbone.optim.exchange import Exchange

CASES, case = cases.registry()
STEPS = 12
BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-14}
"""How far results may be off, relative to the largest value: by rounding only."""


def batch(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's share of a step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(16, 10, generator=generator, dtype=dtype)
    return x, x[:, :3].sum(1, keepdim=True).sin()


def model(dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)).to(dtype)


def train(net: nn.Module, step: Callable[[], None], steps: range, dtype: torch.dtype = torch.float32) -> None:
    """Make gradients and call ``step`` after each."""
    for number in steps:
        net.zero_grad()
        x, y = batch(number, dtype)
        nn.functional.mse_loss(net(x), y).backward()
        step()


def synchronous(dtype: torch.dtype, steps: int, **options: Any) -> nn.Module:
    net = model(dtype)
    wrapped = DistributedDataParallel(net)
    train(wrapped, torch.optim.SGD(wrapped.parameters(), **options).step, range(steps), dtype)
    return net


def weights(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def close(one: nn.Module, other: nn.Module) -> bool:
    first, second = weights(one), weights(other)
    return bool((first - second).abs().max() <= BOUNDS[first.dtype] * second.abs().max())


def alike(net: nn.Module) -> bool:
    """Whether all ranks have the same bits."""
    mine = weights(net)
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    return all(torch.equal(mine, other) for other in others)


@case
def averaging_every_step_is_synchronous_sgd() -> None:
    momentum = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
    for dtype, options in itertools.product(BOUNDS, ({}, momentum)):
        net = model(dtype, seed=dist.get_rank() + 1)  # all begin with rank 0's
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, **options)
        with LocalSGD(net, optimizer, sync_every=1) as averaging:
            train(net, optimizer.step, range(STEPS), dtype)
            assert averaging.rounds == STEPS
        assert alike(net)
        assert close(net, synchronous(dtype, STEPS, lr=0.05, **options)), (dtype, options)
        assert not close(net, synchronous(dtype, STEPS, lr=0.051, **options)), "the bound is too wide to see anything"


@case
def ranks_differ_within_a_round_and_are_alike_after_it() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with LocalSGD(net, optimizer, sync_every=4) as averaging:
        train(net, optimizer.step, range(3))
        assert averaging.rounds == 0 and not alike(net)
        train(net, optimizer.step, range(3, 4))
        assert averaging.rounds == 1 and alike(net)
    before = weights(net)
    train(net, optimizer.step, range(4, 8))
    assert not alike(net) and not torch.equal(weights(net), before), "nobody follows a closed one"


@case
def post_local_sgd_is_that_of_torch() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    for options in ({"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}):
        for dtype in BOUNDS:
            net = model(dtype)
            optimizer = torch.optim.SGD(net.parameters(), **options)
            with PostLocalSGD(net, optimizer, sync_every=3, warmup_steps=4) as averaging:
                train(net, optimizer.step, range(STEPS), dtype)
            assert averaging.rounds == 4 + 3

            theirs = model(dtype)
            wrapped = DistributedDataParallel(theirs)
            hook = PostLocalSGDState(None, None, start_localSGD_iter=4, post_local_gradient_allreduce=False)
            wrapped.register_comm_hook(hook, post_localSGD_hook)
            local = torch.optim.SGD(wrapped.parameters(), **options)
            both = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=3, warmup_steps=4))
            train(wrapped, both.step, range(STEPS), dtype)
            assert close(net, theirs), (options, dtype)


@case
def a_warm_up_leaves_a_parameter_alone_that_no_rank_uses() -> None:
    for codec in (None, "int8"):
        used, mine, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
        optimizer = torch.optim.SGD([used, mine, unused], lr=0.1, weight_decay=0.5)
        with PostLocalSGD([used, mine, unused], optimizer, 2, warmup_steps=3, wire=codec) as averaging:
            for _ in range(3):
                optimizer.zero_grad()
                # Only rank 0 has a gradient of the second one, and nobody of the third.
                (used.sum() + (mine.sum() if dist.get_rank() == 0 else 0.0)).backward()
                optimizer.step()
            assert averaging.rounds == 3 and unused.grad is None and torch.equal(unused, torch.ones(2))
            assert torch.allclose(mine.grad, torch.full((2,), 1 / dist.get_world_size()), atol=0.01), "the mean over all ranks"


@case
def a_failed_exchange_of_gradients_is_saved_and_loaded() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with PostLocalSGD(net, optimizer, 2, 3) as averaging:
        flat = averaging._fragments[0]
        for number, each in enumerate(net.parameters()):
            each.grad = torch.full_like(each, float(number))
        averaging._pending = Exchange([*flat.read_gradients(), flat.present_gradients()], averaging._wire, "gradients")
        state = averaging.state_dict()
        averaging.load_state_dict(state)
        net.zero_grad()
        before = net[0].bias.detach().clone()
        optimizer.step()
        assert torch.allclose(net[0].bias, before - 0.1 * 1.0), "the step has the gradients of the saved exchange"


@case
def ranks_may_make_different_numbers_of_steps() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    own = 2 + 3 * dist.get_rank()
    with LocalSGD(net, optimizer, sync_every=own) as averaging:
        train(net, optimizer.step, range(3 * own))
        assert averaging.rounds == 3 and alike(net)
        train(net, optimizer.step, range(1 + dist.get_rank()))
        averaging.sync()
        assert averaging.rounds == 4 and alike(net)


@case
def a_resumed_training_is_one_that_was_not_interrupted() -> None:
    for make in (
        lambda *given: LocalSGD(*given, sync_every=4),
        lambda *given: PostLocalSGD(*given, sync_every=3, warmup_steps=4),
    ):
        results = []
        for parts in ([range(10)], [range(3), range(3, 6), range(6, 10)]):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            saved: Any = None
            for part in parts:
                with make(net, optimizer) as averaging:
                    if saved is not None:
                        net.load_state_dict(saved[1])
                        optimizer.load_state_dict(saved[2])
                        averaging.load_state_dict(saved[0])
                    train(net, optimizer.step, part)
                    file = io.BytesIO()
                    torch.save([averaging.state_dict(), net.state_dict(), optimizer.state_dict()], file)
                    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
                net, optimizer = model(seed=9), None
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
            results.append(torch.cat([values.reshape(-1) for values in saved[1].values()]))
        assert torch.equal(*results)


@case
def the_program_calls_others_meanwhile_in_any_order() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with LocalSGD(net, optimizer, sync_every=2 + dist.get_rank()) as averaging:
        total = torch.ones(3)
        work = dist.all_reduce(total, async_op=True)
        train(net, optimizer.step, range(2 * (2 + dist.get_rank())))
        work.wait()
        assert averaging.rounds == 2 and alike(net)
    assert torch.equal(total, torch.full((3,), float(dist.get_world_size())))


@case
def narrow_types_and_codecs() -> None:
    net = model()
    exact = copy.deepcopy(net)
    for codec in ("bf16", "int8"):
        coded = copy.deepcopy(net)
        for each, wire in ((exact, None), (coded, codec)):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
            with LocalSGD(each, optimizer, 2, wire=wire, bucket_bytes=200):
                train(each, optimizer.step, range(4))
        assert alike(coded)
        off = (weights(coded) - weights(exact)).abs().max()
        assert 0 < off < 0.02, (codec, off)
        exact = copy.deepcopy(net)
    half = model(torch.bfloat16)
    optimizer = torch.optim.SGD(half.parameters(), lr=0.05)
    with LocalSGD(half, optimizer, 2):
        train(half, optimizer.step, range(4), torch.bfloat16)
    assert alike(half) and half[0].weight.dtype == torch.bfloat16


@case
def a_state_that_makes_no_sense_changes_nothing() -> None:
    first, second = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2))], [nn.Parameter(torch.ones(2, 3))]
    for make in (
        lambda given, sgd: LocalSGD(given, sgd, 2, wire="int8"),
        lambda given, sgd: PostLocalSGD(given, sgd, 2, 1),
        lambda given, sgd: DiLoCo(given, sgd, sync_every=2),
    ):
        optimizer, other = (torch.optim.SGD(each, lr=0.1) for each in (first, second))
        with make(first, optimizer) as averaging, make(second, other) as wrong_one:
            for _ in range(5):
                for each in first:
                    each.grad = torch.ones_like(each)
                optimizer.step()
            state = averaging.state_dict()
            wrong = "parameter 0 of fragment 0 is 4 in float32 in the state and 2x3 in float32 in the model"
            error_of(herringbone.ArgumentError, lambda: wrong_one.load_state_dict(state), wrong)
            for name in state:
                if name not in ("version", "parameters", "residuals"):
                    lacks = {other: value for other, value in state.items() if other != name}
                    error_of(herringbone.ArgumentError, lambda: averaging.load_state_dict(lacks), "lacks", name[:5])
            for name, value in (
                ("rounds", -1),
                ("rounds", 1.5),
                ("rounds", "x"),
                ("step", None),
                ("step", -5),
                ("averages", 3),
                ("parameters", 3),
                ("border" if "border" in state else "common", None),
                ("outer" if "outer" in state else "border", {"velocity": [3]}),
                ("version", 2),
            ):
                damaged = {**state, name: value}
                error_of(herringbone.ArgumentError, lambda: averaging.load_state_dict(damaged), "load_state_dict: ")
            error_of(TypeError, lambda: averaging.load_state_dict({**state, "residuals": 3}), "pass what was saved")
            same = averaging.state_dict()
            assert (same["rounds"], same["step"]) == (state["rounds"], state["step"])
            old = {name: value for name, value in state.items() if name != "parameters"}
            averaging.load_state_dict(old)


@case
def mistakes_are_named() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    error_of(TypeError, lambda: LocalSGD("model", optimizer, 2), "LocalSGD: one of the parameters is a str")
    error_of(TypeError, lambda: LocalSGD(net, "sgd", 2), "LocalSGD: the optimizer is a str")
    error_of(ValueError, lambda: LocalSGD(net, optimizer, 0), "sync_every is 0")
    error_of(ValueError, lambda: LocalSGD(net, optimizer, 2, wire="int7"), "LocalSGD", "int7")
    error_of(ValueError, lambda: LocalSGD(net, optimizer, 2, bucket_bytes=0), "bucket_bytes is 0; pass 1 or more")
    error_of(ValueError, lambda: LocalSGD(net, optimizer, 2, least=2), "least is for elastic members; pass elastic=True, too")
    wrong = "a process group of torch cannot change its members"
    error_of(herringbone.ConfigError, lambda: LocalSGD(net, optimizer, 2, dist.group.WORLD, elastic=True), wrong)
    whole = nn.ParameterList([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    error_of(herringbone.UnsupportedError, lambda: LocalSGD(whole, optimizer, 2), "parameter 0 is of torch.complex64")
    error_of(
        ValueError,
        lambda: LocalSGD(DistributedDataParallel(net), optimizer, 2),
        "LocalSGD: the model is a DistributedData",
        "pass its module",
    )
    parts = torch.ones(4).as_subclass(type("DTensor", (torch.Tensor,), {}))  # to import the class takes seconds
    wrong = "parameter 0, of shape 4, is a DTensor, as FSDP2", "whole parameters, without fully_shard"
    error_of(herringbone.UnsupportedError, lambda: LocalSGD([parts.requires_grad_()], optimizer, 2), *wrong)
    with LocalSGD(net, optimizer, 2) as averaging:
        wrong = "LocalSGD.load_state_dict: the state is a list; pass the result of state_dict()"
        error_of(TypeError, lambda: averaging.load_state_dict([]), wrong)
        state = {name: value for name, value in averaging.state_dict().items() if name != "border"}
        error_of(herringbone.ArgumentError, lambda: averaging.load_state_dict(state), "the state lacks 'border'")
        state = averaging.state_dict()
        state["border"] = [torch.ones(2)]
        wrong = "the state's 'border' has 2 values of float32, and the model 385 values of float32"
        error_of(herringbone.ArgumentError, lambda: averaging.load_state_dict(state), wrong)
    averaging.close()  # a second time
    error_of(herringbone.ClosedError, averaging.regroup, "LocalSGD.regroup: it is closed; make a new LocalSGD")
    with PostLocalSGD(net, optimizer, 2, 5):
        error_of(herringbone.UnsupportedError, lambda: optimizer.step(lambda: 0.0), "the gradients of a closure come too late")


@case
def ranks_with_other_arguments_are_refused_on_all_ranks() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    own = dist.get_rank()
    wrong = "PostLocalSGD: warmup_steps is 3 on rank 1 and 2 on rank 0; all ranks have to make the same one"
    error_of(herringbone.ArgumentError, lambda: PostLocalSGD(net, optimizer, 2, 2 + own), wrong)
    kinds: list[Any] = [LocalSGD, DiLoCo]
    wrong = "the class is DiLoCo on rank 1 and LocalSGD on rank 0; outer_lr is 0.7 on rank 1 and none on rank 0"
    error_of(herringbone.ArgumentError, lambda: kinds[own](net, optimizer, sync_every=2), wrong)
    part = list(net.parameters())[own:]
    error_of(
        herringbone.ArgumentError,
        lambda: LocalSGD(part, optimizer, 2),
        "parameter 0 of fragment 0 is 32 in float32 on rank 1 and 32x10 in float32 on rank 0",
        ", and 1 more differ",
    )
    codecs = [None, "int8"]
    wrong = "wire is int8 on rank 1 and None on rank 0"
    error_of(herringbone.ArgumentError, lambda: LocalSGD(net, optimizer, 2, wire=codecs[own]), wrong)
    with LocalSGD(net, optimizer, 2 + own) as averaging:
        train(net, optimizer.step, range(2 + own))
        assert averaging.rounds == 1, "each rank has its own sync_every, and no refused one follows the optimizer"


@case
def a_rank_that_comes_later_with_other_arguments_is_refused_and_the_others_are_told() -> None:
    own = dist.get_rank()
    with LocalSGD(net := model(), torch.optim.SGD(net.parameters(), lr=0.1), 2) as averaging:
        group = averaging.communicator
        assert agree("LocalSGD", group, {"wire": "int8"}, 3 * own) == ""
        wrong = "wire is None on rank 0 and int8 on rank 1"
        given = {"wire": str([None, "int8"][own])}
        if own == 0:
            error_of(
                herringbone.ArgumentError, lambda: agree("LocalSGD", group, given, 0), f"LocalSGD: {wrong}; all ranks have to"
            )
        else:
            assert agree("LocalSGD", group, given, 3) == wrong


def main() -> None:
    warnings.simplefilter("error", UserWarning)
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
