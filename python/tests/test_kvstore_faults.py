"""The store where things go wrong: workers that do not call alike, updaters that raise, calls that are refused, bad files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import START_SECONDS, Group, free_port

from herringbone import ArgumentError, kvstore

np = pytest.importorskip("numpy")

from herringbone.plain import pack

SHAPE = (4, 4)


def full(value: float, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.full(shape, value, np.float32)


def with_keys() -> kvstore.KVStore:
    kv = kvstore.create("local")
    kv.init([1, 2, 3], [full(1), full(2), full(3)])
    return kv


def pulled(kv: kvstore.KVStore, keys: list[int]) -> list[float]:
    outs = [full(9) for _ in keys]
    kv.pull(keys, outs)
    assert all((out == out.flat[0]).all() for out in outs), "a value is changed in part"
    return [float(out.flat[0]) for out in outs]


@pytest.mark.parametrize("size", [2, 3])
def test_workers_that_do_not_call_alike_are_told_and_go_on(group: Group, size: int) -> None:
    group.start_ranks("kvstore_mistakes.py", size, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    reported = []
    for status, output in group.finish(START_SECONDS):
        assert status == 0, output
        reported.append(json.loads(output.strip().splitlines()[-1])["told"])
    assert [len(texts) for texts in reported] == [7] * size, reported
    for text in (text for texts in reported for text in texts):
        assert "mark" in text, text
    assert any("push 'a' float32 (4, 6)" in texts[0] for texts in reported[:-1]), reported
    assert "push 'b' float32 (4, 6)" in reported[-1][0] or "barrier" in reported[-1][0], reported


@pytest.mark.parametrize("size", [1, 3])
def test_workers_keep_what_their_codes_lose(group: Group, size: int) -> None:
    group.start_ranks("kvstore_compressed.py", size, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    for status, output in group.finish(START_SECONDS):
        assert status == 0 and output.strip().endswith("equal"), output


@pytest.mark.parametrize("store", ["kept", "gone"])
def test_a_push_before_the_end_of_a_program_is_summed(group: Group, store: str) -> None:
    group.start_ranks("kvstore_ends.py", 2, store, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    assert group.finish(START_SECONDS) == [(0, "updated by 2\n")] * 2


def test_a_value_is_whole_after_an_updater_that_raises_half_way() -> None:
    kv = with_keys()

    def half(key: int, received: Any, stored: Any) -> None:
        stored[:2] = 77
        raise ZeroDivisionError

    kv.set_updater(half)
    kv.push(1, full(1))
    with pytest.raises(ZeroDivisionError):
        kv.pull(1, full(9))
    assert pulled(kv, [1]) == [1]


def test_an_optimizers_state_is_whole_after_a_step_that_fails() -> None:
    optimizer, weight = kvstore.create_optimizer("sgd", momentum=0.5), np.ones(3)
    optimizer.update("w", np.ones(3), weight)
    before, kept = optimizer.states["w"], weight.copy()
    for gradient, wrong in ((np.ones(2), "shape"), (np.ones(3), "momentum of NaN"), (np.ones((4, 3)), "more dimensions")):
        optimizer.params["momentum"] = float("nan") if "NaN" in wrong else 0.5
        with pytest.raises(ValueError, match=wrong):
            optimizer.update("w", gradient, weight)
    after = optimizer.states["w"]
    assert after["step"] == before["step"] == 1 and np.array_equal(after["velocity"], before["velocity"])
    assert np.array_equal(weight, kept)


def test_a_call_with_several_keys_is_refused_as_a_whole() -> None:
    kv, wrong, outs = with_keys(), full(5, (2, 2)), [full(9), full(9)]
    refused = [
        lambda: kv.push([1, 2], [full(5), wrong]),
        lambda: kv.push([1, 4], [full(5), full(5)]),
        lambda: kv.push([1, 2], [full(5), []]),
        lambda: kv.pushpull([1, 2], [full(5), full(5)], out=[full(5), wrong]),
        lambda: kv.init([4, 3], [full(5), full(5)]),
        lambda: kv.init([4, 5], [full(5), [full(5), full(5)]]),
        lambda: kv.broadcast([4, 5], [full(5), full(5)], out=[full(5), wrong]),
        lambda: kv.pull([1, 2], [outs[0], wrong]),
        lambda: kv.pull([1, 4], outs),
    ]
    for number, call in enumerate(refused):
        with pytest.raises(ArgumentError):
            call()
            pytest.fail(f"call {number} is not refused")
        assert pulled(kv, [1, 2, 3]) == [1, 2, 3] and (outs[0] == 9).all(), f"call {number} has begun"
    with pytest.raises(TypeError):
        kv.init([4, 5], [full(5), "text"])
    for key in (4, 5):
        with pytest.raises(ArgumentError, match="call init first"):
            kv.pull(key, full(0))
    frozen = full(9)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        kv.pull([1, 2], [outs[0], frozen])
    assert (outs[0] == 9).all()


def test_a_pull_of_several_keys_copies_none_if_one_has_failed() -> None:
    kv, outs = with_keys(), [full(9), full(9)]

    def fails_for_two(key: int, received: Any, stored: Any) -> None:
        if key == 2:
            raise ZeroDivisionError
        stored += received

    kv.set_updater(fails_for_two)
    kv.push([1, 2], [full(1), full(1)])
    with pytest.raises(ZeroDivisionError):
        kv.pull([1, 2], outs)
    assert all((out == 9).all() for out in outs)
    assert pulled(kv, [1, 2]) == [2, 2]


def test_an_init_that_fails_leaves_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = kvstore.create("local")
    with monkeypatch.context() as patched:
        patched.setattr(kv.engine, "wait", lambda thing: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            kv.init(["a", "b"], [full(1), full(2)])
    kv.init([1, 2], [full(1), full(2)])
    assert pulled(kv, [1, 2]) == [1, 2]


def test_an_updater_can_be_set_after_a_push_that_failed() -> None:
    kv, seen = with_keys(), []

    def fails(key: int, received: Any, stored: Any) -> None:
        raise ZeroDivisionError

    kv.set_updater(fails)
    kv.push(1, full(1))
    kv.set_updater(lambda key, received, stored: seen.append(key))
    with pytest.raises(ZeroDivisionError):
        kv.pull(1, full(9))
    kv.push(1, full(1))
    assert pulled(kv, [1]) == [1] and seen == [1]
    kv.set_updater(fails)
    kv.push(2, full(1))
    kv.set_optimizer("test")
    with pytest.raises(ZeroDivisionError):
        kv.pull(2, full(9))


def test_a_file_of_states_is_regular_and_has_what_it_says(tmp_path: Path) -> None:
    kv, pipe, hole, claim = with_keys(), tmp_path / "pipe", tmp_path / "hole", tmp_path / "claim"
    kv.set_optimizer("sgd")
    os.mkfifo(pipe)
    for path, header in [(hole, b""), (claim, b'{"arrays":[["<f4",[1099511627776]]],"value":{"array":[1099511627776]}}')]:
        path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(hole, 1 << 40)  # a hole takes up no disk
    wrong = [
        (pipe, "it is a pipe, and only regular files are read"),
        (Path("/dev/zero"), "it is a device"),
        (hole, "Expecting value"),
        (claim, r"an array of float32 and shape \[1099511627776\] would take 4398046511104 bytes, and 0 are left"),
    ]
    for path, what in wrong:
        with pytest.raises(ArgumentError, match=f"load_optimizer_states: {path} is not a file from .*{what}"):
            kv.load_optimizer_states(path)


def test_states_of_another_kind_are_refused(tmp_path: Path) -> None:
    kv, path = with_keys(), tmp_path / "states"
    kv.set_optimizer(kvstore.create_optimizer("sgd", momentum=0.5))
    kv.push(1, full(1))
    kv.save_optimizer_states(path)
    good = path.read_bytes()
    no_states = (2).to_bytes(8, "little") + b"[]"
    for number, bad in enumerate([b"", b"hello", good[: len(good) // 2], good[8:], good + b"1", b"\xff" * 64, no_states]):
        path.write_bytes(bad)
        with pytest.raises(ArgumentError, match="is not a file from save_optimizer_states"):
            kv.load_optimizer_states(path)
            pytest.fail(f"file {number} is taken")
    with pytest.raises(FileNotFoundError):
        kv.load_optimizer_states(tmp_path / "none")
    path.write_bytes(good)
    kv.load_optimizer_states(path)
    other = kvstore.create("local")
    other.init(1, full(1, (2, 3)))
    other.set_optimizer(kvstore.create_optimizer("sgd", momentum=0.5))
    with pytest.raises(ArgumentError, match=r"velocity of shape \(4, 4\) for key 1"):
        other.load_optimizer_states(path)


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ({"states": {1: {"step": 1, "velocity": np.zeros((4, 4), np.complex64)}}}, "not an array of a floating type"),
        ({"states": {1: {"step": 1, "velocity": np.full((4, 4), "x")}}}, "not an array of a floating type"),
        ({"params": [1]}, "is not a file from save_optimizer_states"),
        ({"params": {"learning_rate": "x"}}, "has a number that is invalid for the optimizer"),
        ({"params": {"lr_scheduler": 5}}, "has a number that is invalid for the optimizer"),
        ({"params": {"name": "adam"}}, "has a number that is invalid for the optimizer"),
    ],
)
def test_states_that_no_optimizer_has_are_refused(tmp_path: Path, what: dict[str, Any], match: str) -> None:
    kv, path = with_keys(), tmp_path / "states"
    kv.set_optimizer(kvstore.create_optimizer("sgd", momentum=0.5))
    path.write_bytes(pack("test", {"states": {}, "name": "sgd", "params": None} | what).tobytes())
    with pytest.raises(ArgumentError, match=f"load_optimizer_states: .*{match}"):
        kv.load_optimizer_states(path)
    kv.push(1, full(1))
    assert pulled(kv, [1]) != [1]


@pytest.mark.parametrize("given", [None, "x", np.ones(2), 1j, 10**400])
def test_what_a_program_gives_for_a_number_is_named(given: Any) -> None:
    kv = with_keys()
    optimizer = kvstore.create_optimizer("sgd", lr_scheduler=lambda updates: given)
    kv.set_optimizer(optimizer)
    with pytest.raises(ArgumentError, match="push: the rate of the lr_scheduler for update 1 is .* it has to be a finite number"):
        kv.push(1, full(1))
    optimizer = kvstore.create_optimizer("sgd")
    kv.set_optimizer(optimizer)
    optimizer.wd_mult[1] = given
    with pytest.raises(ArgumentError, match="push: the multiplier of wd of key 1 is "):
        kv.push(1, full(1))
    optimizer.wd_mult.clear()
    optimizer.params["momentum"] = given
    with pytest.raises(ArgumentError, match="push: sgd's momentum is "):
        kv.push(1, full(1))
    assert pulled(kv, [1]) == [1] and optimizer.num_update == 0


def test_keys_and_values_that_are_nearly_some_are_named() -> None:
    kv = kvstore.create("local")
    with pytest.raises(TypeError, match="init: a key is a ndarray, not a whole number or a text"):
        kv.init(np.arange(2), full(1))
    with pytest.raises(TypeError, match="init: a value is a float32, not a numpy array"):
        kv.init("a", np.float32(1))
    kv.init("a", np.asarray(np.float32(1)))
    with pytest.raises(TypeError, match="push: a value is a float32, not a numpy array"):
        kv.push("a", np.float32(1))


def test_parameters_are_numbers_of_python_or_numpy() -> None:
    optimizer = kvstore.create_optimizer("sgd", learning_rate=np.float32(0.5), momentum=np.int64(0), clip_gradient=np.float64(2))
    assert optimizer.params == {"learning_rate": 0.5, "wd": 0.0, "rescale_grad": 1.0, "clip_gradient": 2.0, "momentum": 0}
    assert all(type(value) in (int, float) for value in optimizer.params.values())
    for wrong in ("0.1", True, None, np.ones(1), 1j):
        with pytest.raises(TypeError, match="learning_rate is a .*, not a number"):
            kvstore.create_optimizer("sgd", learning_rate=wrong)
    with pytest.raises(ArgumentError, match="learning_rate is nan"):
        kvstore.create_optimizer("sgd", learning_rate=np.float32("nan"))


def test_whole_numbers_have_no_optimizer() -> None:
    kv, out = kvstore.create("local"), np.zeros(3, np.int32)
    kv.init(["n", "x"], [np.ones(3, np.int32), np.ones(3, np.float32)])
    kv.set_optimizer("sgd")
    with pytest.raises(ArgumentError, match="key 'n' is int32, but the optimizer sgd needs a type with fractions"):
        kv.push(["x", "n"], [np.ones(3, np.float32), np.ones(3, np.int32)])
    kv.pull("n", out)
    assert out.tolist() == [1, 1, 1]
    kv.set_updater(None)
    kv.push("n", np.full(3, 4, np.int32))
    kv.pull("n", out)
    assert out.tolist() == [4, 4, 4]


def test_rows_are_named_by_whole_numbers_and_go_into_arrays_like_the_value() -> None:
    kv = kvstore.create("local")
    kv.init("e", kvstore.RowSparse.of(np.ones((4, 3), np.float32)))
    out = kvstore.RowSparse.zeros((4, 3))
    for wrong in ([0.5], np.array([1.0]), [True, False], np.array([True]), ["1"]):
        with pytest.raises(TypeError, match="pass whole numbers"):
            kv.row_sparse_pull("e", out, row_ids=wrong)
    with pytest.raises(ArgumentError, match="rows go from 0 to 3"):
        kv.row_sparse_pull("e", out, row_ids=np.array([2**63], np.uint64))
    for shape in ((5, 3), (4, 2)):
        with pytest.raises(ArgumentError, match=r"in out for key 'e' has shape .*, but the value has \(4, 3\)"):
            kv.row_sparse_pull("e", kvstore.RowSparse.zeros(shape), row_ids=[1])
    with pytest.raises(ArgumentError, match="2 outs and 3 lists of row_ids"):
        kv.row_sparse_pull("e", [out, kvstore.RowSparse.zeros((4, 3))], row_ids=[[0], [1], [2]])
    assert out.indices.size == 0
    kv.row_sparse_pull("e", out, row_ids=[])
    kv.row_sparse_pull("e", out, row_ids=2)
    assert out.indices.tolist() == [2]


def test_keys_of_numpy_are_those_of_python() -> None:
    kv = with_keys()
    assert pulled(kv, [np.int64(1), np.uint8(2)]) == [1, 2]
    with pytest.raises(TypeError, match="a key is a bool"):
        kv.push(True, full(1))
