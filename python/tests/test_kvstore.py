"""The store: MXNet's scenarios in this process, and those of several workers in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import START_SECONDS, Group, clean_environment, free_port

from herringbone import ArgumentError, UnsupportedError, _herringbone, kvstore
from herringbone.kvstore.values import by_trees
from herringbone.plain import pack
from lab.job import python

np = pytest.importorskip("numpy")

SHAPE = (4, 4)
KEYS = [5, 7, 11]
TEXTS = ["b", "c", "d"]
TYPES = ["local", "device"]


def full(value: float) -> Any:
    return np.full(SHAPE, value, np.float32)


def with_keys(kind: str = "local", texts: bool = False) -> kvstore.KVStore:
    kv = kvstore.create(kind)
    kv.init("a" if texts else 3, full(0))
    kv.init(TEXTS if texts else KEYS, [full(0)] * 3)
    return kv


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("texts", [False, True])
def test_one_key_and_lists_are_pushed_and_pulled(kind: str, texts: bool) -> None:
    kv, out = with_keys(kind, texts), full(9)
    kv.push("a" if texts else 3, full(1))
    kv.pull("a" if texts else 3, out=out)
    assert (out == 1).all()
    keys, outs = TEXTS if texts else KEYS, [full(9) for _ in range(3)]
    kv.push(keys, [full(4)] * 3)
    kv.pull(keys, out=outs)
    assert all((each == 4).all() for each in outs)


@pytest.mark.parametrize("kind", TYPES)
def test_values_of_several_devices_are_summed_and_replace(kind: str) -> None:
    kv, outs = with_keys(kind), [full(9) for _ in range(4)]
    for _ in range(2):
        kv.push(3, [full(1)] * 4)
        kv.pull(3, out=outs)
        assert all((each == 4).all() for each in outs)
    kv.push(KEYS, [[full(2)] * 4] * 3)
    lists = [[full(9) for _ in range(4)] for _ in range(3)]
    kv.pull(KEYS, out=lists)
    assert all((each == 8).all() for outs in lists for each in outs)
    kv.push([5, 5], [full(1), full(2)])
    kv.pull(5, outs[0])
    assert (outs[0] == 3).all()


def test_an_updater_gets_the_sum() -> None:
    kv, out, seen = with_keys(), full(9), []

    def updater(key: int, received: Any, stored: Any) -> None:
        seen.append(key)
        stored += received

    kv.set_updater(updater)
    for count in range(1, 4):
        kv.push(3, [full(1)] * 4)
        kv.pull(3, out)
        assert (out == 4 * count).all()
    assert seen == [3, 3, 3]
    kv.set_updater(None)
    kv.push(3, full(1))
    kv.pull(3, out)
    assert (out == 1).all()


def test_an_updater_that_raises_is_told_at_the_pull_and_the_value_stays() -> None:
    kv, out = with_keys(), full(9)
    kv.push(3, full(2))

    def fails(key: int, received: Any, stored: Any) -> None:
        raise ZeroDivisionError

    kv.set_updater(fails)
    kv.push(3, full(1))
    with pytest.raises(ZeroDivisionError):
        kv.pull(3, out)
    kv.pull(3, out)
    assert (out == 2).all()
    with pytest.raises(ZeroDivisionError):
        kv.pushpull(3, full(1), out=[full(9), out])
    kv.pull(3, out)
    kv.wait_all()
    assert (out == 2).all()


def test_a_pushed_array_may_be_used_again_at_once() -> None:
    kv, value, out = with_keys(), full(1), full(9)
    kv.push(3, value)
    value[:] = 7
    kv.pull(3, out)
    assert (out == 1).all()


def test_pushpull_and_broadcast() -> None:
    kv, value, out = with_keys(), full(3), full(9)
    kv.pushpull(3, [value, value], out=out)
    assert (out == 6).all()
    kv.pushpull(3, value)
    assert (value == 3).all()
    outs = [full(9), full(9)]
    kv.broadcast(20, full(2), out=outs)
    assert all((each == 2).all() for each in outs)
    outs = [full(9) for _ in range(150)]
    kv.init(list(range(100, 250)), outs)
    kv.pushpull(list(range(100, 250)), outs, priority=-1, async_op=True)
    kv.wait_all()
    assert all((each == 9).all() for each in outs)


def test_wrong_calls_are_refused() -> None:
    kv = with_keys()
    with pytest.raises(ArgumentError, match="mixed key types"):
        kv.init("x", full(0))
    with pytest.raises(ArgumentError, match="mixed key types"):
        kv.push([3, "5"], [full(0), full(0)])
    with pytest.raises(ArgumentError, match="mixed key types"):
        kv.pull("9", out=full(0))
    with pytest.raises(ArgumentError, match="has a value already"):
        kv.init(3, full(0))
    with pytest.raises(ArgumentError, match="call init first"):
        kv.pull(4, out=full(0))
    with pytest.raises(ArgumentError, match="3 keys and 2 values"):
        kv.push(KEYS, [full(0)] * 2)
    with pytest.raises(ArgumentError, match="for a key of float32"):
        kv.push(3, np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="init: a key is 'a.ud800', which has half of a surrogate pair"):
        kvstore.create().init("a\ud800", np.ones(2))
    with pytest.raises(TypeError, match="a key is a float"):
        kv.push(3.0, full(0))
    for name, words in [("nccl", "use 'device'"), ("p3", "dist_sync")]:
        with pytest.raises(UnsupportedError, match=words):
            kvstore.create(name)
    with pytest.raises(ArgumentError, match="no store is of type"):
        kvstore.create("lokal")


def test_optimizers_by_name_and_their_states(tmp_path: Path) -> None:
    kv, out = with_keys(), full(9)
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


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "adagrad", "rmsprop"])
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


def test_rows_are_pulled_alone() -> None:
    kv = kvstore.create("local")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    kv.init("e", kvstore.RowSparse.of(rows))
    out = kvstore.RowSparse.zeros((4, 3))
    kv.row_sparse_pull("e", out=out, row_ids=np.array([3, 1, 3]))
    assert out.indices.tolist() == [1, 3] and np.array_equal(out.toarray()[[1, 3]], rows[[1, 3]])
    assert (out.toarray()[[0, 2]] == 0).all()
    kv.row_sparse_pull("e", out=out, row_ids=np.array([], np.int64))
    assert (out.toarray() == 0).all()
    kv.push("e", [kvstore.RowSparse(np.ones((1, 3), np.float32), [2], (4, 3))] * 2)
    outs = [kvstore.RowSparse.zeros((4, 3)) for _ in range(2)]
    kv.row_sparse_pull("e", out=outs, row_ids=[[2], [0, 1, 2, 3]])
    assert (outs[0].data == 2).all() and outs[1].toarray().sum() == 6
    with pytest.raises(ArgumentError, match="rows go from 0 to 3"):
        kv.row_sparse_pull("e", out=out, row_ids=[4])
    with pytest.raises(ArgumentError, match="use pull for dense arrays"):
        kv.row_sparse_pull("e", out=np.zeros((4, 3)), row_ids=[1])
    with pytest.raises(ArgumentError, match="use row_sparse_pull"):
        kv.pull("e", out=out, ignore_sparse=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kv.pull("e", out=out)
    assert "are left alone" in str(said[0].message)
    with pytest.raises(ArgumentError, match="use push and row_sparse_pull"):
        kv.pushpull("e", out)


def test_compression_checks_its_arguments() -> None:
    with pytest.raises(ArgumentError, match="compresses nothing"):
        kvstore.create("local").set_gradient_compression({"type": "2bit"})
    kv = kvstore.create("device")
    thresholds = [("2bit", 0), ("1bit", -1), ("2bit", 1e-50), ("2bit", 1e39), ("1bit", -1e39)]
    wrong = [{"type": kind, "threshold": threshold} for kind, threshold in thresholds]
    for params in ({}, {"type": "4bit"}, {"type": ["2bit"]}, {"type": "2bit", "bits": 2}, *wrong):
        with pytest.raises(ArgumentError, match="set_gradient_compression"):
            kv.set_gradient_compression(params)
    kv.init("wide", np.zeros(3))
    kv.set_gradient_compression({"type": "2bit"})
    with pytest.raises(UnsupportedError, match="has values of float64"):
        kv.push("wide", np.ones(3))


def test_devices_keep_what_their_codes_lose(caplog: pytest.LogCaptureFixture) -> None:
    """MXNet's rules: at or beyond the threshold it is sent, and what is left goes with the next."""
    kv = kvstore.create("device")
    kv.init(1, np.zeros(4, np.float32))
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    one, other = (np.array(values, np.float32) for values in ([0.3, 0.5, -0.75, 2.0], [0.0, -0.25, -0.25, 0.4]))
    sums = []
    for _ in range(3):
        kv.push(1, [one, other])
        out = np.ones(4, np.float32)
        kv.pull(1, out)
        sums.append(out.tolist())
    # First device: 0.3, 0.6, 0.4; 0.5, 0.5, 0.5; -0.75, -1, -1.25; 2, 3.5, 5. Second: -0.25, -0.5, -0.25; 0.4, 0.8, 0.7.
    assert sums == [[0.0, 0.5, -0.5, 0.5], [0.5, 0.0, -1.0, 1.0], [0.0, 0.5, -0.5, 1.0]], sums
    # A single device's is sent as it is, as in MXNet.
    kv.push(1, one)
    kv.pull(1, out)
    assert (out == one).all()
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    assert not caplog.records
    kv.set_gradient_compression({"type": "1bit", "threshold": 0.0})
    assert "what twobit:0.5 has left of 1 keys is dropped" in caplog.text
    kv.push(1, [one, other])
    kv.pull(1, out)
    assert out.tolist() == [0.0, 0.0, -2.0, 2.0]
    state = kv.compression_state_dict()
    kv.push(1, [one, other])
    kv.pull(1, out)
    then = out.tolist()
    kv.load_compression_state_dict(state)
    kv.push(1, [one, other])
    kv.pull(1, out)
    assert out.tolist() == then and state["devices"]["1"].keys() == {0, 1}


def test_devices_are_added_along_the_trees_of_their_links() -> None:
    topology = Path(__file__).parents[2] / "examples" / "dgx1.txt"
    kv = kvstore.create("device", topology=topology)
    chosen = np.random.default_rng(3)
    values = [(chosen.standard_normal(64) * 10.0 ** chosen.integers(-6, 7, 64)).astype(np.float32) for _ in range(8)]
    trees = _herringbone.device_trees(topology.read_text())
    assert len(trees) == 8 and all(sorted([tree[0][0], *(child for _, child in tree)]) == list(range(8)) for tree in trees)
    kv.init(0, values[0])
    out = np.zeros(64, np.float32)
    kv.pushpull(0, values, out=out)

    def at(node: int, tree: list[tuple[int, int]]) -> Any:
        total = values[node].copy()
        for child in reversed([child for parent, child in tree if parent == node]):
            total += at(child, tree)
        return total

    assert np.array_equal(out, at(trees[0][0][0], trees[0])) and not np.array_equal(out, sum(values[1:], values[0]))
    sliced = by_trees([value.reshape(32, 2) for value in values], trees, bound=10)
    for part in range(8):
        rows = slice(4 * part, 4 * part + 4)
        assert np.array_equal(sliced[rows], at(trees[part][0][0], trees[part]).reshape(32, 2)[rows])
    kv.pushpull(0, values[:3], out=out)
    assert np.array_equal(out, values[0] + values[1] + values[2])
    with pytest.raises(ArgumentError, match="the topology"):
        kvstore.create("device", topology=__file__)


def test_big_arrays_are_placed_on_all_servers() -> None:
    assert kvstore.placement(3, 999_999, 4) == [(3 * 9973 % 4, 0, 999_999)]
    assert kvstore.placement(3, 1_000_001, 2) == [(0, 0, 500_001), (1, 500_001, 1_000_001)]
    parts = kvstore.placement(8, 10_000_003, 7)
    assert [part[0] for part in parts] == list(range(7)) and parts[-1][2] == 10_000_003
    assert all(before[2] == after[1] for before, after in zip(parts, parts[1:]))


def test_torch_tensors_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    kv, tensor, out = kvstore.create("local"), torch.ones(3), torch.zeros(3)
    kv.init(1, tensor)
    kv.set_updater(lambda key, received, stored: stored.add_(received, alpha=2))
    kv.push(1, [tensor, tensor])
    kv.pull(1, out)
    assert out.tolist() == [5, 5, 5]
    with pytest.raises(UnsupportedError, match="bfloat16"):
        kv.push(1, torch.ones(3, dtype=torch.bfloat16))
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.quint8)
    for call in (lambda value: kv.push(1, value), lambda value: kv.pull(1, value), lambda value: kv.init(2, value)):
        with pytest.raises(UnsupportedError, match="quantized"):
            call(quantized)
        with pytest.raises(UnsupportedError, match="nested"):
            call(torch.nested.nested_tensor([tensor, tensor]))
        with pytest.raises(TypeError, match="masked"):
            call(np.ma.array([1.0, 2.0, 3.0], np.float32, mask=[True, False, False]))


@pytest.mark.parametrize("size", [1, 3])
def test_workers_share_a_store(group: Group, size: int) -> None:
    group.start_ranks("kvstore_workers.py", size, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    for rank, (status, output) in enumerate(group.finish(START_SECONDS)):
        assert status == 0, output
        said = json.loads(output.strip().splitlines()[-1])
        assert said == {"rank": rank, "workers": size, "local": [rank, size], "dead": 0}


def test_the_example_trains() -> None:
    pytest.importorskip("torch")
    example = Path(__file__).parents[2] / "examples" / "kvstore_digits.py"
    command = [sys.executable, "-m", "herringbone", "launch", "-n", "2", "--", python(), str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(losses) == 3 and losses[2] < losses[0] / 2


@pytest.mark.parametrize("value", [np.zeros(2, bool), np.zeros(2, complex), np.zeros(2, ">f4"), np.zeros(2, object)])
def test_what_cannot_be_summed_is_refused_at_once_and_spoils_nothing(value: Any) -> None:
    kv = with_keys()
    with pytest.raises((TypeError, UnsupportedError)):
        kv.init(99, value)
    with pytest.raises((TypeError, UnsupportedError)):
        kv.push(3, value)
    kv.init(99, np.ones(2))
    out = np.zeros(2)
    kv.pull(99, out)
    assert out.tolist() == [1, 1]
