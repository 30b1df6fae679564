"""Momentum before the codec, a share that warms up, and residuals that follow the learning rate: DDP's hook beside the formulas by hand."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import cases
import numpy as np
import torch
import torch.distributed as dist
from cases import error_of
from compressed_ddp import batch, model, weights
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import herringbone
import herringbone.torch as ours
from herringbone.torch.corrector import beside

CASES, case = cases.registry()

ELEMENTS = 5000
BLOCK = 1024
"""Elements of one block of a codec, of which it chooses the largest."""


class Given(nn.Module):
    """A vector whose gradient is what it is multiplied by."""

    def __init__(self, elements: int = ELEMENTS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        return (self.weight * gradient).sum()


def gradient(step: int, rank: int) -> np.ndarray:
    return np.random.default_rng([step, rank]).standard_normal(ELEMENTS).astype(np.float32)


def rate_of(step: int) -> float:
    return 0.1 if step < 3 else 0.025


def trained(steps: range, net: nn.Module, codec: str, inside: float = 0.0, **options: Any) -> ours.CompressionHook:
    """Train with a rate that falls in the fourth step; ``inside`` is the optimizer's momentum."""
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate_of(0), momentum=inside, nesterov=options.pop("inside_nesterov", False))
    state, follows = options.pop("state", None), options.pop("follows", False)
    hook = ours.compression_hook(codec, optimizer=optimizer if follows else None, **options)
    if state is not None:
        hook.load_state_dict(state)
    ddp.register_comm_hook(None, hook)
    for step in steps:
        optimizer.param_groups[0]["lr"] = rate_of(step)
        optimizer.zero_grad()
        if isinstance(net, Given):
            loss = ddp(torch.from_numpy(gradient(step, dist.get_rank())))
        else:
            x, y = batch(step)
            loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
    return hook


def left_of(hook: ours.CompressionHook) -> np.ndarray:
    """What is left of the only bucket."""
    ((_, left),) = hook.state_dict()["left"].values()
    return left.numpy()


@case
def momentum_before_a_codec_that_loses_nothing_is_the_optimizers() -> None:
    for nesterov in (False, True):
        expected, found = model(), model()
        trained(range(8), expected, "exact", inside=0.9, inside_nesterov=nesterov)
        trained(range(8), found, "exact", momentum=0.9, nesterov=nesterov)
        assert torch.allclose(weights(expected), weights(found), rtol=1e-4, atol=1e-6), nesterov
        late = model()
        trained(range(8), late, "exact", momentum=0.9, nesterov=nesterov, start_after=3)
        assert torch.equal(weights(found), weights(late)), "steps that go as they are have momentum, too"
    some = model()
    trained(range(8), some, "exact", momentum=0.9, exclude=["2."], named_parameters=some.named_parameters())
    plain = model()
    trained(range(8), plain, "exact", inside=0.9)
    assert torch.allclose(weights(plain), weights(some), rtol=1e-4, atol=1e-6), "and so have excluded parameters"


@case
def gradients_are_corrected_as_by_hand() -> None:
    """Each rank's: u = m u + g, whole = u + r, sent = T sign(whole) if that reaches T, r = whole - sent; r grows if the rate falls."""
    limit, momentum = np.float32(1.5), np.float32(0.5)
    for follows in (False, True):
        net = Given()
        hook = trained(range(6), net, "twobit:1.5", momentum=0.5, follows=follows)
        size = dist.get_world_size()
        weight = np.zeros(ELEMENTS, np.float32)
        velocity, left = np.zeros((2, size, ELEMENTS), np.float32)
        for step in range(6):
            if follows and step == 3:
                left *= np.float32(rate_of(2) / rate_of(3))
            sent = np.zeros((size, ELEMENTS), np.float32)
            for rank in range(size):
                velocity[rank] = momentum * velocity[rank] + gradient(step, rank)
                whole = velocity[rank] + left[rank]
                sent[rank] = limit * ((whole >= limit).astype(np.float32) - (whole <= -limit).astype(np.float32))
                left[rank] = whole - sent[rank]
            weight -= np.float32(rate_of(step)) * sent.sum(0) / np.float32(size)
        assert np.allclose(net.weight.detach().numpy(), weight, atol=1e-6), follows
        assert np.allclose(left_of(hook), left[dist.get_rank()], atol=1e-5), follows


@case
def masked_momentum_is_that_of_the_paper() -> None:
    """Lin et al., section 3.2: where the mask of the k largest is set, nothing is left of the velocity, nor of the residual."""
    most, momentum, size = 8, np.float32(0.9), dist.get_world_size()
    for ends in ([9], [4, 9]):
        net, state, begin = Given(BLOCK), None, 0
        velocity, left = np.zeros((2, size, BLOCK), np.float32)
        for end in ends:
            hook = ours.compression_hook(f"topk:{most / BLOCK}", momentum=0.9, masking=True)
            if state is not None:
                hook.load_state_dict(state)
            ddp = DistributedDataParallel(net)
            ddp.register_comm_hook(None, hook)
            for step in range(begin, end):
                net.weight.grad = None
                ddp(torch.from_numpy(gradient(step, dist.get_rank())[:BLOCK])).backward()
                sent = np.zeros((size, BLOCK), np.float32)
                for rank in range(size):
                    velocity[rank] = momentum * velocity[rank] + gradient(step, rank)[:BLOCK]
                    wanted = velocity[rank] + left[rank]
                    mask = np.argsort(-np.abs(wanted))[:most]
                    sent[rank, mask] = wanted[mask]
                    left[rank] = wanted - sent[rank]
                    velocity[rank, mask] = 0
                assert net.weight.grad is not None
                assert np.allclose(net.weight.grad.numpy(), sent.sum(0) / np.float32(size), atol=1e-5), (ends, step)
            state, begin = hook.state_dict(), end
        (masked,) = hook.state_dict()["velocities"].values()
        assert np.allclose(masked.numpy(), velocity[dist.get_rank()], atol=1e-5)
        assert np.allclose(left_of(hook), left[dist.get_rank()], atol=1e-5)


@case
def what_is_sent_whole_keeps_its_velocity_under_a_mask() -> None:
    some, plain = model(), model()
    how: dict[str, Any] = {"exclude": [""], "named_parameters": list(some.named_parameters())}
    trained(range(8), some, "topk:0.02", momentum=0.9, masking=True, **how)
    trained(range(8), plain, "exact", momentum=0.9)
    assert torch.allclose(weights(plain), weights(some), rtol=1e-4, atol=1e-6), "all parameters are excluded"


@case
def a_share_warms_up_and_nothing_is_lost_when_it_changes() -> None:
    net, shares = Given(4096), []
    ddp = DistributedDataParallel(net)
    hook = ours.compression_hook("topk:0.0009765625", warmup_steps=8)
    ddp.register_comm_hook(None, hook)
    total, sent = torch.zeros(4096), torch.zeros(4096)
    for step in range(10):
        given = torch.from_numpy(gradient(step, 0)[:4096])
        net.zero_grad()
        ddp(given).backward()
        assert net.weight.grad is not None
        total += given
        sent += net.weight.grad
        shares.append(int((net.weight.grad != 0).sum()))
    assert shares == [1024, 1024, 256, 256, 64, 64, 16, 16, 4, 4]
    assert np.allclose((total - sent).numpy(), left_of(hook), atol=1e-5)


@case
def a_resumed_training_is_one_that_was_not_interrupted() -> None:
    how: dict[str, Any] = {"codec": "topk:0.02", "momentum": 0.9, "warmup_steps": 8, "follows": True}
    # In the middle of a stage, where one ends, and where the rate falls.
    for end in (3, 4, 5):
        whole, half = model(), model()
        trained(range(10), whole, **how)
        state = trained(range(end), half, **how).state_dict()
        without = {key: value for key, value in state.items() if key not in ("velocities", "rates")}
        start = [parameter.detach().clone() for parameter in half.parameters()]
        trained(range(end, 10), half, state=state, **how)
        assert torch.equal(weights(whole), weights(half)), end
        other = model()
        for parameter, value in zip(other.parameters(), start):
            parameter.data.copy_(value)
        trained(range(end, 10), other, state=without, **how)
        assert not torch.equal(weights(whole), weights(other)), "velocities matter"


class Bucket:
    """What DDP gives to a hook: one of two buckets, each of one parameter."""

    def __init__(self, index: int, parameter: nn.Parameter) -> None:
        self.parameter, self.flat = parameter, torch.from_numpy(gradient(index, 0)[:4096])
        self.index, self.is_last = (lambda: index), (lambda: index == 1)
        self.buffer, self.parameters, self.gradients = (lambda: self.flat), (lambda: [self.parameter]), (lambda: [self.flat])


@case
def a_step_that_fails_between_its_buckets_is_begun_anew() -> None:
    hook: Any = ours.compression_hook("topk:0.0009765625", warmup_steps=4)
    weights = [nn.Parameter(torch.zeros(4096)) for _ in range(2)]

    def shares(buckets: int) -> list[int]:
        made = [hook(None, Bucket(index, weights[index])).wait() for index in range(buckets)]
        return [int((each != 0).sum()) for each in made]

    assert [shares(2), shares(2)] == [[1024, 1024], [256, 256]]
    common = hook.state_dict()
    assert shares(2) == [64, 64]
    assert shares(1) == [16], "the other bucket does not come"
    assert shares(2) == [16, 16], "the step that failed is no step"
    assert shares(1) == [4]
    hook.load_state_dict(common)
    assert shares(2) == [64, 64], "the step of the state"


@case
def a_gradient_that_is_not_finite_does_not_stay() -> None:
    net = Given(10)
    ddp = DistributedDataParallel(net)
    hook = ours.compression_hook("int8", momentum=0.5)
    ddp.register_comm_hook(None, hook)
    for factor, expected in ((1.0, 1.0), (float("nan"), None), (1.0, 1.5)):
        net.zero_grad()
        ddp(torch.full((10,), factor)).backward()
        assert net.weight.grad is not None
        if expected is None:
            assert net.weight.grad.isnan().all(), "it shows"
        else:
            assert torch.allclose(net.weight.grad, torch.full((10,), expected), atol=0.01), net.weight.grad


@case
def a_loaded_velocity_goes_to_its_gradients_device() -> None:
    """Here are no other devices, so the gradient is of one that has no memory."""
    velocity = torch.ones(3)
    assert beside(velocity, torch.zeros(3)) is velocity
    assert beside(velocity, torch.zeros(3, device="meta")).device.type == "meta"


@case
def wrong_corrections_are_refused() -> None:
    heavy = torch.optim.SGD(model().parameters(), lr=0.1, momentum=0.9)
    error_of(
        herringbone.ConfigError,
        lambda: ours.compression_hook("topk:0.1", momentum=0.9, optimizer=heavy),
        "compression_hook",
        "give the optimizer none",
    )
    adam = torch.optim.AdamW(model().parameters())
    error_of(
        herringbone.ConfigError,
        lambda: ours.compression_hook("topk:0.1", momentum=0.9, optimizer=adam),
        "the optimizer, AdamW, has momentum, too",
    )
    ours.compression_hook("topk:0.1", momentum=0.9, optimizer=torch.optim.Adam(model().parameters(), betas=(0.0, 0.9)))
    ours.compression_hook("topk:0.1", optimizer=adam)
    anything: Any = "adam"
    error_of(TypeError, lambda: ours.compression_hook("topk:0.1", optimizer=anything), "optimizer is a str")
    error_of(herringbone.ArgumentError, lambda: ours.compression_hook("topk:0.1", momentum=1.5), "momentum is 1.5")
    error_of(herringbone.ArgumentError, lambda: ours.compression_hook("sign", warmup_steps=4), "sign has no share")
    for wrong, said in (
        ({"codec": "topk:0.1"}, "masking without momentum"),
        ({"codec": "int8", "momentum": 0.9}, "int8 does not tell which elements were sent whole"),
        ({"codec": "topk:0.1", "momentum": 0.9, "feedback": False}, "topk:0.1 without feedback does not tell"),
    ):
        error_of(herringbone.ArgumentError, lambda: ours.compression_hook(masking=True, **wrong), said)
    hook = ours.compression_hook("topk:0.1", momentum=0.9)
    state = hook.state_dict()
    damaged = {**state, "velocities": {0: torch.tensor([torch.nan])}}
    error_of(herringbone.ArgumentError, lambda: hook.load_state_dict(damaged), "velocity of 0", "damaged")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "velocities": [1]}), "velocities are not tensors")
    error_of(herringbone.ArgumentError, lambda: hook.load_state_dict({**state, "steps": -1}), "steps is -1")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "steps": 1.5}), "steps is a float")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "left": []}), "left is a list")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "layouts": []}), "layouts is a list")
    for velocity in (torch.zeros(ELEMENTS).long(), torch.zeros(ELEMENTS).to_sparse(), torch.zeros(ELEMENTS, device="meta")):
        odd = {**state, "velocities": {0: velocity}}
        error_of(TypeError, lambda: hook.load_state_dict(odd), "velocity of 0 is a tensor of", "pass the result of state_dict")
    error_of(
        herringbone.ArgumentError, lambda: hook.load_state_dict({**state, "rates": [math.inf]}), "rates are [inf]", "damaged"
    )
    for layout in (5, None, (), ("a",), ([],), (-1,)):
        parts = {**state, "layouts": {0: layout}}
        error_of(TypeError, lambda: hook.load_state_dict(parts), "the layout of bucket 0 is", "pass it as it was saved")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "codecs": None}), "codecs is a NoneType")
    for left in (torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4).to_sparse(), torch.zeros(4, device="meta")):
        unreadable = {**state, "left": {"ddp.bucket0": (1, left)}}
        error_of(TypeError, lambda: hook.load_state_dict(unreadable), "residual of 'ddp.bucket0' cannot be read")
    error_of(
        herringbone.ArgumentError, lambda: hook.load_state_dict({**state, "left": {5: (1, torch.zeros(4))}}), "5 is not a bucket"
    )
    error_of(TypeError, lambda: hook.load_state_dict({**state, "left": {"ddp.bucket0": 3}}), "'ddp.bucket0' is not a pair")
    error_of(TypeError, lambda: hook.load_state_dict({**state, "rates": 0.1}), "rates are not numbers")
    hook.load_state_dict({**state, "velocities": {0: torch.zeros(4)}})
    bucket: Any = Bucket(0, nn.Parameter(torch.zeros(4096)))
    said = ("velocity of parameter 0 has 4 elements", "has 4096", "load a state of this model")
    error_of(herringbone.ArgumentError, lambda: hook(None, bucket), *said)
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 1.0}], lr=0.1)
    ddp = DistributedDataParallel(nn.ParameterDict({"first": first, "second": second}))
    following = ours.compression_hook("topk:0.1", optimizer=optimizer)
    ddp.register_comm_hook(None, following)
    residuals = herringbone.Residuals()
    following._corrector.begin(0, residuals, optimizer)
    optimizer.param_groups[0]["lr"] = 0.01
    error_of(herringbone.ArgumentError, lambda: following._corrector.begin(1, residuals, optimizer), "not by one common factor")


if __name__ == "__main__":
    dist.init_process_group("herringbone", timeout=timedelta(seconds=60))
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
