"""DiLoCo beside averaging, beside torch's optimizers, with fragments that stream, and resumed."""

from __future__ import annotations

import copy
import io
import tracemalloc
from datetime import timedelta
from typing import Any

import cases
import numpy as np
import torch
import torch.distributed as dist
from averaging import BOUNDS, STEPS, alike, close, model, synchronous, train, weights
from cases import error_of
from torch import nn

import herringbone
from herringbone.optim import DiLoCo, LocalSGD
from herringbone.optim.outer import OuterSGD

CASES, case = cases.registry()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1)


def trained(dtype: torch.dtype = torch.float32, steps: int = STEPS, seed: int = 1, **options: Any) -> nn.Module:
    """A model after training by DiLoCo."""
    net = model(dtype, seed)
    optimizer = sgd(net)
    with DiLoCo(net, optimizer, **options):
        train(net, optimizer.step, range(steps), dtype)
    return net


@case
def one_step_a_round_and_a_plain_outer_step_is_averaging() -> None:
    for dtype in BOUNDS:
        plain = {"outer_lr": 1.0, "outer_momentum": 0.0}
        ours = trained(dtype, sync_every=1, seed=dist.get_rank() + 1, **plain)
        net = model(dtype)
        optimizer = sgd(net)
        with LocalSGD(net, optimizer, 1):
            train(net, optimizer.step, range(STEPS), dtype)
        assert alike(ours) and close(ours, net)
        assert close(ours, synchronous(dtype, STEPS, lr=0.1))
        net = model(dtype)
        optimizer = sgd(net)
        with LocalSGD(net, optimizer, 4):
            train(net, optimizer.step, range(STEPS), dtype)
        assert close(trained(dtype, sync_every=4, **plain), net)
        assert not close(trained(dtype, sync_every=4), net)


def by_hand(steps: int, every: int, fragments: list[list[int]], delay: int, alpha: float) -> nn.Module:
    """What DiLoCo is, written down with torch alone: parameters one by one, and torch's SGD as the outer optimizer."""
    net = model()
    inner = sgd(net)
    parameters = list(net.parameters())
    common = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    outers = [torch.optim.SGD([common[at] for at in part], lr=0.7, momentum=0.9, nesterov=True) for part in fragments]
    interval, round = every // len(fragments), 0
    for step in range(1, steps + 1):
        train(net, inner.step, range(step - 1, step))
        place, part = (step - 1) % interval + 1, fragments[round % len(fragments)]
        if place == interval - delay:
            for at in part:
                common[at].grad = (common[at] - parameters[at]).detach()
                dist.all_reduce(common[at].grad)
                common[at].grad /= dist.get_world_size()
        if place == interval:
            outers[round % len(fragments)].step()
            with torch.no_grad():
                for at in part:
                    parameters[at].copy_(torch.lerp(common[at], parameters[at], alpha))
            round += 1
    return net


@case
def the_outer_step_is_that_of_torch() -> None:
    drawing = np.random.default_rng(5)
    for dtype, bound in ((np.float32, 1e-6), (np.float64, 1e-14)):
        for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
            values: list[Any] = [drawing.normal(size=size).astype(dtype) for size in (7, 3)]
            theirs = [nn.Parameter(torch.from_numpy(each.copy())) for each in values]
            optimizer = torch.optim.SGD(theirs, lr=0.7, momentum=momentum, nesterov=nesterov)
            ours = OuterSGD(0.7, momentum, nesterov)
            for _ in range(5):
                gradient: list[Any] = [drawing.normal(size=each.size).astype(dtype) for each in values]
                for parameter, change in zip(theirs, gradient):
                    parameter.grad = torch.from_numpy(change.copy())
                optimizer.step()
                ours.step(values, gradient)
            for mine, parameter in zip(values, theirs):
                assert mine.dtype == dtype
                np.testing.assert_allclose(mine, parameter.detach().numpy(), rtol=bound, atol=bound)


@case
def it_is_what_the_papers_say() -> None:
    whole, halves = [[0, 1, 2, 3]], [[0], [1, 2, 3]]
    assert close(trained(sync_every=4), by_hand(STEPS, 4, whole, 0, 0.0))
    assert close(trained(sync_every=6, fragments=2), by_hand(STEPS, 6, halves, 0, 0.0))
    streamed = {"fragment_sync_delay": 1, "fragment_update_alpha": 0.25}
    assert close(trained(sync_every=6, fragments=2, bucket_bytes=64, **streamed), by_hand(STEPS, 6, halves, 1, 0.25))
    assert not close(by_hand(STEPS, 6, halves, 1, 0.25), by_hand(STEPS, 6, halves, 1, 0.0))


@case
def fragments_may_be_modules() -> None:
    net = model()
    optimizer = sgd(net)
    with DiLoCo([net[0], net[2]], optimizer, sync_every=6, fragment_sync_delay=2):
        train(net, optimizer.step, range(STEPS))
    assert close(net, by_hand(STEPS, 6, [[0, 1], [2, 3]], 2, 0.0))


@case
def the_outer_optimizer_may_be_one_of_torch() -> None:
    ours = trained(sync_every=6, fragments=2)
    for several in (False, True):
        net = model()
        parameters = list(net.parameters())
        parts = [parameters[:1], parameters[1:]] if several else [parameters]
        outers = [torch.optim.SGD(part, lr=0.7, momentum=0.9, nesterov=True) for part in parts]
        optimizer = sgd(net)
        with DiLoCo(net, optimizer, outers if several else outers[0], sync_every=6, fragments=2) as diloco:
            train(net, optimizer.step, range(STEPS // 2))
            state = diloco.state_dict()
            bare = copy.deepcopy(state["outer"]["optimizers"])
            del bare[-1]["param_groups"][0]["lr"]
            for last, wrong in (({}, "the state lacks 'state'"), (bare[-1], "group 0 of the state lacks 'lr'")):
                # The first one is right, but has another momentum.
                first = copy.deepcopy(state["outer"]["optimizers"][:-1])
                for kept in first:
                    kept["param_groups"][0]["momentum"] = 0.5
                damaged = {**state, "outer": {"optimizers": [*first, last]}}
                error_of(herringbone.ArgumentError, lambda: diloco.load_state_dict(damaged), f"{len(parts) - 1}: {wrong}")
            assert all(outer.param_groups[0]["momentum"] == 0.9 for outer in outers), "nothing of it is loaded"
            diloco.load_state_dict(state)
            train(net, optimizer.step, range(STEPS // 2, STEPS))
        assert close(net, ours)


@case
def ranks_may_make_different_numbers_of_steps() -> None:
    own = 4 + 2 * dist.get_rank()
    net = model()
    optimizer = sgd(net)
    with DiLoCo(net, optimizer, sync_every=own, fragments=2, fragment_sync_delay=1) as diloco:
        while diloco.rounds < 6:
            train(net, optimizer.step, range(1))
        common = diloco.state_dict()["common"]
    mine = torch.cat([values for fragment in common for values in fragment])
    others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(others, mine)
    assert all(torch.equal(mine, other) for other in others)


@case
def an_exchange_starts_as_many_steps_early_as_asked() -> None:
    net = model()
    optimizer = sgd(net)
    with DiLoCo(net, optimizer, sync_every=8, fragments=2, fragment_sync_delay=2) as diloco:

        def issued() -> int:
            """The number of the exchanges' last call; nothing else of this process makes calls meanwhile."""
            return diloco.communicator.recent()[-1]["sequence"]

        first, seen = issued(), []
        for step in range(8):
            train(net, optimizer.step, range(step, step + 1))
            seen.append((issued() - first, diloco.rounds))
    assert seen == [(0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (2, 1), (2, 1), (2, 2)], seen


@case
def it_keeps_two_copies_between_exchanges() -> None:
    net = nn.Linear(1000, 1000)
    copy_bytes = 4 * sum(parameter.numel() for parameter in net.parameters())
    tracemalloc.start()  # of numpy's arrays; torch's memory is not seen
    try:
        optimizer = sgd(net)
        with DiLoCo(net, optimizer, sync_every=1) as diloco:
            net(torch.ones(1, 1000)).sum().backward()
            optimizer.step()
            kept, most = tracemalloc.get_traced_memory()
            assert diloco.rounds == 1
    finally:
        tracemalloc.stop()
    assert 2.0 <= kept / copy_bytes < 2.1, kept / copy_bytes
    assert most / copy_bytes < 5.1, most / copy_bytes  # and within the outer step a product


@case
def codecs_stay_near_and_all_ranks_stay_equal() -> None:
    exact = trained(sync_every=3)
    for options in ({"should_quantize": True}, {"wire": "bf16"}, {"wire": "int8", "feedback": False}):
        coded = trained(sync_every=3, **options)
        off = (weights(coded) - weights(exact)).abs().max()
        assert alike(coded) and 0 < off < 0.02, (options, off)
    wide = trained(torch.float64, sync_every=3, wire="int8")
    assert close(wide, trained(torch.float64, sync_every=3)), "codecs are for float32 only"


@case
def a_resumed_training_is_one_that_was_not_interrupted() -> None:
    options = {"sync_every": 6, "fragments": 2, "fragment_sync_delay": 1, "wire": "int8"}
    results = []
    # The second is interrupted within a round, the third while an exchange runs.
    for parts in ([range(10)], [range(4), range(4, 10)], [range(5), range(5, 8), range(8, 10)]):
        net, saved = model(), None
        for part in parts:
            optimizer = sgd(net)
            with DiLoCo(net, optimizer, **options) as diloco:
                if saved is not None:
                    net.load_state_dict(saved[1])
                    diloco.load_state_dict(saved[0])
                train(net, optimizer.step, part)
                file = io.BytesIO()
                torch.save([diloco.state_dict(), net.state_dict()], file)
                saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            net = model(seed=9)
        results.append(torch.cat([values.reshape(-1) for values in saved[1].values()]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    kept = saved[0]["residuals"]
    assert kept and all(isinstance(each["left"], torch.Tensor) for each in kept.values())
    arrays = {name: {**each, "left": each["left"].numpy()} for name, each in kept.items()}
    with DiLoCo(net, sgd(net), **options) as diloco:
        diloco.load_state_dict({**saved[0], "residuals": arrays})  # as earlier versions have saved them
        again = diloco.state_dict()["residuals"]
    assert all(torch.equal(again[name]["left"], each["left"]) for name, each in kept.items())


@case
def another_group_takes_over() -> None:
    net = model()
    optimizer = sgd(net)
    with DiLoCo(net, optimizer, sync_every=6, fragments=2, fragment_sync_delay=1) as diloco:
        train(net, optimizer.step, range(5))
        diloco.regroup(dist.new_group(range(dist.get_world_size())))
        train(net, optimizer.step, range(5, STEPS))
    assert close(net, by_hand(STEPS, 6, [[0], [1, 2, 3]], 1, 0.0))


@case
def a_rank_that_is_behind_gets_the_others_state() -> None:
    """As after a loss that ended the exchange on some ranks only: here each rank is alone before it meets the other."""
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    is_behind = dist.get_rank() == 1
    net = model()
    optimizer = sgd(net)
    with DiLoCo(net, optimizer, sync_every=6, fragments=2, group=alone) as diloco:
        train(net, optimizer.step, range(3 + 3 + 1 - 2 * is_behind))
        assert diloco.rounds == 2 - is_behind
        before = [parameter.detach().clone() for parameter in net.parameters()]
        diloco.regroup()
        assert diloco.rounds == 2
        changed = [not torch.equal(*pair) for pair in zip(before, net.parameters())]
        # Fragment 1 was exchanged. Of the other one each rank keeps what its inner steps have made.
        assert changed == [False, is_behind, is_behind, is_behind]
        state = diloco.state_dict()
        assert state["step"] == 1 - is_behind, "the round that was under way is over"
        common = [values for fragment in state["common"] for values in fragment] + [
            values for velocity in state["outer"]["velocity"] for values in velocity
        ]
        mine = torch.cat(common)
        others = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(others, mine)
        assert torch.equal(*others)
        train(net, optimizer.step, range(7, 7 + 5 + is_behind))
        assert diloco.rounds == 4
    mine = diloco.state_dict()["common"][1][0]
    others = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(others, mine)
    assert torch.equal(*others)


@case
def ranks_with_another_outer_optimizer_are_refused() -> None:
    net = model()
    optimizer, own = sgd(net), dist.get_rank()
    wrong = "DiLoCo: outer_lr is 1.7 on rank 1 and 0.7 on rank 0; all ranks have to make the same one"
    error_of(herringbone.ArgumentError, lambda: DiLoCo(net, optimizer, sync_every=6, outer_lr=0.7 + own), wrong)
    outer = torch.optim.SGD(net.parameters(), lr=0.7, momentum=0.5 * own)
    wrong = "momentum=0.5"
    error_of(
        herringbone.ArgumentError, lambda: DiLoCo(net, optimizer, outer, sync_every=6), "outer_optimizer is SGD(lr=0.7", wrong
    )
    error_of(
        herringbone.ArgumentError, lambda: DiLoCo(net, optimizer, sync_every=6, fragments=1 + own), "fragments is 2 on rank 1"
    )


@case
def mistakes_are_named() -> None:
    net = model()
    optimizer = sgd(net)

    def make(given: Any = net, **options: Any) -> DiLoCo:
        return DiLoCo(given, optimizer, **{"sync_every": 6, **options})

    error_of(ValueError, lambda: make(fragments=5), "DiLoCo: 4 parameters cannot be cut into 5 fragments; pass 1 to 4")
    error_of(ValueError, lambda: make(fragments=0), "cannot be cut into 0 fragments")
    error_of(
        ValueError, lambda: make(fragments=4), "sync_every is 6, which 4 fragments do not divide; pass a multiple, such as 8"
    )
    wrong = "fragments is a list; pass a list of modules in place of model"
    error_of(TypeError, lambda: make(fragments=[net[0], net[2]]), wrong)
    error_of(ValueError, lambda: make([net[0], net[2]], fragments=3), "fragments is 3, and model has 2 modules")
    error_of(ValueError, lambda: make([net, net[0]]), "two fragments have a parameter in common")
    error_of(ValueError, lambda: make([]), "model is an empty list")
    error_of(ValueError, lambda: make(fragment_sync_delay=6), "fragment_sync_delay is 6, but a round has 6 inner steps")
    error_of(ValueError, lambda: make(fragment_update_alpha=2), "fragment_update_alpha is 2; pass a number from 0 to 1")
    error_of(ValueError, lambda: make(should_quantize=True, wire="bf16"), "pass one of them")
    error_of(ValueError, lambda: make(outer_momentum=1.0), "outer_momentum is 1.0")
    error_of(TypeError, lambda: make(net[0].weight), "model is a Parameter; pass a torch.nn.Module")
    outer = torch.optim.SGD([net[0].weight], lr=1.0)
    error_of(ValueError, lambda: make(outer_optimizer=outer), "the outer optimizer of fragment 0 lacks some of its parameters")
    error_of(ValueError, lambda: make(outer_optimizer=[outer, outer]), "2 outer optimizers for 1 fragments")
    with make() as diloco:
        wrong = "DiLoCo.load_state_dict: the state lacks 'version'; pass the result of state_dict() of the same class"
        error_of(herringbone.ArgumentError, lambda: diloco.load_state_dict({}), wrong)
        state = diloco.state_dict()
        state["common"] = [[torch.ones(3)]]
        error_of(herringbone.ArgumentError, lambda: diloco.load_state_dict(state), "3 values of float32, and the model 385")
        state = diloco.state_dict()
        state["outer"] = {}
        error_of(herringbone.ArgumentError, lambda: diloco.load_state_dict(state), "the outer state lacks 1 'velocity'")
    with make(group=dist.new_group(backend="cpu:herringbone,cuda:gloo")) as diloco:
        assert diloco.communicator.size == dist.get_world_size(), "a group of several backends has one for the CPU"
    gloo = dist.new_group(backend="gloo")
    wrong = "DiLoCo: the process group has the backend gloo, which has no averages of this kind"
    error_of(herringbone.ConfigError, lambda: make(group=gloo), wrong)
    assert torch.equal(weights(copy.deepcopy(net)), weights(model())), "nothing of this has changed the model"


def main() -> None:
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
