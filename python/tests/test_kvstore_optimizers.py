"""The optimizers of stores: their arithmetic, their numbers and their states."""

from __future__ import annotations

import threading
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
    with pytest.raises(ArgumentError, match="had shape"):
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


class Oracle:
    """MXNet's formulas in float64, from ``python/mxnet/optimizer`` and ``src/operator/optimizer_op-inl.h``, for one key."""

    def __init__(self, name: str, numbers: dict[str, Any]) -> None:
        self.name, self.given, self.one, self.two, self.steps = name, numbers, 0.0, 0.0, 0

    def limited(self, gradient: Any) -> Any:
        clip = self.given.get("clip_gradient")
        gradient = gradient * self.given.get("rescale_grad", 1)
        return gradient if clip is None else np.clip(gradient, -clip, clip)

    def step(self, weight: Any, gradient: Any) -> Any:
        self.steps += 1
        return getattr(self, self.name)(weight, self.limited(gradient), self.given["learning_rate"], self.given["wd"])

    def means(self, gradient: Any) -> tuple[Any, Any]:
        beta1, beta2 = self.given.get("beta1", 0.9), self.given.get("beta2", 0.999)
        self.one = beta1 * self.one + (1 - beta1) * gradient
        self.two = beta2 * self.two + (1 - beta2) * gradient**2
        return 1 - beta1**self.steps, 1 - beta2**self.steps

    def adamw(self, weight: Any, gradient: Any, rate: float, wd: float) -> Any:
        of_mean, of_square = self.means(gradient)
        if self.given.get("correct_bias", True):
            rate *= np.sqrt(of_square) / of_mean
        return weight - rate * (self.one / (np.sqrt(self.two) + self.given.get("epsilon", 1e-6)) + wd * weight)

    def lamb(self, weight: Any, gradient: Any, rate: float, wd: float) -> Any:
        of_mean, of_square = self.means(gradient)
        if not self.given.get("bias_correction", True):
            of_mean = of_square = 1
        direction = self.one / of_mean / (np.sqrt(self.two / of_square) + self.given.get("epsilon", 1e-6)) + wd * weight
        norm = np.linalg.norm(weight)
        if self.given.get("lower_bound") is not None:
            norm = max(norm, self.given["lower_bound"])
        if self.given.get("upper_bound") is not None:
            norm = min(norm, self.given["upper_bound"])
        other = np.linalg.norm(direction)
        return weight - rate * (norm / other if norm and other else 1) * direction

    def ftrl(self, weight: Any, gradient: Any, rate: float, wd: float) -> Any:
        after = self.two + gradient**2
        self.one = self.one + gradient - (np.sqrt(after) - np.sqrt(self.two)) / rate * weight
        self.two = after
        shrunk = np.sign(self.one) * np.maximum(np.abs(self.one) - self.given.get("lamda1", 0.01), 0)
        return -shrunk / ((self.given.get("beta", 1.0) + np.sqrt(after)) / rate + wd)

    def signum(self, weight: Any, gradient: Any, rate: float, wd: float) -> Any:
        momentum, apart = self.given.get("momentum", 0.9), self.given.get("wd_lh", 0.0)
        if momentum == 0:
            return (1 - rate * (wd + apart)) * weight - rate * np.sign(gradient)
        self.one = momentum * self.one - (1 - momentum) * (gradient + wd * weight)
        return (1 - rate * apart) * weight + rate * np.sign(self.one)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize(
    "name, numbers",
    [
        ("adamw", {}),
        ("adamw", {"correct_bias": False, "epsilon": 1e-4}),
        ("lamb", {}),
        ("lamb", {"bias_correction": False, "upper_bound": 3.0}),
        ("lamb", {"lower_bound": 20.0, "beta1": 0.5}),
        ("ftrl", {}),
        ("ftrl", {"lamda1": 0.5, "beta": 0.25}),
        ("signum", {}),
        ("signum", {"wd_lh": 0.1, "momentum": 0.5}),
        ("signum", {"momentum": 0, "wd_lh": 0.1}),
    ],
)
def test_mxnets_formulas_are_followed(name: str, numbers: dict[str, Any], dtype: str, tolerance: float) -> None:
    random = np.random.default_rng(11)
    weight = random.standard_normal((50, 101)).astype(dtype)
    numbers = {"learning_rate": 0.05, "wd": 0.02, "rescale_grad": 0.5, "clip_gradient": 0.6, **numbers}
    optimizer, oracle, expected = kvstore.create_optimizer(name, **numbers), Oracle(name, numbers), weight.astype(np.float64)
    for _ in range(6):
        gradient = random.standard_normal(weight.shape).astype(dtype)
        optimizer.update("w", gradient, weight)
        expected = oracle.step(expected, gradient.astype(np.float64))
        assert np.allclose(weight, expected, rtol=tolerance, atol=tolerance), (name, np.abs(weight - expected).max())
    again = kvstore.create_optimizer(name, **numbers)
    again.states, other = optimizer.states, weight.copy()
    optimizer.update("w", gradient, weight)
    again.update("w", gradient, other)
    assert np.array_equal(weight, other)


def test_the_defaults_are_mxnets() -> None:
    defaults = {
        "adamw": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "correct_bias": True},
        "lamb": {
            "learning_rate": 0.001,
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-6,
            "lower_bound": None,
            "upper_bound": None,
            "bias_correction": True,
        },
        "ftrl": {"learning_rate": 0.1, "lamda1": 0.01, "beta": 1.0},
        "signum": {"learning_rate": 0.01, "momentum": 0.9, "wd_lh": 0.0},
    }
    for name, numbers in defaults.items():
        common = {"wd": 0.0, "rescale_grad": 1.0, "clip_gradient": None}
        assert kvstore.create_optimizer(name).params == {**numbers, **common}, name
    with pytest.raises(ArgumentError, match="ftrl cannot have a learning_rate of 0"):
        kvstore.create_optimizer("ftrl", learning_rate=0)
    with pytest.raises(ArgumentError, match="create_optimizer: adamw cannot have a correct_bias of 0.5"):
        kvstore.create_optimizer("adamw", correct_bias=0.5)


def test_numbers_change_while_a_store_is_in_use_and_the_momentum_stays() -> None:
    kv, out = kvstore.create(), full(9)
    kv.init([3, 4], [full(0), full(0)])
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1, momentum=0.5, wd=0)
    kv.set_optimizer(optimizer)
    kv.push(3, full(1))  # v = -1
    optimizer.set_learning_rate(0.1)
    kv.push(3, full(1))  # v = -0.5 - 0.1
    optimizer.set_lr_mult({4: 0.5, "bias": 9})
    optimizer.params["learning_rate"] = 1
    kv.push([3, 4], [full(1)] * 2)  # v = -0.3 - 1; v = -0.5
    kv.pull(3, out)
    assert np.allclose(out, -1 - 0.6 - 1.3) and optimizer.learning_rate == 1
    kv.pull(4, out)
    assert np.allclose(out, -0.5)
    optimizer.set_lr_mult({})
    optimizer.set_wd_mult({4: 0})
    optimizer.params |= {"wd": 1, "momentum": 0.0}
    kv.push([3, 4], [full(0)] * 2)
    kv.pull(3, out)
    assert np.allclose(out, 0)
    kv.pull(4, out)
    assert np.allclose(out, -0.5)
    optimizer.params["momentum"] = float("nan")
    with pytest.raises(ArgumentError, match="push: sgd cannot have a momentum of NaN"):
        kv.push(3, full(1))
    with pytest.raises(TypeError, match="set_lr_mult: pass a dict"):
        optimizer.set_lr_mult(3)  # type: ignore[arg-type]


def test_what_was_pushed_meets_the_numbers_of_its_time() -> None:
    kv, out = kvstore.create(), np.zeros(1)
    kv.init("w", np.zeros(1))
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1)
    kv.set_optimizer(optimizer)
    begin, values = threading.Event(), [np.ones(1)] * 20
    kv.engine.push(begin.wait, (), [kv._stored["w"].variable])
    for at, value in enumerate(values):
        optimizer.set_learning_rate(2.0**-at)
        kv.push("w", value)
    begin.set()
    kv.pull("w", out)
    assert out[0] == -sum(2.0**-at for at in range(20))


def test_schedulers_give_the_rate_of_the_key_with_most_updates() -> None:
    kv, out = kvstore.create(), full(9)
    kv.init([3, 4], [full(0), full(0)])
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1, lr_scheduler=kvstore.FactorScheduler(step=2, factor=0.5))
    kv.set_optimizer(optimizer)
    for _ in range(5):
        kv.push(3, full(1))
    kv.push(4, full(1))
    kv.pull(3, out)
    assert np.allclose(out, -(1 + 1 + 0.5 + 0.5 + 0.25)) and optimizer.num_update == 5 and optimizer.learning_rate == 0.25
    kv.pull(4, out)
    assert np.allclose(out, -0.25)
    with pytest.raises(ArgumentError, match="has an lr_scheduler"):
        optimizer.set_learning_rate(1)
    kv.set_optimizer(kvstore.create_optimizer("sgd", lr_scheduler=lambda count: count, begin_num_update=7))
    kv.push(4, full(1))
    kv.pull(4, out)
    assert np.allclose(out, -0.25 - 8)
    with pytest.raises(TypeError, match="lr_scheduler is a float"):
        kvstore.create_optimizer("sgd", lr_scheduler=0.5)  # type: ignore[arg-type]


def test_rates_are_those_of_mxnets_schedulers() -> None:
    factor = kvstore.FactorScheduler(3, 0.1, stop_factor_lr=0.005, base_lr=1.0)
    assert np.allclose([factor(count) for count in (1, 3, 4, 6, 7, 10, 99)], [1, 1, 0.1, 0.1, 0.01, 0.005, 0.005])
    several = kvstore.MultiFactorScheduler([2, 5], 0.5, base_lr=1.0, warmup_steps=2, warmup_begin_lr=0.5)
    assert np.allclose([several(count) for count in (0, 1, 2, 3, 5, 6)], [0.5, 0.75, 1, 0.5, 0.5, 0.25])
    poly = kvstore.PolyScheduler(10, base_lr=1.0, pwr=1, final_lr=0.5, warmup_steps=2, warmup_mode="constant")
    assert np.allclose([poly(count) for count in (1, 2, 6, 10, 20)], [0, 1, 0.75, 0.5, 0.5])
    cosine = kvstore.CosineScheduler(8, base_lr=2.0, final_lr=1.0)
    assert np.allclose([cosine(count) for count in (0, 4, 8, 9)], [2, 1.5, 1, 1])
    wrong: list[tuple[str, Any]] = [
        ("step is 0", lambda: kvstore.FactorScheduler(0)),
        ("factor is 2", lambda: kvstore.FactorScheduler(1, 2)),
        ("step is .5, 5.; pass numbers that ascend", lambda: kvstore.MultiFactorScheduler([5, 5])),
        ("warmup_begin_lr is 1", lambda: kvstore.PolyScheduler(5, base_lr=0.5, warmup_begin_lr=1)),
        ("warmup_steps is 5, and max_update is 5", lambda: kvstore.CosineScheduler(5, warmup_steps=5)),
        ("warmup_mode is 'slow'", lambda: kvstore.FactorScheduler(1, warmup_mode="slow")),
    ]
    for words, make in wrong:
        with pytest.raises(ArgumentError, match=words):
            make()


def test_a_wide_copy_of_narrow_weights_takes_the_steps(tmp_path: Path) -> None:
    values = {}
    for multi_precision in (False, True):
        kv, out = kvstore.create(), np.zeros(SHAPE, np.float16)
        kv.init(3, np.ones(SHAPE, np.float16))
        kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=1, momentum=0.5, multi_precision=multi_precision))
        for _ in range(8):
            kv.push(3, np.full(SHAPE, 1e-4, np.float16))
        kv.pull(3, out)
        values[multi_precision] = float(out[0, 0])
        kv.save_optimizer_states(tmp_path / "states")
        kv.load_optimizer_states(tmp_path / "states")
        states = kv._optimizer.states[3]
        assert ("weight" in states) == multi_precision
        kv.push(3, np.zeros(SHAPE, np.float16))
        kv.wait_all()
    step, velocity, wide = np.float32(np.float16(1e-4)), np.float32(0), np.float32(1)
    for at in range(9):
        velocity = np.float32(velocity * np.float32(0.5) - (step if at < 8 else 0))
        wide += velocity
        if at == 7:
            assert values == {False: 1.0, True: float(np.float16(wide))} and values[True] < 1
    assert np.array_equal(kv._optimizer.states[3]["weight"], np.full(SHAPE, wide))
