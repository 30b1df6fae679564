"""Cases of Horovod's way to train with torch, which every rank runs in the same order."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from cases import error_of, registry

import herringbone.horovod.torch as hvd

TRAINING, case = registry()
"""The cases of this file."""


def model_of(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def batch_of(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def trained(steps: int = 4, passes: int = 1, **more: Any) -> list[torch.Tensor]:
    """The parameters after some steps of all ranks."""
    model = model_of(seed=hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(plain, 2)
    names = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=names, backward_passes_per_step=passes, **more)
    assert isinstance(optimizer, torch.optim.SGD)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(passes):
            model(batch_of(passes * step + part, hvd.rank())).square().mean().backward()
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the schedule was made for the optimizer inside
            schedule.step()
    return [parameter.detach() for parameter in model.parameters()]


def alone(steps: int = 4, passes: int = 1) -> list[torch.Tensor]:
    """What one process would come to with the batches of all ranks."""
    model = model_of(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            for part in range(passes):
                (model(batch_of(passes * step + part, rank)).square().mean() / hvd.size()).backward()
        optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in model.parameters()]


def near(one: list[torch.Tensor], other: list[torch.Tensor], tolerance: float = 1e-5) -> bool:
    return all(torch.allclose(*pair, atol=tolerance) for pair in zip(one, other, strict=True))


@case
def training_is_that_of_one_process() -> None:
    expected = alone()
    parameters = [name for name, _ in model_of().named_parameters()]
    assert near(trained(), expected)
    assert near(trained(gradient_predivide_factor=2.0), expected)
    assert near(trained(groups=2), expected) and len(parameters) == 4
    assert near(trained(compression=hvd.Compression.fp16), expected, 1e-2)
    assert near(trained(compression=hvd.Compression.bf16), expected, 5e-2)
    assert near(trained(passes=3), alone(passes=3))


@case
def groups_of_parameters() -> None:
    model = model_of()
    parameters = list(model.parameters())
    plain = torch.optim.SGD(parameters, lr=0.1)
    names = list(model.named_parameters())
    optimizer = hvd.DistributedOptimizer(plain, names, groups=[parameters[:2], parameters[3:]])
    model(batch_of(0, hvd.rank())).sum().backward()
    optimizer.step()
    everybody = hvd.allgather(parameters[2].detach().reshape(1, -1))
    assert (everybody == everybody[0]).all()
    for wrong, reported in (
        (-1, "non-negative integer"),
        ([parameters[:1], parameters[:1]], "can only appear once"),
        ([["x"]], "must consist of torch.Tensor"),
    ):
        error_of(ValueError, lambda groups=wrong: hvd.DistributedOptimizer(plain, names, groups=groups), reported)


@case
def training_with_codecs() -> None:
    plain = trained()
    assert all(map(torch.equal, trained(compression=hvd.Compression.exact), plain)), "nothing is lost"
    for more in ({}, {"groups": 2}):
        assert near(trained(compression=hvd.Compression.int8, **more), plain, 0.02)
    assert not near(trained(compression=hvd.Compression.twobit(100.0)), plain, 0.02), "nothing reaches the threshold"


@case
def codecs_keep_what_they_lose_of_a_name() -> None:
    coded, size = hvd.Compression.twobit(0.5), hvd.size()
    for name in ("first", "second"):
        sums = [hvd.allreduce(torch.full((5000,), 0.3), name=f"kept.{name}", op=hvd.Sum, compression=coded) for _ in range(4)]
        # 0.3, 0.6, 0.4, 0.7: what is left goes with the next.
        assert [each.unique().tolist() for each in sums] == [[0.0], [0.5 * size], [0.0], [0.5 * size]], name
    both = [torch.full((10,), 0.6), torch.full((10,), 0.6, dtype=torch.float64)]
    one, other = hvd.grouped_allreduce(both, name="kept.group", op=hvd.Sum, compression=coded)
    assert one.unique().tolist() == [0.5 * size] and torch.allclose(other, both[1] * size), "other types are sent whole"
    largest = hvd.allreduce(torch.full((10,), 0.6), name="kept.max", op=hvd.Max, compression=coded)
    assert torch.equal(largest, torch.full((10,), 0.6)), "other operations are sent whole"


@case
def what_codecs_lose_belongs_to_one_optimizer_and_one_codec() -> None:
    coded, half = hvd.Compression.twobit(0.5), torch.full((8,), 0.25)

    def optimizer_of(names: str) -> tuple[torch.nn.Parameter, Any]:
        weight = torch.nn.Parameter(torch.zeros(8))
        return weight, hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [(names, weight)], compression=coded)

    def stepped(made: tuple[torch.nn.Parameter, Any], gradient: torch.Tensor) -> list[float]:
        weight, optimizer = made
        weight.data.zero_()
        optimizer.zero_grad()
        (weight * gradient).sum().backward()
        optimizer.step()
        return (-weight.detach()).unique().tolist()

    assert not hvd.allreduce(half, name="weight", compression=coded).any()
    one, other = optimizer_of("weight"), optimizer_of("weight")
    assert [stepped(one, half), stepped(other, half / 2), stepped(other, half / 2)] == [[0.0]] * 3
    state = one[1].compression_state_dict()
    assert stepped(one, half) == [0.5] and stepped(other, half) == [0.5]
    resumed = optimizer_of("weight")
    resumed[1].load_compression_state_dict(state)
    assert stepped(resumed, half) == [0.5], "a state goes to the optimizer that loads it"
    error_of(TypeError, lambda: resumed[1].load_compression_state_dict({"w": {}}), "load_state_dict", "lacks steps")
    assert torch.equal(hvd.allreduce(half, name="weight", compression=hvd.Compression.exact), half), "another codec"
    for whole in (half, torch.ones(100_000)):  # Fused with others if there are any, and on its own.
        assert not hvd.allreduce(torch.full_like(whole, 0.25), name="whole", compression=coded).any()
        hvd.grouped_allreduce([whole, whole], name="others")
        handles = [hvd.allreduce_async(whole, name=name) for name in ("whole", "beside")]
        assert all(torch.equal(hvd.synchronize(handle), whole) for handle in handles)
        assert not hvd.allreduce(torch.full_like(whole, 0.25), name="whole", compression=coded).any(), "it went as it is"
    assert not any(hvd.allreduce(half, compression=coded).any() for _ in range(4)), "without a name nothing is kept"


@case
def a_resumed_optimizer_is_one_that_was_not_interrupted() -> None:
    corrected = hvd.Compression.corrected(hvd.Compression.topk(0.1), momentum=0.9, warmup_steps=8, follows_rate=True)
    for compression, more in ((hvd.Compression.topk(0.1), {}), (corrected, {}), (corrected, {"groups": 2})):

        def steps(
            steps: range, model: torch.nn.Module, state: Any = None, compression: Any = compression, more: Any = more
        ) -> Any:
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=compression, **more
            )
            if state is not None:
                optimizer.load_compression_state_dict(state)
            for step in steps:
                optimizer.param_groups[0]["lr"] = 0.1 if step < 5 else 0.02
                optimizer.zero_grad()
                model(batch_of(step, hvd.rank())).square().mean().backward()
                optimizer.step()
            return optimizer

        whole, half, without = model_of(), model_of(), model_of()
        steps(range(10), whole)
        state = steps(range(5), half).compression_state_dict()
        steps(range(5), without)
        steps(range(5, 10), half, state)
        steps(range(5, 10), without)
        pairs = list(zip(whole.parameters(), half.parameters(), without.parameters(), strict=True))
        assert all(torch.equal(one, other) for one, other, _ in pairs), (compression, more)
        assert not all(torch.equal(one, other) for one, _, other in pairs), "the state matters"


@case
def momentum_before_a_codec_that_loses_nothing_is_the_optimizers() -> None:
    before = hvd.Compression.corrected(hvd.Compression.exact, momentum=0.9)
    found, expected = model_of(), model_of()
    for model, inside, compression in ((found, 0.0, before), (expected, 0.9, hvd.Compression.exact)):
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=inside)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression, backward_passes_per_step=2)
        for step in range(6):
            optimizer.zero_grad()
            for part in range(2):
                model(batch_of(2 * step + part, hvd.rank())).square().mean().backward()
            optimizer.step()
    assert near(list(found.parameters()), list(expected.parameters()))


@case
def velocities_are_masked_where_elements_were_sent() -> None:
    how = hvd.Compression.corrected(hvd.Compression.topk(0.1), momentum=0.9, masking=True)
    for more in ({}, {"groups": 2}):
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=how, **more)
        for step in range(3):
            optimizer.zero_grad()
            model(batch_of(step, hvd.rank())).square().mean().backward()
            optimizer.step()
        state = optimizer.compression_state_dict()
        left = {kept["left"].numel(): kept["left"] for kept in state["residuals"].values()}
        assert len(state["velocities"]) == len(state["residuals"])
        for name, velocity in state["velocities"].items():
            was_sent = left[velocity.numel()] == 0
            assert torch.equal(velocity.reshape(-1) == 0, was_sent) and 0 < was_sent.sum() < velocity.numel(), (more, name)
    error_of(ValueError, lambda: hvd.Compression.corrected(hvd.Compression.topk(0.1), masking=True), "masking without momentum")


@case
def a_step_that_fails_is_over() -> None:
    how = hvd.Compression.corrected(hvd.Compression.topk(0.1), momentum=0.9, warmup_steps=8)
    for more in ({}, {"groups": 2}):
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer: Any = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=how, **more)
        take, begun = optimizer._take, []

        def fail(*given: Any, take: Any = take) -> None:
            take(*given)
            raise RuntimeError("the reduction has failed")

        begin = optimizer._corrector.begin
        optimizer._corrector.begin = lambda step, *rest: (begun.append(step), begin(step, *rest))[1]
        for step, fails in enumerate((False, True, False)):
            optimizer._take = fail if fails else take
            optimizer.zero_grad()
            model(batch_of(step, hvd.rank())).square().mean().backward()
            if fails:
                handles = [handle for handle, _ in optimizer._handles.values()]
                error_of(RuntimeError, optimizer.step, "the reduction has failed")
                for handle in handles:
                    error_of(ValueError, lambda handle=handle: hvd.poll(handle), "has been cleared")
            else:
                optimizer.step()
        assert begun == [0, 1, 1], (more, "each step chooses its codec, and one that failed is no step")
        hvd.allreduce(torch.ones(1), name="all have ended")


@case
def corrections_that_do_not_fit_are_refused() -> None:
    coded, corrected = hvd.Compression.topk(0.1), hvd.Compression.corrected
    error_of(ValueError, lambda: corrected(hvd.Compression.fp16, momentum=0.9), "not a codec of the engine")
    error_of(ValueError, lambda: corrected(coded, momentum=1.0), "Compression.corrected: momentum is 1.0")
    error_of(ValueError, lambda: corrected(hvd.Compression.int8, warmup_steps=4), "int8 has no share")
    heavy = corrected(coded, momentum=0.9)
    error_of(
        ValueError, lambda: corrected(heavy, warmup_steps=4), "Compression.corrected: the compression has corrections already"
    )
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(9), compression=heavy), "it is for DistributedOptimizer")
    weight = torch.nn.Parameter(torch.zeros(3))
    moving = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    error_of(RuntimeError, lambda: hvd.DistributedOptimizer(moving, compression=heavy), "give the optimizer none")
    adam = torch.optim.Adam([weight], lr=0.1)
    error_of(RuntimeError, lambda: hvd.DistributedOptimizer(adam, compression=heavy), "the optimizer, Adam, has momentum")
    hvd.DistributedOptimizer(torch.optim.Adam([weight], betas=(0.0, 0.9)), compression=heavy)
    still = torch.optim.SGD([weight], lr=0.1)
    error_of(ValueError, lambda: hvd.DistributedOptimizer(still, compression=heavy, op=hvd.Adasum), "op=Average and op=Sum")
    optimizer = hvd.DistributedOptimizer(still, compression=heavy)
    error_of(TypeError, lambda: optimizer.load_compression_state_dict({}), "lacks residuals or steps")
    state = optimizer.compression_state_dict()
    name = next(iter(optimizer._parameter_names.values()))
    for change, kind, said in (
        ({"residuals": []}, TypeError, "residuals are not dictionaries by tensor"),
        ({"residuals": {name: 3}}, TypeError, "residuals are not dictionaries by tensor"),
        ({"steps": -1}, ValueError, "steps is -1"),
        (
            {"velocities": {name: torch.zeros(4)}},
            ValueError,
            f"the velocity of parameter {name!r} has 4 elements, but the parameter has 3",
        ),
    ):
        error_of(kind, lambda change=change: optimizer.load_compression_state_dict({**state, **change}), said)
    embedding = torch.nn.Embedding(6, 2, sparse=True)
    sparse = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=0.1), compression=heavy)
    loss = embedding(torch.tensor([1])).sum()
    error_of(ValueError, loss.backward, "is sparse", "sparse_as_dense=True")
    del sparse


@case
def codecs_that_ranks_do_not_agree_about() -> None:
    codec = hvd.Compression.int8 if hvd.rank() == 1 else hvd.Compression.none
    text = "Mismatched compression: One rank sent codec"
    error_of(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(9), name="odd", compression=codec), text)
    error_of(ValueError, lambda: hvd.reducescatter(torch.ones(8), compression=hvd.Compression.int8), "cannot use a codec")
    error_of(ValueError, lambda: hvd.allreduce(torch.ones(9), compression=hvd.Compression.topk(7)), "topk")
    assert torch.equal(hvd.allreduce(torch.ones(9), name="even", compression=hvd.Compression.int8), torch.ones(9))


@case
def adasum_merges_steps() -> None:
    parameter = torch.nn.Parameter(torch.zeros(hvd.size()))
    plain = torch.optim.SGD([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(plain, [("parameter", parameter)], op=hvd.Adasum)
    assert optimizer._parameter_names == {parameter: "parameter"}  # Horovod's own tests look at it, so programs may
    parameter[hvd.rank()].backward()
    error_of(AssertionError, optimizer.zero_grad, "zero_grad() was called after loss.backward()")
    error_of(AssertionError, lambda: optimizer.skip_synchronize().__enter__(), "not supported when using Adasum")
    optimizer.step()
    assert torch.allclose(parameter.detach(), -torch.ones(hvd.size()))  # orthogonal steps are added
    optimizer.zero_grad()
    (parameter.sum() * 0.5).backward()
    optimizer.step()
    assert torch.allclose(parameter.detach(), -1.5 * torch.ones(hvd.size()))  # parallel steps are averaged


@case
def a_rank_may_have_no_gradient() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    first, *_, last = model.parameters()
    (first.sum() if hvd.rank() else last.sum()).backward()
    optimizer.synchronize()
    assert torch.allclose(first.grad, torch.full_like(first, (hvd.size() - 1) / hvd.size()))
    assert torch.allclose(last.grad, torch.full_like(last, 1 / hvd.size()))
    with optimizer.skip_synchronize():
        optimizer.step()


@case
def gradients_can_be_clipped() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    (model(batch_of(0, hvd.rank())).sum() * 100).backward()
    optimizer.synchronize()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert len(set(hvd.allgather_object(float(norm)))) == 1
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with optimizer.skip_synchronize():
            optimizer.step()
        assert not said
        optimizer.synchronize()
        optimizer.step()
        assert [str(each.message)[:39] for each in said] == ["optimizer.step() called without optimiz"]


@case
def wrong_uses_of_an_optimizer() -> None:
    model = model_of()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    names = list(model.named_parameters())
    wrap = hvd.DistributedOptimizer
    error_of(ValueError, lambda: wrap(plain, names[:1]), "one or more model parameters were not named")
    error_of(ValueError, lambda: wrap(plain, [("x", each) for _, each in names]), "must be unique", "x")
    error_of(ValueError, lambda: wrap(plain, [each for _, each in names]), "sequence of tuples (name, parameter)")
    error_of(ValueError, lambda: wrap(plain, names, backward_passes_per_step=0), "must be > 0")
    error_of(ValueError, lambda: wrap(plain, names, op=hvd.Sum, gradient_predivide_factor=2.0), "op != Average")
    optimizer = wrap(plain)
    model(batch_of(0, 0)).sum().backward()
    error_of(AssertionError, optimizer.zero_grad, "zero_grad() was called after loss.backward()")
    error_of(AssertionError, lambda: model(batch_of(0, 0)).sum().backward(), "more than backward_passes_per_step")
    optimizer.step()
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    for _ in range(2):
        model(batch_of(0, 0)).sum().backward()
    optimizer.step()


@case
def sparse_gradients() -> None:
    for dense in (False, True):
        embedding = torch.nn.Embedding(6, 2, sparse=True)
        hvd.broadcast_parameters(list(embedding.named_parameters()), root_rank=0)
        plain = torch.optim.SGD(embedding.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(plain, embedding.named_parameters(), sparse_as_dense=dense)
        before = embedding.weight.detach().clone()
        embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
        optimizer.step()
        change = (before - embedding.weight.detach())[:, 0]
        expected = torch.zeros(6)
        expected[: hvd.size()] += 1 / hvd.size()
        expected[5] += 1
        assert torch.allclose(change, expected), (dense, change)


@case
def states_of_optimizers() -> None:
    for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad):
        model = model_of(seed=hvd.rank())
        optimizer = kind(model.parameters(), lr=0.1 * (hvd.rank() + 1))
        if hvd.rank() == 0:
            model(batch_of(0, 0)).sum().backward()
            optimizer.step()
        group = optimizer.param_groups[0]
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert group["lr"] == 0.1 and optimizer.param_groups[0] is group
        assert len({str(state) for state in hvd.allgather_object(optimizer.state_dict())}) == 1
    lbfgs = torch.optim.LBFGS(model_of().parameters())
    error_of(ValueError, lambda: hvd.broadcast_optimizer_state(lbfgs, 0), "cannot broadcast torch.optim.LBFGS state")
    error_of(ValueError, lambda: hvd.broadcast_parameters("model", 0), "invalid params of type")
    model = model_of()
    error_of(ValueError, lambda: hvd.broadcast_parameters(model.named_parameters(), 0), "pass model.state_dict(), or list(")
    error_of(TypeError, lambda: hvd.broadcast_optimizer_state(model, 0), "broadcast_optimizer_state: optimizer is a")
    adam = torch.optim.Adam(model.parameters())
    for call in (
        lambda: hvd.broadcast_parameters(model.state_dict(), hvd.size()),
        lambda: hvd.broadcast_optimizer_state(adam, root_rank=-1),
    ):
        error_of(ValueError, call, ": root_rank", "is not one of the process set's ranks")


@case
def parameters_that_are_added_or_unfrozen_later_are_reduced_too() -> None:
    for more in ({}, {"groups": 2}, {"backward_passes_per_step": 2}, {"op": hvd.Adasum}):
        if more.get("op") == hvd.Adasum and hvd.size() & (hvd.size() - 1):
            continue
        passes = int(more.get("backward_passes_per_step", 1))
        base, head, extra = (torch.nn.Linear(3, 3, bias=False) for _ in range(3))
        for part in (base, head, extra):
            hvd.broadcast_parameters(part.state_dict(), root_rank=0)
        base.weight.requires_grad_(False)
        plain = torch.optim.SGD([*base.parameters(), *head.parameters()], lr=0.1)
        optimizer = hvd.DistributedOptimizer(plain, **more)
        for step in range(6):
            if step == 2:
                base.weight.requires_grad_(True)
            if step == 4:
                optimizer.add_param_group({"params": list(extra.parameters())})
            before = extra.weight.clone()
            optimizer.zero_grad()
            for part in range(passes):
                x = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + 10 * part + hvd.rank()))
                (head(base(x)) + extra(x)).square().mean().backward()
            optimizer.step()
            assert (step >= 4) != torch.equal(before, extra.weight), (more, step)
            for layer in (base, head, extra):
                everywhere = hvd.allgather(layer.weight.detach()[None])
                assert (everywhere == everywhere[0]).all(), (more, step, everywhere)


@case
def what_is_no_plain_optimizer_is_refused() -> None:
    model = model_of()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    error_of(TypeError, lambda: hvd.DistributedOptimizer(optimizer), "reduced twice", "pass the optimizer that it was made from")
    error_of(TypeError, lambda: hvd.DistributedOptimizer(model), "optimizer is a", "pass a torch.optim.Optimizer")
    error_of(TypeError, lambda: hvd.DistributedOptimizer(torch.optim.Adam), "optimizer is a type")


@case
def batch_norm_over_all_ranks() -> None:
    sizes = [rank + 2 for rank in range(hvd.size())]
    whole = torch.randn(sum(sizes), 3, 5, generator=torch.Generator().manual_seed(1))
    begin = sum(sizes[: hvd.rank()])
    own = slice(begin, begin + sizes[hvd.rank()])
    mine, together = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
    part, all_of = whole[own].clone().requires_grad_(), whole.clone().requires_grad_()
    ours, expected = mine(part), together(all_of)
    ours.pow(3).sum().backward()
    expected.pow(3).sum().backward()
    assert torch.allclose(ours, expected[own], atol=1e-5)
    assert torch.allclose(part.grad, all_of.grad[own], atol=1e-3)
    assert torch.allclose(mine.running_mean, together.running_mean, atol=1e-6)
    assert torch.allclose(mine.running_var, together.running_var, atol=1e-6)
    summed = hvd.allreduce(mine.weight.grad, op=hvd.Sum)
    assert torch.allclose(summed, together.weight.grad, atol=1e-3)
    mine.eval(), together.eval()
    assert torch.allclose(mine(whole[own]), together(whole[own]), atol=1e-5)
    error_of(ValueError, lambda: mine(torch.ones(3)), "expected at least 2D input (got 1D input)")


@case
def failures_without_a_loss_end_a_round_on_all_ranks() -> None:
    state = hvd.elastic.TorchState(torch.nn.Linear(2, 1), batch=0)
    failed: set[int] = set()
    rounds: list[tuple[int, int]] = []
    state.register_reset_callbacks([lambda: rounds.append((hvd.size(), state.batch))])

    def train(state: Any) -> None:
        while state.batch < 30:
            if state.batch in (10, 20) and state.batch not in failed:
                failed.add(state.batch)
                if state.batch == 10:
                    hvd.allreduce(torch.ones(2 + hvd.rank()), name="another shape")
                elif hvd.rank() == 1:
                    raise hvd.HorovodInternalError("only this rank has failed")
            hvd.allreduce(torch.ones(3), name="gradient")
            state.batch += 1
            state.commit()

    hvd.elastic.run(train)(state)
    assert rounds == [(4, 10), (4, 20)], rounds
