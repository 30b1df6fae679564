"""What each peer of a job does with ThresholdSGD; started by test_optim_threshold.py."""

import copy
import hashlib
import os
import pathlib
import signal
import sys
import time

import herringbone
import pytest
import torch
from herringbone.optim import ThresholdSGD

RANK, WORKERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)


def network(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def backward(model, step):
    torch.manual_seed(step * WORKERS + RANK)
    inputs = torch.randn(16, 5)
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :3].sin())
    loss.backward()
    return loss.item()


def digest(model):
    return hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()


def train(model, optimizer, steps, pause=0.0):
    losses = []
    for step in steps:
        losses.append(backward(model, step))
        time.sleep(pause)
        optimizer.step()
    return losses


def lockstep(group):
    """All peers have the same bits after each step, and one that loads a state goes on as if nothing had been."""
    model = network(RANK)
    optimizer = ThresholdSGD(model.parameters(), lr=0.05, momentum=0.9, share=0.02, warmup_steps=20, masking=True, group=group)
    losses = train(model, optimizer, range(60))
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
    print(f"lockstep {digest(model)}", flush=True)
    optimizer.finish()
    again = copy.deepcopy(model)
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(60, 64))
    optimizer.finish()
    resumed = ThresholdSGD(again.parameters(), lr=9.0, group=group)
    resumed.load_state_dict(state)
    train(again, resumed, range(60, 64))
    resumed.finish()
    assert digest(again) == digest(model)


def apart(group):
    """A slow peer, and one that makes fewer steps: nobody is further from it than the bound, and all end with the same bits."""
    model = network(RANK)
    optimizer = ThresholdSGD(model.parameters(), lr=0.05, momentum=0.9, share=0.05, staleness=3, masking=True, group=group)
    losses = train(model, optimizer, range(30 if RANK == 0 else 40), 0.01 if RANK == 1 else 0.0)
    optimizer.finish()
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5]), losses
    print(f"apart {digest(model)}", flush=True)


def beside(group):
    """A second training over the group does not take the messages of a first one that has not finished."""
    models = [network(RANK), torch.nn.Sequential(torch.nn.Linear(5, 30), torch.nn.Linear(30, 3))]
    optimizers = [ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=2, group=group) for model in models]
    for model, optimizer in zip(models, optimizers):
        train(model, optimizer, range(10), 0.003 * RANK)
    for model, optimizer in zip(models, optimizers):
        optimizer.finish()
        print(f"beside{len(next(iter(model.parameters())))} {digest(model)}", flush=True)


def unlike(group):
    """Models whose parameters together have as many elements, and others, are refused on all ranks, and the group stays usable."""
    shapes = [(4, 10) if RANK == 1 else (10, 4), (3,)]
    for lengths, staleness in ((shapes, 0), ([(10, 4)], RANK)):
        parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in lengths]
        try:
            ThresholdSGD(parameters, lr=0.1, staleness=staleness, group=group)
            raise AssertionError("other shapes were taken")
        except herringbone.MismatchError as error:
            wrong = "rank 1 has" if lengths is shapes else "ranks 1, 2 have"
            assert f"{wrong} parameters of other shapes" in str(error), error
            assert "make the same model" in str(error), error


def diverged(group):
    """The error for a gradient that is not finite says what to do; all ranks have it, so they can leave."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = ThresholdSGD([parameter], lr=0.1, group=group)
    assert optimizer.param_groups[0]["momentum"] == 0
    parameter.grad = torch.tensor([1, float("inf"), 1])
    try:
        optimizer.step()
        raise AssertionError("the step was taken")
    except herringbone.ArgumentError as error:
        assert "parameter 0" in str(error) and "smaller lr, less momentum or a larger share" in str(error), error


def left(group):
    """A rank that fails leaves, and those that need a step of it get an error; close() does without finish()."""
    for staleness in (0, 2):
        model = network(RANK)
        with ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=staleness, group=group) as optimizer:
            train(model, optimizer, range(3 + (RANK if staleness else 0)))
        print(f"left{staleness} {digest(model)}", flush=True)
        try:
            optimizer.step()
            raise AssertionError("it is closed")
        except herringbone.ClosedError:
            pass
        try:
            with ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=staleness, group=group) as optimizer:
                train(model, optimizer, range(2))
                if RANK == 1:
                    raise ZeroDivisionError
                train(model, optimizer, range(2, 20))
            raise AssertionError("rank 1 is not there")
        except (ZeroDivisionError, herringbone.PeerLostError) as error:
            assert RANK == 1 or "ThresholdSGD without finish()" in str(error), error
        optimizer = ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=staleness, group=group)
        train(model, optimizer, range(3))
        optimizer.close()
    # Nobody finishes these.
    return [ThresholdSGD(network(RANK).parameters(), lr=0.02, staleness=staleness, group=group) for staleness in (0, 2)]


class NoBatch(Exception):
    """What the data loader of a rank raises."""


def early():
    """A rank that leaves before its first step, or makes none, is not waited for."""
    with herringbone.init() as group:
        for staleness in (0, 2):
            for case in ("no data", "NaN", "closed", "after finish()"):
                model = network(RANK)
                try:
                    with ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=staleness, group=group) as optimizer:
                        if case == "after finish()":
                            train(model, optimizer, range(2))
                            optimizer.finish()
                        if RANK == 1:
                            leave(case, model, optimizer)
                        else:
                            train(model, optimizer, range(2, 2 + 2 * staleness + 1))
                    assert (RANK, case) == (1, "closed"), case
                except (NoBatch, herringbone.ArgumentError):
                    assert RANK == 1
                except herringbone.PeerLostError as error:
                    assert RANK != 1 and "rank 1 has left the training of a ThresholdSGD without finish()" in str(error), error
            model = network(RANK)
            with ThresholdSGD(model.parameters(), lr=0.02, share=0.1, staleness=staleness, group=group) as optimizer:
                for _ in range(2):
                    train(model, optimizer, range(0 if RANK == 1 else 5))
                    optimizer.finish()
            print(f"none{staleness} {digest(model)}", flush=True)
            with pytest.raises(herringbone.ClosedError, match=r"finish: it is closed; call rejoin\(\)"):
                optimizer.finish()


def leave(case, model, optimizer):
    if case == "closed":
        optimizer.close()
    elif case == "NaN":
        backward(model, 0)
        next(model.parameters()).grad[:] = float("nan")
        optimizer.step()
    else:
        raise NoBatch


def other_states(group):
    """A state of something else is refused, and changes nothing."""

    def of(*lengths):
        return [torch.nn.Parameter(torch.ones(length)) for length in lengths]

    parameters = of(1, 5)
    optimizer = ThresholdSGD(parameters, lr=0.1, momentum=0.5, share=0.2, group=group)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    half = {**state, "state": {**state["state"], 1: {"velocity": torch.zeros(5)}}}
    settings = [{**state["param_groups"][0], "share": 7}]
    bare = [{key: value for key, value in state["param_groups"][0].items() if key != "share"}]
    cases = [
        (state, (4, 5), "velocity of parameter 0 has 1 elements, and the model's has 4"),
        (state, (1, 6), "velocity of parameter 1 has 5 elements, and the model's has 6"),
        (state, (1, 5, 2), r"groups of \[2\] parameters, and this optimizer \[3\]"),
        (half, (1, 5), "has no left of parameter 1"),
        ({**state, "steps": None}, (1, 5), "'steps' is None, not a whole number"),
        ({**state, "steps": -1}, (1, 5), "'steps' is -1, not a whole number"),
        ({**state, "param_groups": settings}, (1, 5), "share is 7"),
        ({**state, "param_groups": bare}, (1, 5), "group 0 of the state lacks 'share'"),
        (torch.optim.SGD(parameters, lr=1).state_dict(), (1, 5), "group 0 of the state lacks 'share', 'threshold'"),
        ({**state, "param_groups": 3}, (1, 5), "'param_groups' is a int, not a list"),
        ({**state, "state": None}, (1, 5), "'state' is a NoneType"),
        ({}, (1, 5), "the state lacks 'state'"),
        (None, (1, 5), "the state is a NoneType; pass the result of state_dict"),
    ]
    for bad, lengths, words in cases:
        other = ThresholdSGD(of(*lengths), lr=0.2, group=group)
        before = repr(other.state_dict())
        with pytest.raises((TypeError, herringbone.ArgumentError), match=words):
            other.load_state_dict(bad)
        assert repr(other.state_dict()) == before, words
    with pytest.raises(herringbone.ArgumentError, match="add_param_group: all parameters have to be given at the beginning"):
        optimizer.add_param_group({"params": of(3)})
    assert len(optimizer.param_groups) == 1
    other = ThresholdSGD(of(1, 5), lr=0.2, group=group)
    other.load_state_dict(state)
    assert repr(other.state_dict()) == repr(state)


def mistakes():
    """Arguments that make no sense are named."""
    parameters = [torch.nn.Parameter(torch.zeros(3))]
    cases = [
        (
            herringbone.ArgumentError,
            "share is 0; pass a fraction of the elements",
            lambda: ThresholdSGD(parameters, 0.1, share=0),
        ),
        (herringbone.ArgumentError, "momentum is 1", lambda: ThresholdSGD(parameters, 0.1, momentum=1)),
        (herringbone.ArgumentError, "threshold is -1", lambda: ThresholdSGD(parameters, 0.1, threshold=-1)),
        (herringbone.ArgumentError, "masking is 'yes'", lambda: ThresholdSGD(parameters, 0.1, masking="yes")),
        (herringbone.ArgumentError, "staleness is -1", lambda: ThresholdSGD(parameters, 0.1, staleness=-1)),
        (
            herringbone.ArgumentError,
            "0 is torch.float64",
            lambda: ThresholdSGD([torch.nn.Parameter(torch.zeros(3).double())], 0.1),
        ),
        (herringbone.ArgumentError, "there is no group", lambda: ThresholdSGD(parameters, 0.1)),
        (TypeError, "group is a str|there is no group", lambda: ThresholdSGD(parameters, 0.1, group="world")),
    ]
    for kind, words, call in cases:
        with pytest.raises((kind, herringbone.ArgumentError), match=words):
            call()


def ours():
    with herringbone.init() as group:
        lockstep(group)
        apart(group)
        unlike(group)
        beside(group)
        diverged(group)
        other_states(group.subgroup([RANK]))
        mistakes()
        for optimizer in left(group):
            for _ in range(3):
                optimizer.step()


def torchs():
    import torch.distributed as dist

    dist.init_process_group("herringbone")
    lockstep(None)
    apart(dist.group.WORLD)
    unlike(None)
    beside(None)
    left(None)
    dist.destroy_process_group()


def killed():
    """A peer dies. The others shrink the group, and go on."""
    group = herringbone.init()
    model = network(RANK)
    optimizer = ThresholdSGD(model.parameters(), lr=0.02, momentum=0.9, share=0.1, staleness=2, masking=True, group=group)
    step, losses = 0, []
    while step < 60:
        if RANK == 1 and step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            losses += train(model, optimizer, [step])
            step += 1
        except herringbone.PeerLostError:
            group = group.shrink()
            optimizer.rejoin(group)
    optimizer.finish()
    assert group.size == WORKERS - 1
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5]), losses
    print(f"killed {digest(model)}", flush=True)
    group.close()


def wide():
    """The network of examples/horovod_digits.py with four times as many channels: 76,000 parameters."""
    nn = torch.nn
    convolutions = nn.Conv2d(1, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3), nn.ReLU(), nn.MaxPool2d(5)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128, 10))


def digits():
    """What ThresholdSGD costs and gives on the digits of examples/horovod_digits.py, beside a sum of all gradients."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
    import horovod_digits

    images, answers = horovod_digits.drawn(4000, seed=2)
    others, right = horovod_digits.drawn(2000, seed=5)
    with herringbone.init() as group:
        sent = {}
        for kind in ("dense", "lockstep", "apart"):
            torch.manual_seed(1)
            model = wide()
            if kind == "dense":
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            else:
                staleness = 0 if kind == "lockstep" else 4
                optimizer = ThresholdSGD(model.parameters(), lr=0.05, momentum=0.9, share=0.005, staleness=staleness, group=group)
            before = group.stats()["workers_tcp"]["sent"]
            drawing = torch.Generator().manual_seed(3)
            steps = 0
            for _ in range(12):
                order = torch.randperm(len(images), generator=drawing)[RANK::WORKERS]
                for some in order.split(25):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(images[some]), answers[some]).backward()
                    if kind == "dense":
                        for parameter in model.parameters():
                            group.all_reduce(parameter.grad.numpy(), "average")
                    optimizer.step()
                    steps += 1
            if isinstance(optimizer, ThresholdSGD):
                optimizer.finish()
            accuracy = (model(others).argmax(1) == right).float().mean().item()
            sent[kind] = group.stats()["workers_tcp"]["sent"] - before
            print(f"{kind} accuracy {accuracy:.4f} bytes {sent[kind] / sent['dense']:.5f}", flush=True)


{"ours": ours, "torchs": torchs, "early": early, "killed": killed, "digits": digits}[sys.argv[1]]()
