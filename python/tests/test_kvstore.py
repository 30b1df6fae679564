"""The store: MXNet's scenarios in this process, and those of several workers in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import START_SECONDS, Group, clean_environment, free_port

from herringbone import ArgumentError, UnsupportedError, _herringbone, kvstore
from herringbone.kvstore.tree_plan import trees_from
from herringbone.kvstore.values import by_trees
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
    with pytest.raises(ArgumentError, match="there is no type .*'dist_async'"):
        kvstore.create("lokal")


def test_compression_checks_its_arguments() -> None:
    with pytest.raises(ArgumentError, match="cannot compress"):
        kvstore.create("local").set_gradient_compression({"type": "2bit"})
    kv = kvstore.create("device")
    thresholds = [("2bit", 0), ("2bit", -1), ("2bit", 1e-50), ("2bit", 1e39), ("1bit", -1e39), ("1bit", float("nan"))]
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
    assert "the residuals of twobit:0.5 for 1 keys are dropped" in caplog.text
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


@pytest.mark.parametrize("threshold", [0.0, -0.5])
def test_one_bit_takes_any_threshold_as_in_mxnet(threshold: float) -> None:
    kv, out = kvstore.create("device"), np.zeros(5, np.float32)
    kv.init(1, out)
    kv.set_gradient_compression({"type": "1bit", "threshold": threshold})
    values, left, expected = [np.array([0.3, -0.3, -0.6, 0, 2], np.float32) * scale for scale in (1, 2)], [0, 0], []
    for _ in range(3):
        kv.push(1, values)
        kv.pull(1, out)
        whole = [value + rest for value, rest in zip(values, left)]
        coded = [np.where(value > np.float32(threshold), np.float32(1), np.float32(-1)) for value in whole]
        left = [value - code for value, code in zip(whole, coded)]
        expected.append(sum(coded).tolist())
        assert out.tolist() == expected[-1]
    assert len(set(map(tuple, expected))) > 1


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
    sliced = by_trees([value.reshape(32, 2) for value in values], trees_from(trees), bound=10)
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


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.full), 2])
def test_workers_change_the_numbers_of_an_optimizer_together(group: Group, size: int) -> None:
    group.start_ranks("kvstore_tuned.py", size, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    for status, output in group.finish(START_SECONDS):
        assert status == 0, output
