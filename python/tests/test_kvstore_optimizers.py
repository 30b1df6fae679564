"""The optimizers of stores: their arithmetic, their numbers and their states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from herringbone import ArgumentError, kvstore
from herringbone.plain import pack

np = pytest.importorskip("numpy")

SHAPE = (4, 4)


def full(value: float) -> Any:
    return np.full(SHAPE, value, np.float32)


def test_optimizers_by_name_and_their_states(tmp_path: Path) -> None:
    kv, out = kvstore.create(), full(9)
    kv.init(3, full(0))
    kv.set_optimizer(kvstore.create_optimizer("test", rescale_grad=2))
    kv.push(3, full(1))
    kv.pull(3, out)
    assert (out == 2).all()
    kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.5, momentum=0.5))
    kv.push(3, full(1))
    kv.save_optimizer_states(tmp_path / "states", dump_optimizer=True)
    kv.push(3, full(1))
    kv.pull(3, out)
    assert np.allclose(out, 2 - 0.5 - 0.75)
    kv.set_optimizer("sgd")
    kv.load_optimizer_states(tmp_path / "states")
    kv.push(3, full(1))
    kv.pull(3, out)
    assert np.allclose(out, 2 - 0.5 - 0.75 - 0.75)
    with pytest.raises(ArgumentError, match="no optimizer is called 'sdg'"):
        kvstore.create_optimizer("sdg")
    with pytest.raises(ArgumentError, match="sgd takes no beta1"):
        kvstore.create_optimizer("sgd", beta1=1)


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "adamw", "adagrad", "rmsprop", "lamb", "ftrl", "signum"])
def test_every_optimizer_finds_a_minimum(name: str) -> None:
    optimizer, weight = kvstore.create_optimizer(name, learning_rate=0.05), np.full(3, 2.0)
    for _ in range(400):
        optimizer.update("w", weight.copy(), weight)
    assert np.abs(weight).max() < 0.7, weight


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "name, torchs, numbers",
    [
        ("sgd", "SGD", {"momentum": 0.9}),
        ("adam", "Adam", {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-14}),
        ("adagrad", "Adagrad", {"epsilon": 1e-10}),
        ("rmsprop", "RMSprop", {"rho": 0.9, "epsilon": 1e-8}),
    ],
)
def test_optimizers_go_where_torchs_go(name: str, torchs: str, numbers: dict[str, float], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    weight = random.standard_normal((70, 100)).astype(dtype)
    tensor = torch.from_numpy(weight.astype(np.float64)).requires_grad_()
    said = {"momentum": "momentum", "epsilon": "eps", "rho": "alpha"}
    given = {said[one]: number for one, number in numbers.items() if one in said}
    if "beta1" in numbers:
        given["betas"] = (numbers["beta1"], numbers["beta2"])
    other = getattr(torch.optim, torchs)([tensor], lr=0.01, weight_decay=0.02, **given)
    optimizer = kvstore.create_optimizer(name, learning_rate=0.01, wd=0.02, **numbers)
    for step in range(6):
        if step == 3 and name != "sgd":  # MXNet's velocity has the rate of its time in it, and torch's has none
            optimizer.params["learning_rate"] = other.param_groups[0]["lr"] = 0.003
        gradient = random.standard_normal(weight.shape).astype(dtype)
        optimizer.update("w", gradient, weight.T.T if step else weight)
        tensor.grad = torch.from_numpy(gradient.astype(np.float64))
        other.step()
    atol = {"float16": 1e-2, "float32": 1e-6, "float64": 1e-9}[dtype]
    assert np.allclose(weight.astype(np.float64), tensor.detach().numpy(), rtol=0, atol=atol)


def test_what_is_told_of_an_optimizer_is_what_it_does(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="adam cannot have a beta1 of 1.5"):
        kvstore.create_optimizer("adam", beta1=1.5)
    weight = np.zeros((4, 6), np.float32)[:, ::2]
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1, clip_gradient=-1)
    optimizer.update("w", 2, weight)  # MXNet: nothing is cut
    assert (weight == -2).all() and optimizer.states["w"] == {"step": 1}
    optimizer.params |= {"clip_gradient": 0.5, "rescale_grad": 0.5}
    optimizer.update("w", np.full((4, 3), -9.0), weight)
    assert (weight == -1.5).all()
    adam = kvstore.create_optimizer("adam")
    adam.update(1, weight, weight)
    state = adam.states[1]
    assert state["step"] == 1 and [state[name].shape for name in ("mean", "variance")] == [(4, 3)] * 2
    again = kvstore.create_optimizer("adam")
    again.states = adam.states
    one, two = weight.copy(), weight.copy()
    adam.update(1, one, one)
    again.update(1, two, two)
    assert np.array_equal(one, two) and np.array_equal(adam.states[1]["variance"], again.states[1]["variance"])
    with pytest.raises(ArgumentError, match="was of shape"):
        adam.update(1, np.zeros(2), np.zeros(2))


def test_states_of_an_earlier_release_are_read(tmp_path: Path) -> None:
    """Its float16 kept states of float16."""
    state = {"step": 3, "mean": np.full((4, 4), 0.5, np.float16), "variance": np.full((4, 4), 0.25, np.float16)}
    held = {"states": {3: state}, "name": "adam", "params": None}
    (tmp_path / "states").write_bytes(pack("save_optimizer_states", held).tobytes())
    kv = kvstore.create("local")
    kv.init(3, np.ones(SHAPE, np.float16))
    kv.set_optimizer("adam")
    kv.load_optimizer_states(tmp_path / "states")
    kv.push(3, np.zeros(SHAPE, np.float16))
    kv.save_optimizer_states(tmp_path / "again")
    kv.load_optimizer_states(tmp_path / "again")
    states = kv._optimizer.states[3]
    assert states["step"] == 4 and states["mean"].dtype == np.float32 and np.allclose(states["mean"], 0.45)
