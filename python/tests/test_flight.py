"""Flight records: what torchfrtrace makes of those of torch's ranks, what is written after errors and on a signal, and JSON."""

from __future__ import annotations

import json
import pickle
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import WORKERS, Group, free_port

SIZE = 4
TOKEN = "a token of the tests"


@dataclass
class Collective:
    """What torchfrtrace has put together of the calls of all ranks."""

    name: str
    group: str
    fits: bool


@dataclass
class Read:
    """What torchfrtrace says of a folder, and what it has found there."""

    said: str
    collectives: list[Collective]

    def of_group(self, name: str) -> str:
        """What is said of the mistakes in a group, by its description."""
        parts = re.split(r"(?=internal record id)", self.said)
        return "".join(part for part in parts if re.search(rf"group info: \S+:{name}\b", part))


def singles_out(said: str, kind: str) -> bool:
    """Whether rank 2 differs from all others. torchfrtrace compares all with the rank whose file it reads first."""
    return kind in said and set(re.findall(r"Culprit rank (\d)", said)) in ({"2"}, {"0", "1", "3"})


def torchfrtrace(folder: Path, output: Path) -> Read:
    """Run torch's own program. What it writes has types of its own, which a process with torch has to read."""
    with Group() as group:
        group.start(str(WORKERS / "flight_read.py"), str(folder), str(output), forked=True)
        [(status, said)] = group.finish(60)
    assert status == 0, said
    return Read(said, [Collective(**fields) for fields in json.loads(output.read_text())])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a job of torch leaves: the folders ``well`` and ``planted``, and files ``own_RANK`` that the ranks have written."""
    pytest.importorskip("torch.distributed.flight_recorder")
    folder = tmp_path_factory.mktemp("flight")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    settings = {"HERRINGBONE_TOKEN": TOKEN, "HERRINGBONE_FLIGHT": str(folder / "own_"), "HERRINGBONE_FLIGHT_SIGNAL": "1"}
    with Group() as group:
        group.start_ranks("flight.py", SIZE, RESULTS=str(folder), **place, **settings)
        for status, output in group.finish(60):
            assert status == 0 and "the program ends" in output, output
    yield folder


def test_calls_that_fit_match_fully(folder: Path, tmp_path: Path) -> None:
    read = torchfrtrace(folder / "well", tmp_path / "db")
    assert all(collective.fits for collective in read.collectives), read.said
    assert "mismatch" not in read.said.lower() and "Not all ranks" not in read.said, read.said
    names = [collective.name for collective in read.collectives]
    assert {"nccl:all_reduce", "nccl:_all_gather_base", "nccl:all_to_all"} <= set(names), names
    assert sum(name in ("nccl:send 0->1", "nccl:recv 1<-0") for name in names) == 4
    assert sum(collective.group.endswith(":some") for collective in read.collectives) == 2
    assert {"0:default_pg"} <= {collective.group for collective in read.collectives}


def test_planted_mistakes_are_found(folder: Path, tmp_path: Path) -> None:
    read = torchfrtrace(folder / "planted", tmp_path / "db")
    assert singles_out(read.of_group("size"), "SIZE_OR_SYNTAX_MISMATCH"), read.said
    assert singles_out(read.of_group("kind"), "COLLECTIVE_TYPE_MISMATCH"), read.said
    assert singles_out(read.of_group("order"), "COLLECTIVE_TYPE_MISMATCH"), read.said
    assert "missing ranks: {2}" in read.of_group("absent"), read.said


def test_who_fails_writes_its_record(folder: Path, tmp_path: Path) -> None:
    """That of rank 0 was deleted, and has come again with the signal, while a call waited."""
    own = tmp_path / "own"
    own.mkdir()
    for file in folder.glob("own_*"):
        file.rename(own / file.name)
    assert sorted(file.name for file in own.iterdir()) == [f"own_{rank}" for rank in range(SIZE)]
    read = torchfrtrace(own, tmp_path / "db")
    assert singles_out(read.of_group("size"), "SIZE_OR_SYNTAX_MISMATCH"), read.said
    entries = pickle.loads((own / "own_0").read_bytes())["entries"]
    assert [entries[-1][key] for key in ("profiling_name", "input_sizes", "state")] == ["nccl:all_reduce", [[5]], "started"]
    assert (own / "own_0").stat().st_mode & 0o077 == 0


def test_a_reducer_that_loses_a_worker_writes_its_record(group: Group, tmp_path: Path) -> None:
    """A rank is killed in the middle of a job."""
    pytest.importorskip("numpy")
    reducer = f"127.0.0.1:{free_port()}"
    settings = {"HERRINGBONE_TOKEN": TOKEN, "HERRINGBONE_FLIGHT": str(tmp_path / "own_")}
    group.start("-m", "herringbone", "serve", "--listen", reducer, **settings)
    settings |= {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_REDUCERS": reducer}
    settings |= {"HERRINGBONE_ALGORITHM": "reduction_server", "HERRINGBONE_TIMEOUT_S": "30"}
    group.start_ranks("shrinking.py", 3, "1", **settings)
    serves, *ranks = group.processes
    # Then it is somewhere in a sum, and the others wait for its part.
    assert any(re.search(r"ranks? [\d, -]*2 ha(s|ve) come", line) for line in serves.stdout)
    ranks[2].send_signal(signal.SIGKILL)
    said = next((line for line in serves.stdout if "the last calls of this reducer are in" in line), "")
    [file] = tmp_path.glob("reducer_own_*.json")
    assert str(file) in said
    record = json.loads(file.read_text())
    assert (record["format"], record["role"], record["world"]) == ("herringbone-flight-1", "reducer", 3)
    assert {operation["call"] for operation in record["operations"]} <= {"all_reduce"}


def test_ranks_of_numpy_write_json(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    settings = {"HERRINGBONE_TOKEN": TOKEN, "HERRINGBONE_FLIGHT": str(tmp_path / "own_")}
    with Group() as group:
        group.start_ranks("flight_arrays.py", 2, RESULTS=str(tmp_path), **place, **settings)
        for status, output in group.finish(60):
            assert status == 0, output
            assert "docs/flight.md" in output, output
    own, asked = (json.loads((tmp_path / name).read_text()) for name in ("own_1.json", "asked/rank_1.json"))
    assert own["format"] == asked["format"] == "herringbone-flight-1"
    assert (own["rank"], own["world"], own["groups"][0]["ranks"]) == (1, 2, [0, 1])
    failed = [operation for operation in own["operations"] if operation["state"] == "failed"]
    assert [(operation["call"], operation["count"], operation["error"]) for operation in failed] == [
        ("all_reduce", 4, "Mismatch")
    ]
    last = asked["operations"][-1]
    assert (last["call"], last["peer"], last["tag"], last["state"]) == ("recv", 0, 5, "done")
    assert last["issued_ns"] <= last["ended_ns"] <= asked["taken"]["monotonic_ns"]
