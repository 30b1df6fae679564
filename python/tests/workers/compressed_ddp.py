"""Compressed gradients of DistributedDataParallel: the hook, its state, the environment's setting, and torch's powerSGD."""

from __future__ import annotations

import copy
import logging
import os
from datetime import timedelta
from typing import Any

import cases
import torch
import torch.distributed as dist
from cases import error_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import herringbone
import herringbone.torch as ours

CASES, case = cases.registry()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's share of a step, with something to learn in it."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    x = torch.randn(32, 20, generator=generator)
    return x, (x[:, :3].sum(1) > 0).long()


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))


def train(hook: Any, steps: range, net: nn.Module, **options: Any) -> float:
    """Train, and return the last loss."""
    ddp = DistributedDataParallel(net, **options)
    if hook is not None:
        ddp.register_comm_hook(*hook if isinstance(hook, tuple) else (None, hook))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def weights(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])


def steps_of(hook: ours.CompressionHook) -> dict[str, int]:
    """The buckets of which something is left, with the steps that they had."""
    return {name: steps for name, (steps, _) in hook.state_dict()["left"].items()}


@case
def every_codec_trains_and_all_ranks_stay_equal() -> None:
    plain = train(None, range(60), model())
    for codec in ("bf16", "int8", "sign", "topk:0.05", "twobit:0.05", "randomk:0.2", "exact"):
        net = model()
        loss = train(ours.compression_hook(codec, name=codec), range(60), net)
        assert loss < plain + 0.15, f"{codec}: {loss}, and {plain} without"
        mine = weights(net)
        others = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(others, mine)
        assert all(torch.equal(other, mine) for other in others), codec


@case
def feedback_makes_up_for_what_is_lost() -> None:
    with_it, without = (
        train(ours.compression_hook("twobit:0.05", feedback=feedback, name=f"{feedback}"), range(60), model())
        for feedback in (True, False)
    )
    assert with_it < without - 0.05, (with_it, without)


@case
def a_resumed_training_is_one_that_was_not_interrupted() -> None:
    # One bucket, several, and those that DDP never builds anew.
    for number, options in enumerate([{}, {"bucket_cap_mb": 0.002}, {"find_unused_parameters": True}]):
        whole = model()
        train(ours.compression_hook("topk:0.1", name=f"whole{number}"), range(10), whole, **options)
        half, first = model(), ours.compression_hook("topk:0.1", name=f"half{number}")
        train(first, range(5), half, **options)
        state = first.state_dict()
        assert state["left"] and all(name.startswith(f"half{number}.") for name in state["left"])
        without = copy.deepcopy(half)
        again = ours.compression_hook("topk:0.1", name=f"half{number}")
        again.load_state_dict(state)
        train(again, range(5, 10), half, **options)
        assert torch.equal(weights(whole), weights(half)), options
        train(ours.compression_hook("topk:0.1", name=f"without{number}"), range(5, 10), without, **options)
        assert not torch.equal(weights(whole), weights(without)), options


@case
def a_new_hook_starts_without_what_an_earlier_one_of_its_name_has_left() -> None:
    first, second = model(), model()
    train(ours.compression_hook("topk:0.1", name="again"), range(4), first)
    train(ours.compression_hook("topk:0.1", name="again"), range(4), second)
    assert torch.equal(weights(first), weights(second))


@case
def models_that_are_trained_in_turn_keep_what_is_left_apart() -> None:
    alone = model()
    train(ours.compression_hook("topk:0.1"), range(4), alone)
    pair = [model(), model()]
    turns = [DistributedDataParallel(net) for net in pair]
    for ddp in turns:
        ddp.register_comm_hook(None, ours.compression_hook("topk:0.1"))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in pair]
    for step in range(4):
        for number, (ddp, optimizer) in enumerate(zip(turns, optimizers)):
            optimizer.zero_grad()
            x, y = batch(step)
            (nn.functional.cross_entropy(ddp(x), y) * (1000.0 if number else 1.0)).backward()
            optimizer.step()
    assert torch.equal(weights(alone), weights(pair[0]))


@case
def a_state_of_another_codec_is_dropped_and_one_that_names_none_loads() -> None:
    half, first = model(), ours.compression_hook("twobit:0.01")
    train(first, range(4), half)
    state = first.state_dict()
    assert set(state["codecs"].values()) == {"twobit:0.01"}
    trained = {}
    for name, codec, loaded in (
        ("same", "twobit:0.01", state),
        ("old", "twobit:0.01", {key: value for key, value in state.items() if key != "codecs"}),
        ("another", "twobit:0.02", state),
        ("without", "twobit:0.02", {**state, "left": {}}),
    ):
        net, hook = copy.deepcopy(half), ours.compression_hook(codec)
        hook.load_state_dict(loaded)
        train(hook, range(4, 6), net)
        trained[name] = weights(net)
    assert torch.equal(trained["same"], trained["old"])
    assert torch.equal(trained["another"], trained["without"])


@case
def a_resumed_training_has_the_same_buckets_where_nothing_is_left_of_them() -> None:
    options: dict[str, Any] = {"bucket_cap_mb": 0.002}
    for number, (kept, end) in enumerate([({"feedback": False}, 3), ({"start_after": 2}, 2), ({"start_after": 3}, 2)]):
        whole = model()
        train(ours.compression_hook("topk:0.1", name=f"entire{number}", **kept), range(8), whole, **options)
        part, first = model(), ours.compression_hook("topk:0.1", name=f"part{number}", **kept)
        train(first, range(end), part, **options)
        again = ours.compression_hook("topk:0.1", name=f"renamed{number}", **kept)
        again.load_state_dict(first.state_dict())
        train(again, range(end, 8), part, **options)
        assert torch.equal(weights(whole), weights(part)), kept


class Mixed(nn.Module):
    """Of two types, so that DDP's buckets get other numbers when it builds them anew."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = nn.Linear(20, 64).double(), nn.Linear(64, 64), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x.double()).relu().float()).relu())


@case
def nothing_is_kept_of_buckets_that_are_no_more() -> None:
    options: dict[str, Any] = {"bucket_cap_mb": 0.002}
    whole = Mixed()
    train(ours.compression_hook("twobit:0.01", name="types"), range(8), whole, **options)
    half, first = Mixed(), ours.compression_hook("twobit:0.01", name="both")
    train(first, range(4), half, **options)
    state = first.state_dict()
    numbers = [number for layout in state["layouts"].values() for number in layout]
    assert len(numbers) == len(set(numbers)) == 4, state["layouts"]
    assert {f"both.bucket{index}" for index in state["layouts"]} == set(state["left"])
    again = ours.compression_hook("twobit:0.01", name="renamed")
    error_of(TypeError, lambda: again.load_state_dict({}), "load_state_dict", "layouts")
    error_of(ValueError, lambda: again.load_state_dict({**state, "left": {"bucket": (1, torch.zeros(1))}}), "not a bucket's name")
    error_of(
        ValueError, lambda: again.load_state_dict({**state, "left": {"a.bucket0": (1, torch.tensor([torch.nan]))}}), "damaged"
    )
    again.load_state_dict(state)
    train(again, range(4, 8), half, **options)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), half.parameters()))


@case
def a_state_of_another_model_is_refused() -> None:
    hook = ours.compression_hook("topk:0.1", name="another")
    train(hook, range(2), model())
    again = ours.compression_hook("topk:0.1", name="another")
    again.load_state_dict(hook.state_dict())
    smaller = DistributedDataParallel(nn.Linear(20, 2))
    smaller.register_comm_hook(None, again)
    loss = nn.functional.cross_entropy(smaller(batch(0)[0]), batch(0)[1])
    error_of(RuntimeError, loss.backward, "other parameters")


@case
def the_first_steps_and_some_parameters_go_as_they_are() -> None:
    plain, late = model(), model()
    train(None, range(3), plain)
    train(ours.compression_hook("sign", start_after=3, name="late"), range(3), late)
    assert torch.equal(weights(plain), weights(late))
    plain, some = model(), model()
    train(None, range(1), plain)
    hook = ours.compression_hook("sign", exclude=["2."], named_parameters=some.named_parameters(), name="some")
    train(hook, range(1), some)
    assert torch.equal(plain[2].weight, some[2].weight) and torch.equal(plain[2].bias, some[2].bias)
    assert not torch.equal(plain[0].weight, some[0].weight)
    error_of(herringbone.ConfigError, lambda: ours.compression_hook("sign", exclude=["3."]), "'3.'", "named_parameters")
    listed, iterated = (
        ours.compression_hook("sign", exclude=parts, named_parameters=some.named_parameters()) for parts in (["2."], iter(["2."]))
    )
    assert len(iterated._excluded) == 2 and iterated._excluded == listed._excluded
    error_of(herringbone.ArgumentError, lambda: ours.compression_hook("sign", start_after=-1), "-1", "0 or more")
    named = list(some.named_parameters())
    error_of(TypeError, lambda: ours.compression_hook("sign", exclude="bias", named_parameters=named), "pass a list", "['bias']")
    number: Any = 8
    text: Any = "2"
    error_of(herringbone.ArgumentError, lambda: ours.compression_hook("sign", start_after=text), "'2'", "0 or more")
    error_of(TypeError, lambda: ours.compression_hook(number), "codec is a int", "a codec's name")
    error_of(ValueError, lambda: ours.compression_hook("int9"), "int9", "topk:SHARE")


@case
def a_bucket_that_is_built_anew_starts_without() -> None:
    hook, said = ours.compression_hook("int8", name="anew"), []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("herringbone")
    log.addHandler(handler)
    level = log.level
    log.setLevel(logging.INFO)
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.002)
    ddp.register_comm_hook(None, hook)
    for step in range(3):
        x, y = batch(step)
        nn.functional.cross_entropy(ddp(x), y).backward()
    log.setLevel(level)
    log.removeHandler(handler)
    assert any("rebuilt its buckets" in text for text in said), said
    steps = steps_of(hook)
    assert steps and set(steps.values()) == {2}, f"the first of 3 steps does not count: {steps}"


@case
def other_types_go_as_they_are() -> None:
    net = model().to(torch.float64)
    ddp = DistributedDataParallel(net)
    hook = ours.compression_hook("sign", name="f64")
    ddp.register_comm_hook(None, hook)
    nn.functional.cross_entropy(ddp(batch(0)[0].double()), batch(0)[1]).backward()
    assert steps_of(hook) == {}


@case
def one_all_reduce_can_be_compressed() -> None:
    tensor = torch.full((5000,), 0.3)
    with ours.compression("twobit:0.5", "one"):
        dist.all_reduce(tensor)
    assert not tensor.any()
    whole = torch.full((3,), 7)
    with ours.compression("int8"):
        dist.all_reduce(whole)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    error_of(ValueError, lambda: ours.compression("int9").__enter__(), "int9", "use auto")
    assert whole.tolist() == [7 * dist.get_world_size()] * 3


@case
def powersgd_works_as_over_any_backend() -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3)
    assert train((state, powerSGD_hook.powerSGD_hook), range(60), model()) < 0.5


@case
def the_environment_asks_for_buckets_of_gradients_only() -> None:
    from herringbone.torch.compression_hooks import compress_if_asked

    os.environ["HERRINGBONE_COMPRESSION"] = "int9"
    compress_if_asked()
    error_of(herringbone.ConfigError, lambda: train(None, range(1), model()), "HERRINGBONE_COMPRESSION", "int9")
    os.environ["HERRINGBONE_COMPRESSION"] = "twobit:0.01"
    assert train(None, range(60), model()) < 0.6
    ddp = DistributedDataParallel(model())
    nn.functional.cross_entropy(ddp(batch(0)[0]), batch(0)[1]).backward()
    hook = ours.compression_hook_of(ddp)
    assert hook is not None and hook is ours.compression_hook_of(ddp)
    assert steps_of(hook) == {"ddp2.bucket0": 1}
    own = DistributedDataParallel(model())
    own.register_comm_hook(None, ours.compression_hook("int8", name="own"))
    own(batch(0)[0]).sum().backward()
    assert ours.compression_hook_of(own) is None
    metric = torch.full((10,), 0.001)
    dist.all_reduce(metric)
    assert metric.allclose(torch.full((10,), 0.001 * dist.get_world_size()))


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
