"""Stores whose values are in tables on servers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import WORKERS, Group
from test_tables import address  # noqa: F401

import herringbone
from herringbone import ArgumentError, UnsupportedError, kvstore
from herringbone.kvstore.layout import Layout, bytes_of, row_of
from herringbone.kvstore.remote import RemoteKVStore
from lab.job import environment, python

np = pytest.importorskip("numpy")

ONE = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "servers, workers", [pytest.param(1, 1, marks=pytest.mark.full), (3, 2), pytest.param(2, 3, marks=pytest.mark.full)]
)
def test_workers_share_values_on_servers(group: Group, servers: int, workers: int) -> None:
    tables = ["--tables", str(servers)]
    script = [python(), str(WORKERS / "kvstore_async.py"), "everything"]
    group.start("-m", "herringbone", "launch", "-n", str(workers), *tables, "--", *script)
    [(status, output)] = group.finish()
    assert status == 0, output


@pytest.mark.full
def test_the_others_do_without_a_worker_that_is_killed(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 3, "killed", HERRINGBONE_TABLES=address)
    statuses = [status for status, _ in group.finish()]
    assert statuses == [0, -signal.SIGKILL, 0], "".join(group.lines)


def test_a_worker_that_comes_back_finds_the_values(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 2, "back", HERRINGBONE_TABLES=address)
    assert [status for status, _ in group.finish()] == [0, 0], "".join(group.lines)


def test_a_scheduler_goes_on_where_rank_0_comes_back(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 1, "back_first", HERRINGBONE_TABLES=address)
    assert [status for status, _ in group.finish()] == [0], "".join(group.lines)


def test_an_init_that_fails_leaves_no_value_on_the_servers(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 2, "first_values", HERRINGBONE_TABLES=address)
    assert [status for status, _ in group.finish()] == [0, 0], "".join(group.lines)


def test_workers_that_cannot_have_an_optimizer_keep_the_one_before(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 2, "refused", HERRINGBONE_TABLES=address)
    assert [status for status, _ in group.finish()] == [0, 0], "".join(group.lines)


@pytest.mark.full
def test_workers_that_call_different_things_are_told(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 2, "mistaken", HERRINGBONE_TABLES=address)
    assert group.finish() == [(0, "MismatchError\n")] * 2


@pytest.mark.full
def test_a_worker_that_an_exception_ends_is_not_waited_for(group: Group, address: str) -> None:  # noqa: F811
    group.start_ranks("kvstore_async.py", 2, "fails", HERRINGBONE_TABLES=address)
    assert [status for status, _ in group.finish()] == [0, 1], "".join(group.lines)


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_what_a_worker_changes_of_an_optimizer_reaches_the_servers(group: Group, workers: int) -> None:
    script = [python(), str(WORKERS / "kvstore_tuned.py"), "dist_async"]
    group.start("-m", "herringbone", "launch", "-n", str(workers), "--tables", "2", "--", *script)
    [(status, output)] = group.finish()
    assert status == 0, output


@pytest.fixture
def kv(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemoteKVStore]:  # noqa: F811
    monkeypatch.setenv("HERRINGBONE_TABLES", address)
    monkeypatch.setenv("HERRINGBONE_RANK", "0")
    monkeypatch.setenv("HERRINGBONE_WORLD_SIZE", "1")
    made = kvstore.create("dist_async")
    assert isinstance(made, RemoteKVStore)
    yield made
    made.close()


def test_what_cannot_be_is_refused(kv: RemoteKVStore) -> None:
    kv.init(3, ONE)
    out = np.zeros((2, 3), np.float32)
    refused: list[tuple[type[Exception], str, Any]] = [
        (ArgumentError, "call set_optimizer first", lambda: kv.push(3, ONE)),
        (ArgumentError, "call set_optimizer first", lambda: kv.pushpull(3, ONE)),
        (ArgumentError, "has a value already", lambda: kv.init(3, ONE)),
        (ArgumentError, "call init first", lambda: kv.pull(4, ONE)),
        (ArgumentError, "mixed key types", lambda: kv.pull("4", ONE)),
        (
            ArgumentError,
            r"init: key 5 has elements of int32, but servers keep float32 and float64; .* 'dist_sync'",
            lambda: kv.init(5, np.ones(3, np.int32)),
        ),
        (ArgumentError, "key 5 has elements of float16", lambda: kv.init([4, 5], [ONE, np.ones(3, np.float16)])),
        (ArgumentError, "key 4 has no value", lambda: kv.pull(4, ONE)),
        (UnsupportedError, "servers run no Python; use set_optimizer", lambda: kv.set_updater(print)),
        (UnsupportedError, "'dist_async' cannot compress", lambda: kv.set_gradient_compression({"type": "2bit"})),
        (UnsupportedError, "the states are on the servers", lambda: kv.save_optimizer_states("none")),
        (UnsupportedError, "the states are on the servers", lambda: kv.load_optimizer_states("none")),
        (ArgumentError, "use pull for dense arrays", lambda: kv.row_sparse_pull(3, kvstore.RowSparse.of(ONE), row_ids=[0])),
        (TypeError, "optimizer is a int", lambda: kv.set_optimizer(3)),  # type: ignore[arg-type]
    ]
    for error, words, call in refused:
        with pytest.raises(error, match=words):
            call()
    kv.set_optimizer("test")
    with pytest.raises(ArgumentError, match="for a key of float32"):
        kv.push(3, np.ones((2, 2), np.float32))
    kv.push(3, ONE)
    kv.pull(3, out)
    assert (out == 2).all() and kv.type == "dist_async" and kv.is_capable("optimizer")
    with pytest.raises(ArgumentError, match="use 'dist_sync' for a communicator"):
        kvstore.create("dist_async", communicator=herringbone.Communicator.__new__(herringbone.Communicator))


def test_a_server_that_is_lost_is_named_by_the_next_pull(
    address: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERRINGBONE_RANK", "0")
    monkeypatch.setenv("HERRINGBONE_WORLD_SIZE", "1")
    command = [python(), "-m", "herringbone", "serve", "--tables", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        other = server.stdout.readline().split()[-1]
        monkeypatch.setenv("HERRINGBONE_TABLES", f"{address},{other}")
        kv = kvstore.create("dist_async")
        assert isinstance(kv, RemoteKVStore)
        kv.set_optimizer("test")
        kv.init([1, 2], [ONE, ONE])
        server.kill()
    kv.push(1, ONE)
    for key in (1, 2):
        with pytest.raises(herringbone.TableServerLostError, match=other):
            kv.pull(key, ONE.copy())
    with pytest.raises(herringbone.TableServerLostError):
        kv.close()
    kv.close()


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "adagrad", "rmsprop", "test"])
def test_servers_do_to_values_what_a_local_store_does(kv: RemoteKVStore, name: str) -> None:
    """To the bit, and also if numbers change while it runs."""
    local, random = kvstore.create("local"), np.random.default_rng(4)
    first = random.standard_normal((40, 77)).astype(np.float32)
    kv.init(1, first)
    local.init(1, first)
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    out, other = np.zeros_like(first), np.zeros_like(first)
    for step in range(6):
        if step in (0, 3):
            optimizer = kvstore.create_optimizer(name, learning_rate=0.1 / (1 + step), wd=0.01, clip_gradient=1.5, **momentum)
            kv.set_optimizer(optimizer)
            if step == 0:
                local.set_optimizer(optimizer)
            else:
                assert local._optimizer is not None
                local._optimizer.params = optimizer.params
        gradient = random.standard_normal(first.shape).astype(np.float32)
        for store, into in ((kv, out), (local, other)):
            store.push(1, gradient)
            store.pull(1, into)
        assert np.array_equal(out, other), step


def test_a_table_that_cannot_be_made_leaves_the_one_before(kv: RemoteKVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    many, out = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    kv.init(1, many)
    kv.set_optimizer("test")

    def refuse(*_: Any, **__: Any) -> None:
        raise MemoryError("there is no room")

    with monkeypatch.context() as patched:
        patched.setattr(kv._servers, "table", refuse)
        with pytest.raises(MemoryError, match="there is no room"):
            kv.set_optimizer("lamb")
    kv.push(1, many)
    kv.pull(1, out)
    assert np.array_equal(out, 2 * many)


def test_a_first_value_is_one_step_of_its_table(kv: RemoteKVStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler of rank 0 that comes back counts the others."""
    monkeypatch.setattr("herringbone.kvstore.tabled.CHUNK", 2)
    large, rows = np.ones((5000, 1), np.float32), kvstore.RowSparse.of(np.ones((9, 3), np.float32))
    firsts = {1: ONE, 2: 0 * ONE, 3: large, 4: np.zeros((0, 3), np.float32), 5: rows, 6: kvstore.RowSparse.zeros((9, 3))}
    kv.init(list(firsts), list(firsts.values()))
    for optimizer in (None, kvstore.create_optimizer("sgd", lr_scheduler=lambda count: 1 / count)):
        if optimizer is not None:
            kv.set_optimizer(optimizer)
        assert [kv._stored[key].table.step for key in firsts] == [1] * 6
    out = np.zeros_like(rows.toarray())
    kv.pull(5, out)
    assert (out == 1).all()
    for _ in range(2):
        kv.push(1, ONE)
    kv.pull(1, ONE.copy())
    assert kv._stored[1].pushes == 2


def test_a_nan_is_taken_unless_the_store_refuses_it(kv: RemoteKVStore) -> None:
    local, careful = kvstore.create("local"), kvstore.create("dist_async", nan="refuse")
    assert isinstance(careful, RemoteKVStore)
    spoiled, out = np.full((2, 3), np.nan, np.float32), ONE.copy()
    for store in (local, kv, careful):
        store.init(1, ONE)
        store.set_optimizer("test")
        store.push(1, spoiled)
    for store in (local, kv):
        store.pull(1, out)
        assert np.isnan(out).all()
    with pytest.raises(herringbone.TableError, match="has a NaN"):
        careful.pull(1, out)
    careful.pull(1, out)
    assert (out == 1).all()
    careful.close()
    for name, nan in (("dist_async", "drop"), ("local", "refuse")):
        with pytest.raises(ArgumentError, match='it is "count", or "refuse" for a store of type'):
            kvstore.create(name, nan=nan)


def test_torchs_tensors_are_taken(kv: RemoteKVStore) -> None:
    torch = pytest.importorskip("torch")
    kv.set_optimizer("sgd")
    tensor, outs = torch.ones(5, 4).requires_grad_(), [torch.zeros(5, 4), torch.zeros(5, 4)]
    kv.init(1, tensor)
    kv.push(1, [torch.ones(5, 4)] * 2)
    kv.pull(1, outs, async_op=True)
    kv.wait_all()
    assert all(torch.allclose(out, torch.full((5, 4), 0.98)) for out in outs)


def test_values_lie_on_all_servers_and_messages_fit_rows() -> None:
    for shape, servers, expected in [
        ((), 3, (1, 1)),
        ((0, 4), 3, (1, 1)),
        ((2, 3), 2, (2, 3)),
        ((7,), 3, (3, 3)),
        ((1000, 1000), 2, (977, 1024)),
    ]:
        layout = Layout.dense(shape, servers)
        assert (layout.rows, layout.width) == expected and layout.rows * layout.width >= layout.elements
    assert Layout.sparse((9, 2, 3)) == Layout((9, 2, 3), 9, 6)
    for size in (0, 1, 4, 27):
        message = np.arange(size, dtype=np.uint8)
        assert np.array_equal(bytes_of(row_of(message, 8)), message)
    with pytest.raises(ValueError, match="28 bytes"):
        row_of(np.zeros(28, np.uint8), 7)
    assert bytes_of(np.zeros(8)).size == 0


def test_without_servers_it_says_how_to_start_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERRINGBONE_TABLES", raising=False)
    with pytest.raises(herringbone.ConfigError, match="needs a parameter server.*launch --tables 2.*or use 'dist_sync'"):
        kvstore.create("dist_async")


def test_numbers_and_multipliers_are_those_of_each_key(kv: RemoteKVStore) -> None:
    out = np.zeros((2, 3), np.float32)
    optimizer = kvstore.create_optimizer("sgd", learning_rate=1, momentum=0.5, param_idx2name={4: "bias"})
    optimizer.set_lr_mult({"bias": 0.5})
    kv.init([3, 4], [0 * ONE, 0 * ONE])
    kv.set_optimizer(optimizer)
    kv.push([3, 4], [ONE, ONE])
    optimizer.set_learning_rate(0.5)
    kv.push([3, 4], [ONE, ONE])
    kv.pull(3, out)
    assert np.allclose(out, -1 - (0.5 + 0.5))
    kv.pull(4, out)
    assert np.allclose(out, -0.5 - (0.25 + 0.25))
    kv.set_optimizer(optimizer)  # the velocities stay
    kv.push(3, 0 * ONE)
    kv.pull(3, out)
    assert np.allclose(out, -2 - 0.5)
    optimizer.params["learning_rate"] = float("inf")
    with pytest.raises(ArgumentError, match="push: sgd cannot have a learning_rate of inf"):
        kv.push(3, ONE)
    optimizer.params |= {"learning_rate": 1, "momentum": 0}
    with pytest.raises(ArgumentError, match="momentum has become 0.*call set_optimizer on all workers"):
        kv.push(3, ONE)
    kv.set_optimizer(optimizer)
    kv.push(3, ONE)
    kv.pull(3, out)
    assert np.allclose(out, -3.5)


def test_row_sparse_arrays_go_to_dense_keys_and_come_from_whole_ones(kv: RemoteKVStore) -> None:
    kv.set_optimizer("test")
    rows = kvstore.RowSparse(ONE[:1], [1], (2, 3))
    kv.init(["dense", "sparse"], [ONE, rows])
    kv.push("dense", [rows, rows])
    out, both, wide = np.zeros((2, 3), np.float32), kvstore.RowSparse.zeros((2, 3)), kvstore.RowSparse.zeros((2, 3), "float64")
    kv.pull("dense", [out, both], ignore_sparse=False)
    assert out[:, 0].tolist() == [1, 3] and np.array_equal(both.toarray(), out)
    kv.pull("sparse", both, ignore_sparse=False)
    assert both.indices.tolist() == [1] and (both.data == 1).all()
    kv.row_sparse_pull("sparse", wide, row_ids=[0, 1])
    assert wide.data.dtype == np.float64 and wide.data[:, 0].tolist() == [0, 1]


def test_the_optimizers_of_servers_are_those_of_this_process(kv: RemoteKVStore) -> None:
    random, out = np.random.default_rng(3), np.zeros((2, 3), np.float32)
    for number, name in enumerate(["adamw", "lamb", "ftrl", "signum"]):
        optimizer, weight = kvstore.create_optimizer(name, learning_rate=0.1, wd=0.01), ONE.copy()
        kv.set_optimizer(optimizer)
        kv.init(number, weight)
        for _ in range(3):
            gradient = random.standard_normal((2, 3)).astype(np.float32)
            kv.push(number, gradient)
            optimizer.update("w", gradient, weight)
        kv.pull(number, out)
        assert out.tobytes() == weight.tobytes(), name


def test_lamb_keeps_a_key_whole_or_refuses_it(kv: RemoteKVStore) -> None:
    many, out = np.arange(5000, dtype=np.float32), np.zeros(5000, np.float32)
    kv.set_optimizer("test")
    kv.init("many", many)
    kv.set_optimizer("lamb")
    kv.pull("many", out)
    assert np.array_equal(out, many)
    expected, alone = many.copy(), kvstore.create_optimizer("lamb")
    kv.push("many", many)
    alone.update("many", many, expected)
    kv.pull("many", out)
    assert out.tobytes() == expected.tobytes()
    kv.set_optimizer("test")
    kv.push("many", np.zeros_like(many))
    kv.pull("many", out)
    assert np.array_equal(out, expected)
    kv.init(["large", "rows"], [np.zeros(16385, np.float32), kvstore.RowSparse.of(ONE)])
    with pytest.raises(ArgumentError, match=r"key 'large' has 16385 elements of float32; on servers lamb .* with at most 16384"):
        kv.set_optimizer("lamb")
    kv.push("large", np.zeros(16385, np.float32))  # the optimizer is the one before
    with pytest.raises(ArgumentError, match="key 'more' is row-sparse; on servers lamb needs"):
        other = kvstore.create("dist_async")
        other.set_optimizer("lamb")
        try:
            other.init("more", kvstore.RowSparse.of(ONE))
        finally:
            other.close()  # type: ignore[attr-defined]
