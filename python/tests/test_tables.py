"""Tables on real servers: sums with an all-reduce's bits, sparse rows, workers that die, and what is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import herringbone
import numpy as np
import pytest
from conftest import WORKERS, Group
from lab.job import environment, python


@pytest.fixture
def address() -> Iterator[str]:
    """Where a table server listens."""
    command = [
        python(),
        "-m",
        "herringbone",
        "serve",
        "--tables",
        "--listen",
        "127.0.0.1:0",
        "--patience",
        "0.5",
        "--memory",
        "16M",
    ]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.terminate()


@pytest.mark.parametrize("work", ["sums", "sparse", "bounded"])
def test_workers_push_and_pull(group: Group, work: str) -> None:
    group.start("-m", "herringbone", "launch", "-n", "3", "--tables", "2", "--", python(), str(WORKERS / "tables.py"), work)
    [(status, output)] = group.finish()
    assert status == 0, output


def test_a_job_continues_with_the_tables_of_the_one_before(tmp_path: Path) -> None:
    """All servers of the first one have ended, and those of the second have copies."""
    program = (
        "import herringbone; servers = herringbone.ParameterServer(); "
        "table = servers.table('w', rows=9, consistency='sync', restore=True); print('begins with', table.pull_range(0, 9).sum()); "
        "table.push_range(0, [[1.0]] * 9); table.snapshot(); servers.close()"
    )
    for more, total in (([], 0.0), (["--replicas", "1"], 9.0)):
        words = [
            "launch",
            "-n",
            "1",
            "--tables",
            "2",
            *more,
            "--tables-data",
            str(tmp_path / "kept"),
            "--",
            python(),
            "-c",
            program,
        ]
        done = subprocess.run([python(), "-m", "herringbone", *words], env=environment(), capture_output=True, text=True)
        assert done.returncode == 0 and f"begins with {total}" in done.stdout, done


def test_the_others_go_on_without_a_worker_that_is_killed(group: Group, address: str) -> None:
    group.start_ranks("tables.py", 3, "killed", HERRINGBONE_TABLES=address)
    statuses = [status for status, _ in group.finish()]
    assert statuses == [0, -signal.SIGKILL, 0], "".join(group.lines)


def test_arguments_that_make_no_sense_are_named(address: str) -> None:
    """Each error has the argument's name and what it can be."""
    ones = np.ones((2, 2), np.float32)
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        table = servers.table("t", rows=10, width=2)
        cases: list[tuple[str, Any]] = [
            ("optimizer is None; pass a name: add, .*adamw, .*signum, or own:NAME. Servers run no Python", {"optimizer": None}),
            ("optimizer is <built-in function print>; pass a name", {"optimizer": print}),
            (r"numbers is \[1\]; pass them by their names", {"numbers": [1]}),
            ("numbers is {1: 2}; pass them by their names", {"numbers": {1: 2}}),
            (r"width is 4294967296; .* below 2\*\*32", {"width": 1 << 32}),
            ("consistency is -1; it is a number from 0", {"consistency": -1}),
            ("sparse is 'yes'; pass True or False", {"sparse": "yes"}),
            ("restore is 'newest'; pass True or False", {"restore": "newest"}),
        ]
        for words, wrong in cases:
            with pytest.raises(herringbone.ArgumentError, match=f"table 'u': {words}"):
                servers.table("u", rows=10, **wrong)
        first = "it is the first key, a whole number from 0 to 9 in the table 't'"
        for words, call in [
            (f"pull_range: first is -1; {first}", lambda: table.pull_range(-1, 2)),
            (f"pull_range: first is {1 << 64}; {first}", lambda: table.pull_range(1 << 64, 2)),
            (f"pull_range: first is 0.5; {first}", lambda: table.pull_range(0.5, 2)),  # type: ignore[arg-type]
            (f"push_range: first is -1; {first}", lambda: table.push_range(-1, ones)),
            ("pull_range: count is -2; it is how many rows, a whole number from 0 to 10", lambda: table.pull_range(1, -2)),
            ("pull_range: count is 11; it is how many rows", lambda: table.pull_range(1, 11)),
            ("push: values are float64, and the table 't' has float32", lambda: table.push([1, 2], ones.astype(np.float64))),
        ]:
            with pytest.raises(herringbone.ArgumentError, match=words):
                call()
        for out_of_reach in (lambda: table.pull_range(9, 2), lambda: table.push_range(9, ones)):
            with pytest.raises(herringbone.TableError, match="keys from 9 to 10"):
                out_of_reach()


def test_a_rank_that_is_here_twice_is_told_so(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as first:
        table = first.table("t", rows=10)
        with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as second:
            with pytest.raises(herringbone.TableError, match="by another ParameterServer of this process: close that one first"):
                second.table("t", rows=10)
            table.close()
            second.table("t", rows=10)


def test_a_table_that_is_not_kept_is_closed(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        servers.table("t", rows=10, consistency="sync").end_step()
        kept = servers.table("t", rows=10, consistency="sync")
        assert kept.step == 1 and kept is not servers.table("t", rows=10, consistency="sync")


def test_keys_of_any_shape_name_rows(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        table = servers.table("t", rows=10, width=2)
        table.push(3, [[1, 2]])
        table.push([[5, 4], [3, 5]], np.ones((2, 2, 2), np.float32))
        assert table.pull(5).tolist() == [[2, 2]] and table.pull([[3, 4], [5, 3]]).tolist() == [[2, 3], [1, 1], [2, 2], [2, 3]]
        missing = servers.table("missing", rows=10, sparse=True, initializer=None)
        with pytest.raises(herringbone.TableError, match="row 2 was never pushed to"):
            missing.pull(2)
        with pytest.raises(herringbone.TableError, match="make it sparse"):
            servers.table("dense", rows=10, initializer=None)


def test_what_cannot_be_is_refused_and_nothing_is_lost(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        table = servers.table("t", rows=10, width=2)
        table.push([3], np.ones((1, 2), np.float32))
        for error, words, call in [
            (
                herringbone.TableError,
                "not all keys from 3 to 10 exist",
                lambda: table.push([10, 3], np.ones((2, 2), np.float32)),
            ),
            (herringbone.TableError, "row 4 has a NaN", lambda: table.push([3, 4], np.array([[1, 1], [1, np.nan]], np.float32))),
            (herringbone.ArgumentError, "values are float64", lambda: table.push([3], np.ones((1, 2)))),
            (herringbone.ArgumentError, "no 2 rows of 2", lambda: table.push([3, 4], np.ones((2, 3), np.float32))),
            (herringbone.ArgumentError, "a key is -1", lambda: table.pull([-1])),
            (herringbone.ArgumentError, "keys are float64", lambda: table.pull([0.5])),
            (
                herringbone.ArgumentError,
                "not contiguous, or not writable",
                lambda: table.pull([1, 2], np.ones((2, 4), np.float32)[:, ::2]),
            ),
            (herringbone.TableError, "takes no momentum", lambda: table.tune(momentum=0.5)),
            (herringbone.TableError, "differs in rows, consistency", lambda: servers.table("t", rows=9, width=2, consistency=3)),
            (herringbone.ArgumentError, "no optimizer is called", lambda: servers.table("u", rows=9, optimizer="lars")),
            (herringbone.ArgumentError, "elements of int32", lambda: servers.table("u", rows=9, dtype=np.int32)),
            (herringbone.ArgumentError, "a number of steps", lambda: servers.table("u", rows=9, consistency="eventual")),
            *(
                (herringbone.ArgumentError, "write first:K", lambda text=text: servers.table("u", rows=9, consistency=text))
                for text in ("first:0", "first:02", "first:+2", "first: 2", "first:\u0662", "first:", "first:65537")
            ),
            (herringbone.ArgumentError, "rows is 9.5; pass a whole number", lambda: servers.table("u", rows=9.5)),
            (herringbone.ArgumentError, "width is -1", lambda: servers.table("u", rows=9, width=-1)),
            (
                herringbone.ArgumentError,
                "learning_rate is 'x'",
                lambda: servers.table("u", rows=9, numbers={"learning_rate": "x"}),
            ),
            (herringbone.TableError, "the server is full", lambda: servers.table("u", rows=1 << 30)),
            (herringbone.TableError, "there is no such table", lambda: servers.drop_table("u")),
            (herringbone.TableError, "character 2 of the table's name is U\\+202E", lambda: servers.table("a\u202eb", rows=9)),
            (herringbone.TableError, "character 1 of the table's name is U\\+200B", lambda: servers.drop_table("\u200b")),
        ]:
            with pytest.raises(error, match=words):
                call()
        assert table.pull([3, 3]).tolist() == [[1, 1], [1, 1]] and table.step == 1
    with pytest.raises(herringbone.ClosedError):
        servers.drop_table("t")
    with pytest.raises(TypeError, match="servers is a list"):
        herringbone.ParameterServer(address, rank=0, workers=1)
    with pytest.raises(herringbone.ConfigError, match="HERRINGBONE_TABLES"):
        herringbone.ParameterServer([], rank=0, workers=1)


def test_lists_and_arrays_of_other_machines_are_taken(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        table = servers.table("t", rows=np.int64(10), width=2, consistency=np.int64(2))
        table.push([3, 4], [[1, 2], [3, 4]])
        table.push(np.array([3], ">i8"), np.array([[10, 20]], ">f4"))
        assert table.pull([3, 4]).tolist() == [[11, 22], [3, 4]]


def test_to_close_a_table_ends_a_pull_of_another_thread(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=2, timeout=60) as servers:
        table = servers.table("t", rows=10, consistency="sync")
        table.end_step()
        errors: list[herringbone.TableError] = []

        def pull() -> None:
            try:
                table.pull([1])
            except herringbone.TableError as error:
                errors.append(error)

        puller = threading.Thread(target=pull)
        puller.start()
        time.sleep(0.3)
        table.close()
        puller.join(20)
        assert "there is no such table" in str(errors[0])
        # It can be opened again, and goes on where the others are.
        assert servers.table("t", rows=10, consistency="sync").step == 1


def test_a_push_that_is_refused_in_part_is_withdrawn() -> None:
    """Two servers, one of which is full."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for memory in ["16M", "60K"]:
            command = [python(), "-m", "herringbone", "serve", "--tables", "--listen", "127.0.0.1:0", "--memory", memory]
            server = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
            stack.callback(server.kill)
            assert server.stdout is not None
            addresses.append(server.stdout.readline().split()[-1])
        servers = stack.enter_context(herringbone.ParameterServer(addresses, rank=0, workers=1, timeout=20))
        with pytest.raises(herringbone.TableError, match="the server is full"):
            servers.table("dense", rows=1 << 20)
        with pytest.raises(herringbone.TableError, match="there is no such table"):
            servers.drop_table("dense")
        table = servers.table("t", rows=1000, width=100, sparse=True, consistency="sync")
        with pytest.raises(herringbone.TableError, match="the server is full"):
            table.push_range(0, np.ones((1000, 100), np.float32))
        assert table.step == 0
        table.push([0, 999], np.full((2, 100), 7, np.float32))
        assert table.pull([0, 1, 999]).sum(axis=1).tolist() == [700, 0, 700] and table.step == 1


def test_ctrl_c_ends_a_pull_that_waits(address: str) -> None:
    command = [python(), str(WORKERS / "tables.py"), "interrupted"]
    settings = environment({"HERRINGBONE_TABLES": address, "RANK": "0", "WORLD_SIZE": "2"})
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "waits\n"
        time.sleep(0.5)
        waiting.send_signal(signal.SIGINT)
        assert waiting.communicate(timeout=30)[0] == "interrupted\n"


def test_a_reducer_says_that_it_keeps_no_tables(group: Group) -> None:
    command = [python(), "-m", "herringbone", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        with pytest.raises(herringbone.ConfigError, match="start it with --tables"):
            herringbone.ParameterServer([address], rank=0, workers=1, timeout=20)
        server.terminate()


def test_a_server_that_is_killed_is_named(address: str) -> None:
    command = [python(), "-m", "herringbone", "serve", "--tables", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        other = server.stdout.readline().split()[-1]
        servers = herringbone.ParameterServer([address, other], rank=0, workers=1, timeout=20)
        table = servers.table("t", rows=10)
        server.kill()
        server.wait()
        with pytest.raises(herringbone.TableServerLostError, match=other) as raised:
            table.pull([9])
        assert raised.value.address == other


def test_torchs_tensors_are_taken_and_returned(address: str) -> None:
    torch = pytest.importorskip("torch")
    with herringbone.ParameterServer([address], rank=0, workers=1, timeout=20) as servers:
        table = servers.table("t", rows=10, width=3, dtype=torch.bfloat16, optimizer="sgd", numbers={"learning_rate": 0.5})
        table.push(torch.tensor([4, 2]), torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True))
        out = torch.zeros(1, 3, dtype=torch.bfloat16)
        assert table.pull([2], out) is out
        assert torch.equal(table.pull(torch.tensor([2, 4, 5])), torch.tensor([[-0.5] * 3, [-0.5] * 3, [0.0] * 3]).bfloat16())
        table.tune(learning_rate=1.0)
        assert torch.equal(table.push_pull(torch.tensor([2]), out), torch.zeros(1, 3, dtype=torch.bfloat16))


def test_values_travel_coded(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1) as servers:
        table = servers.table("coded", rows=10, width=3)
        values = np.array([[1, 2.0001, 127], [0.3, -0.2, 0.1]], np.float32)
        table.set_codecs(push="bf16")
        table.push([3, 7], values)
        kept = table.pull([3, 7])
        assert (kept == (((values.view(np.uint32) + 0x8000) >> 16) << 16).view(np.float32)).all(), kept
        table.set_codecs(pull="int8")
        assert (table.pull([3]) == [[1, 2, 127]]).all()
        table.set_codecs(push="fp16", pull="plain")
        table.push([4], [[1e6, 1, -1e6]])
        assert table.pull([4]).tolist() == [[np.inf, 1, -np.inf]]
        table.set_codecs(pull="int8")
        assert np.isnan(table.pull([4])).all() and not np.isnan(table.pull([3])).any()
        with pytest.raises(herringbone.ArgumentError, match="fed back"):
            table.set_codecs(push="topk:0.1")
        with pytest.raises(
            herringbone.ArgumentError, match='"zip" is no codec of a table\'s values: use plain, bf16, fp16 or int8$'
        ):
            table.set_codecs(pull="zip")
        doubles = servers.table("doubles", rows=10, dtype=np.float64)
        with pytest.raises(herringbone.TableError, match="only f32"):
            doubles.set_codecs(push="int8")


def test_a_forked_child_is_told_that_its_parents_tables_are_not_its(address: str) -> None:
    with herringbone.ParameterServer([address], rank=0, workers=1) as servers:
        table = servers.table("of the parent", rows=4, dtype=np.float64)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for call in (lambda: table.pull_range(0, 4), lambda: table.push([1], [[1.0]]), lambda: servers.table("t", rows=1)):
                with contextlib.suppress(herringbone.ForkedError):
                    call()
                    os.write(write, b"no error;")
            servers.close()
            os.write(write, b"closed")
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with os.fdopen(read, "rb") as heard:
            assert heard.read() == b"closed"
        table.push([1], [[1.0]])
        assert (table.pull_range(0, 4) == [[0], [1], [0], [0]]).all()


def test_a_pull_that_failed_leaves_the_callers_array_alone(address: str) -> None:
    servers = [herringbone.ParameterServer([address], rank=rank, workers=2, timeout=1) for rank in (0, 1)]
    tables = [each.table("late rows", rows=4, width=1, optimizer="add", consistency="sync") for each in servers]
    tables[0].push_range(0, np.ones((4, 1), np.float32))
    out = np.full((4, 1), 1000, np.float32)
    with pytest.raises(herringbone.OperationTimeoutError):
        tables[0].pull_range(0, 4, out=out)
    tables[1].end_step()
    assert tables[0].pull_range(0, 4).tolist() == [[1]] * 4
    assert out.tolist() == [[1000]] * 4
    with pytest.raises(herringbone.ArgumentError, match="byte order"):
        tables[0].pull_range(0, 4, out=np.zeros((4, 1), ">f4"))
    for each in servers:
        each.close()
