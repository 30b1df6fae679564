"""What a training by shards refuses, and how it fails: on two ranks, which all are told and can go on."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import cases
import numpy as np
import torch
import torch.distributed as dist
from cases import error_of
from torch import nn

import herringbone
from herringbone.errors import ArgumentError, ConfigError, HerringboneError, UnsupportedError
from herringbone.torch import Shards
from herringbone.torch import shards_surroundings as surroundings

CASES, case = cases.registry()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def sgd(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters(), 0.1)


def lost(of: nn.Module, shard: Any) -> torch.Tensor:
    return of(torch.full((2, 3), 1.0 + shard.number)).sum()


def refused(of: Any, text: str, kind: type[BaseException] = UnsupportedError, optimizer: Any = None) -> None:
    error_of(kind, lambda: Shards(4, seed=1).steps(of, optimizer or sgd(of)), text)


def failing(shards: Shards, of: nn.Module, body: Callable[[Any], object]) -> Callable[[], None]:
    """A training of one step, whose body does this for each shard."""

    def run() -> None:
        for step in shards.steps(of, sgd(of), until=shards.step + 1):
            for shard in step:
                body(shard)

    return run


@case
def test_what_sums_by_itself_is_refused() -> None:
    refused(nn.Sequential(nn.Linear(3, 3), nn.SyncBatchNorm(3)), "1 is a SyncBatchNorm")
    inner = nn.parallel.DistributedDataParallel(model())
    refused(nn.Sequential(inner), "0 is a DistributedDataParallel")
    from torch.distributed.fsdp import fully_shard

    refused(fully_shard(model()), "FSDP")
    from torch.distributed.optim import ZeroRedundancyOptimizer

    of = model()
    refused(of, "ZeroRedundancyOptimizer", optimizer=ZeroRedundancyOptimizer(of.parameters(), torch.optim.SGD, lr=0.1))


@case
def test_what_cannot_be_summed_is_refused() -> None:
    refused(nn.LazyLinear(3), "not made yet", optimizer=sgd(model()))
    refused(model().to(torch.complex64), "complex64")
    refused(nn.Linear(3, 3, device="meta"), "is on meta")
    refused(nn.ReLU(), "no parameter", optimizer=sgd(model()))
    refused(model(), "that is not the model's", optimizer=sgd(model()))
    of = model()
    refused(of, "LBFGS", optimizer=torch.optim.LBFGS(of.parameters()))
    refused("model", "not a torch.nn.Module", TypeError, sgd(model()))
    refused(model(), "not a torch.optim.Optimizer", TypeError, "sgd")


@case
def test_arguments_that_make_no_sense_are_refused() -> None:
    error_of(ArgumentError, lambda: Shards(0, seed=1), "shards is 0")
    error_of(TypeError, lambda: Shards("8", seed=1), "shards")  # type: ignore[arg-type]
    error_of(ValueError, lambda: Shards(8, seed=1, threads=0), "threads is 0")
    error_of(TypeError, lambda: Shards(8, seed=1, job=8), "job is a int")  # type: ignore[arg-type]
    gloo = dist.new_group(backend="gloo")
    error_of(ConfigError, lambda: Shards(8, seed=1, group=gloo), "gloo", 'init_process_group("herringbone")')
    error_of(ValueError, lambda: Shards(8, seed=1).mean([1.0]), "1 numbers for this worker's shards")


@case
def test_other_settings_on_a_rank_are_named_with_both_values() -> None:
    rank = dist.get_rank()
    of = model()
    failing_with = lambda shards: failing(shards, of, lambda shard: lost(of, shard).backward())
    error_of(ConfigError, failing_with(Shards(8 + 8 * rank, seed=1)), "rank 0 has shards 8 and rank 1 16")
    error_of(ConfigError, failing_with(Shards(8, seed=1 + rank)), "rank 0 has seed 1 and rank 1 2")
    error_of(ConfigError, failing_with(Shards(8, seed=1, threads=1 + rank)), "rank 0 has threads 1 and rank 1 2")
    other = nn.Linear(3, 2 + rank)
    error_of(ConfigError, failing(Shards(8, seed=1), other, lambda shard: lost(other, shard).backward()), "model", "same model")
    shards = Shards(4, seed=1)
    optimizer = torch.optim.Adam(of.parameters())
    if rank == 1:
        lost(of, type("", (), {"number": 1})).backward()
        optimizer.step()
    error_of(ConfigError, lambda: next(shards.steps(of, optimizer)), "optimizer's state", "save and load")


@case
def test_other_machines_are_refused_or_warned_of() -> None:
    own = {**surroundings.machine(), "processor level": f"level {dist.get_rank()}"}
    of = model()
    step = lambda shards: failing(shards, of, lambda shard: lost(of, shard).backward())
    with mock.patch.object(surroundings, "machine", lambda: own):
        error_of(ConfigError, step(Shards(4, seed=1)), "rank 0 has processor level level 0 and rank 1 level 1", "other_machines")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step(Shards(4, seed=1, other_machines=True))()
    assert any("bits can depend" in str(warning.message) for warning in caught)


@case
def test_a_mistake_of_one_rank_fails_the_step_on_all_and_leaves_nothing() -> None:
    shards, of = Shards(4, seed=1), model()
    of.register_buffer("seen", torch.zeros(()))
    is_here = dist.get_rank() == 1
    raised = UnsupportedError if is_here else HerringboneError

    def calls(shard: Any) -> None:
        lost(of, shard).backward()
        of.seen += 1
        if is_here:
            dist.all_gather_object([None], 1, group=alone[dist.get_rank()])

    before = [parameter.clone() for parameter in of.parameters()]
    alone = [dist.new_group([rank]) for rank in range(2)]
    text = "collectives of the process group" if is_here else "another rank could not take part in step 0"
    error_of(raised, failing(shards, of, calls), text)

    def breaks() -> None:
        for step in shards.steps(of, sgd(of), until=1):
            for shard in step:
                lost(of, shard).backward()
                if is_here:
                    break

    error_of(
        ArgumentError if is_here else HerringboneError, breaks, "has not finished shards [2, 3]" if is_here else "another rank"
    )
    embedding = nn.Embedding(9, 2, sparse=True)
    body = lambda shard: embedding(torch.tensor([shard.number])).sum().backward()
    error_of(UnsupportedError, failing(shards, embedding, body), "sparse=False")
    error_of(ArgumentError, failing(shards, of, lambda shard: None), "no shard of step 0 has given a gradient")

    def unfreezes() -> None:
        of[0].weight.requires_grad_(False)
        for step in shards.steps(of, sgd(of), until=1):
            for shard in step:
                of[0].weight.requires_grad_(True)
                lost(of, shard).backward()

    error_of(ArgumentError, unfreezes, "the type of parameters has changed within step 0")

    def outside(first: bool) -> Callable[[], None]:
        def run() -> None:
            for step in shards.steps(of, sgd(of), until=1):
                if first:
                    of[1].weight.sum().backward()
                for shard in step:
                    lost(of, shard).backward()
                if not first:
                    of[1].weight.sum().backward()

        return run

    error_of(ArgumentError, outside(True), "outside of the loop over its shards")
    error_of(ArgumentError, outside(False), "outside of the loop over its shards")
    limited = nn.Embedding(9, 2, max_norm=0.1)
    body = lambda shard: limited(torch.tensor([shard.number])).sum().backward()
    error_of(UnsupportedError, failing(shards, limited, body), "has changed parameter weight", "max_norm")
    assert shards.step == 0 and of.seen == 0
    for parameter, was in zip(of.parameters(), before):
        # All have rank 0's since the first step began.
        assert parameter.grad is None and (is_here or torch.equal(parameter, was))
    failing(shards, of, lambda shard: lost(of, shard).backward())()
    assert shards.step == 1


@case
def test_an_optimizer_that_the_body_steps_is_named() -> None:
    shards, of = Shards(4, seed=1), model()
    optimizer = sgd(of)
    steps = shards.steps(of, optimizer)
    step = next(steps)
    for shard in step:
        lost(of, shard).backward()
        error_of(ArgumentError, optimizer.step, "step.apply()")
    next(steps)
    steps.close()
    optimizer.step()


@case
def test_a_model_in_ddp_is_trained_without_its_sums() -> None:
    torch.manual_seed(dist.get_rank())
    plain = model()
    wrapped = nn.parallel.DistributedDataParallel(model())
    plain.load_state_dict(wrapped.module.state_dict())
    for of, called in ((plain, plain), (wrapped, wrapped)):
        shards = Shards(4, seed=1)
        optimizer = sgd(of)
        for step in shards.steps(of, optimizer, until=3):
            for shard in step:
                lost(called, shard).backward()
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), wrapped.module.parameters()))
    assert wrapped.require_backward_grad_sync


@case
def test_gradients_that_change_late_are_summed_again() -> None:
    def trained(body: Callable[[nn.Module, Any], None]) -> torch.Tensor:
        torch.manual_seed(1)
        of = model()
        for step in Shards(4, seed=1).steps(of, sgd(of), until=2):
            for shard in step:
                body(of, shard)
        return torch.cat([parameter.detach().reshape(-1) for parameter in of.parameters()])

    def clipped(of: nn.Module, shard: Any) -> None:
        lost(of, shard).backward()
        nn.utils.clip_grad_norm_(of.parameters(), 0.1)

    def by_hand(of: nn.Module, shard: Any) -> None:
        gradients = torch.autograd.grad(lost(of, shard), list(of.parameters()))
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
        for parameter, gradient in zip(of.parameters(), gradients):
            parameter.grad = gradient * torch.clamp(0.1 / (norm + 1e-6), max=1.0)

    assert torch.equal(trained(clipped), trained(by_hand))


@case
def test_a_linear_model_has_the_bits_of_the_tree() -> None:
    """The oracle knows nothing of torch: one parameter, whose gradient is the shard's input."""
    inputs = [np.random.default_rng(shard).standard_normal(5).astype(np.float32) * 10.0 ** (shard - 3) for shard in range(7)]

    def canonical(values: list[Any]) -> Any:
        if len(values) == 1:
            return values[0]
        half = 1 << (len(values) - 1).bit_length() - 1
        return canonical(values[:half]) + canonical(values[half:])

    of = nn.Linear(5, 1, bias=False)
    nn.init.zeros_(of.weight)
    shards = Shards(7, seed=1)
    for step in shards.steps(of, torch.optim.SGD(of.parameters(), 1.0), until=1):
        for shard in step:
            of(torch.from_numpy(inputs[shard.number]))[0].backward()
    expected = -(canonical([value.astype(np.float32) for value in inputs]) / np.float32(7))
    assert (of.weight.detach().numpy()[0] == expected).all()


@case
def test_a_step_that_is_made_counts_although_ranks_are_lost_after_it() -> None:
    of = model()
    group = herringbone.Communicator(dist.group.WORLD.member.communicator)
    job = herringbone.Elastic(lambda: of.state_dict(), of.load_state_dict, communicator=group)
    shards = Shards(4, seed=1, job=job)
    failure = herringbone.errors.PeerLostError("rank 1 is lost", [1])
    with mock.patch.object(herringbone.Elastic, "_recover") as recovers:
        for step in shards.steps(of, sgd(of), until=3):
            for shard in step:
                lost(of, shard).backward()
            if step.number == 1:
                assert step.apply()
                with mock.patch.object(herringbone.ShardGroup, "mean", side_effect=failure):
                    assert np.isnan(shards.mean([0.0, 0.0]))
    assert recovers.call_count == 1 and shards.step == job.steps == 3
    job._restore_handler()


@case
def test_loops_that_were_left_are_over() -> None:
    shards, of = Shards(4, seed=1), model()
    optimizer = sgd(of)
    held = shards.steps(of, optimizer)
    for step in held:
        for shard in step:
            lost(of, shard).backward()
        break
    before = of[0].weight.detach().clone()
    for other in shards.steps(of, optimizer, until=1):
        for shard in other:
            lost(of, shard).backward()
    error_of(ArgumentError, step.apply, "is over")
    assert shards.step == 1 and not torch.equal(before, of[0].weight)
    # A layer that is not trained any more does not move.
    of[0].requires_grad_(False)
    before = of[0].weight.detach().clone()
    for step in shards.steps(of, optimizer, until=2):
        error_of(ArgumentError, lambda: shards.load_state_dict(shards.state_dict()), "a step is open")
        for shard in step:
            lost(of, shard).backward()
    assert torch.equal(before, of[0].weight)
    with torch.autocast("cpu", torch.bfloat16):
        next(iter(shards.steps(of, optimizer)))


@case
def test_ranks_that_change_the_optimizer_apart_are_told() -> None:
    shards, of = Shards(4, seed=1), model()
    optimizer = sgd(of)

    def run() -> None:
        for step in shards.steps(of, optimizer, until=3):
            for shard in step:
                lost(of, shard).backward()
            if step.apply() and dist.get_rank() == 0:
                optimizer.param_groups[0]["lr"] *= 0.5

    text = "lr=0.05" if dist.get_rank() == 0 else "lr=0.1"
    error_of(ConfigError, run, "different settings of the optimizer", text, "in step 1")
    assert shards.step == 1
    error_of(ConfigError, run, "optimizer's settings", "lr=0.05", "lr=0.1")


@case
def test_calls_at_the_wrong_place_say_where_they_belong() -> None:
    shards, of = Shards(4, seed=1), model()
    for step in shards.steps(of, sgd(of), until=1):
        for shard in step:
            lost(of, shard).backward()
            error_of(ArgumentError, lambda: shards.mean([1.0]), "after the loop over shards")
            error_of(ArgumentError, step.reduce, "after the loop over shards")
            error_of(ArgumentError, step.apply, "after the loop over shards")
        error_of(TypeError, lambda: shards.mean(torch.ones(())), "pass a list")  # type: ignore[arg-type]
        assert shards.mean([1.0, 2.0]) == 1.5 and step.reduce()
        gradients = [parameter.grad for parameter in of.parameters()]
        of.zero_grad()
        error_of(ArgumentError, step.apply, "zero_grad()")
        for parameter, gradient in zip(of.parameters(), gradients):
            parameter.grad = gradient
    assert shards.step == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in shards.steps(of, sgd(of), until=3):
            for _ in step:
                of(torch.ones(2, 3)).sum().backward()
    said = [str(warning.message) for warning in caught]
    assert [("shard.batch(loader)" in text, __file__ in warning.filename) for text, warning in zip(said, caught)] == [
        (True, True)
    ]


@case
def test_few_samples_are_weighed() -> None:
    """Three samples on four shards: one has none, and the mean over the shards is that over the samples."""
    data = [torch.full((3,), float(value)) for value in (1, 2, 6)]
    shards, of = Shards(4, seed=1), nn.Linear(3, 1, bias=False)
    loader = shards.loader(data, 1, rule="weigh", shuffle=False)
    for step in shards.steps(of, torch.optim.SGD(of.parameters(), 0.0), until=1):
        losses = []
        for shard in step:
            losses.append(shard.batch(loader).sum())
            of(shard.batch(loader)).sum().backward()
        assert len(losses) == (2, 1)[dist.get_rank()]
        assert abs(shards.mean(losses) - 9.0) < 1e-6
        assert step.reduce() and torch.allclose(of.weight.grad, torch.full((1, 3), 3.0))


@case
def test_layers_may_be_frozen_and_trained_again() -> None:
    shards, of = Shards(4, seed=1), model()
    optimizer = sgd(of)
    of[0].weight.requires_grad_(False)
    weights = []
    for step in shards.steps(of, optimizer, until=4):
        for shard in step:
            lost(of, shard).backward()
        step.apply()
        weights.append(of[0].weight.detach().clone())
        assert (of[0].weight.grad is None) == (step.number < 2)
        of[0].weight.requires_grad_(step.number >= 1)
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])
    everywhere = [torch.zeros_like(weights[-1]) for _ in range(2)]
    dist.all_gather(everywhere, weights[-1])
    assert torch.equal(*everywhere)


@case
def test_a_scaler_skips_the_step_on_all_if_one_shard_is_infinite() -> None:
    shards, of = Shards(4, seed=1), model()
    optimizer, scaler = sgd(of), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = of[0].weight.detach().clone()
    for step in shards.steps(of, optimizer, until=2, scaler=scaler):
        for shard in step:
            with torch.autocast("cpu", torch.bfloat16):
                loss = lost(of, shard)
            huge = torch.inf if step.number == 0 and shard.number == 3 else 1.0
            scaler.scale(loss * huge).backward()
        assert step.reduce() and bool(of[0].weight.grad.isfinite().all()) == (step.number > 0)
        if step.number == 0:
            before = of[0].weight.detach().clone()
        step.apply()
        assert torch.equal(before, of[0].weight) == (step.number == 0)
        assert scaler.get_scale() == 4.0


@case
def test_a_checkpoint_of_another_training_is_refused() -> None:
    data = [torch.ones(1)] * 40
    shards = Shards(4, seed=1)
    shards.loader(data, 2)
    state = shards.state_dict()
    error_of(ConfigError, lambda: Shards(8, seed=1).load_state_dict(state), "shards=4 and this training shards=8")
    error_of(ConfigError, lambda: Shards(4, seed=2).load_state_dict(state), "seed=1 and this training seed=2")
    error_of(ConfigError, lambda: Shards(4, seed=1).load_state_dict(state), "1 loaders and this training 0")
    error_of(TypeError, lambda: shards.load_state_dict({}), "state_dict()")
    changed = Shards(4, seed=1)
    changed.loader(data, 3)
    error_of(HerringboneError, lambda: changed.load_state_dict(state), "batch")
    error_of(TypeError, lambda: next(iter(one_step())).batch(data), "shards.loader(dataset, batch)")


def one_step() -> Iterator[Any]:
    of = model()
    shards = Shards(dist.get_world_size(), seed=1)
    for step in shards.steps(of, sgd(of), until=1):
        for shard in step:
            yield shard
            lost(of, shard).backward()


if __name__ == "__main__":
    dist.init_process_group("herringbone")
    cases.run(CASES, dist.get_rank())
    assert os.environ["RESULTS"]
    dist.destroy_process_group()
