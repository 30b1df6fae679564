"""The package without torch: plain processes that meet at HERRINGBONE_STORE."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Group, Run, cases_of, collect, free_port

pytest.importorskip("ml_dtypes")

SETTINGS = {
    "two ranks": (2, {}),
    "three ranks with two reducers": (3, {"HERRINGBONE_REDUCERS": "", "HERRINGBONE_ALGORITHM": "reduction_server"}),
    "five ranks over tcp": (5, {"HERRINGBONE_TRANSPORT": "tcp"}),
}


@pytest.fixture(scope="module", params=SETTINGS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of("arrays.py", request, tmp_path_factory)


@pytest.fixture(scope="module", params=SETTINGS)
def run_of_parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of("parts.py", request, tmp_path_factory)


def run_of(script: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A script's outcomes in one of the settings."""
    size, environment = SETTINGS[request.param]
    if "HERRINGBONE_REDUCERS" in environment:
        environment = {**environment, "HERRINGBONE_REDUCERS": request.getfixturevalue("reducers")}
    folder, group = tmp_path_factory.mktemp("arrays"), Group()
    store = f"127.0.0.1:{free_port()}"
    try:
        group.start_ranks(script, size, RESULTS=str(folder), HERRINGBONE_STORE=store, **environment)
        outcomes = group.finish()
    finally:
        group.kill()
    return collect(size, folder, "\n".join(output for _, output in outcomes))


@pytest.fixture(scope="module", params=SETTINGS)
def run_of_messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of("messages.py", request, tmp_path_factory)


@pytest.fixture(scope="module", params=SETTINGS)
def run_of_shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of("shards_arrays.py", request, tmp_path_factory)


@pytest.mark.parametrize("case", cases_of("arrays.py"))
def test_arrays(run: Run, case: str) -> None:
    run.check(case)


@pytest.mark.parametrize("case", cases_of("parts.py"))
def test_parts(run_of_parts: Run, case: str) -> None:
    run_of_parts.check(case)


@pytest.mark.parametrize("case", cases_of("shards_arrays.py"))
def test_shards(run_of_shards: Run, case: str) -> None:
    run_of_shards.check(case)


LATE = """
import os, time, herringbone
with herringbone.init() as group:
    time.sleep(5 if group.rank == 1 else 0)
"""


def test_rank_0_says_for_whom_it_waits(group: Group) -> None:
    store = f"127.0.0.1:{free_port()}"
    for rank in "01":
        group.start("-c", LATE, RANK=rank, WORLD_SIZE="2", HERRINGBONE_STORE=store)
    (first, said), (second, _) = group.finish()
    assert (first, second) == (0, 0)
    assert "waiting for rank 1 to leave, for at most 10 s" in said


@pytest.mark.parametrize(("ranks", "ports", "lives"), [(2, 5, 1), (2, 1, 12), (3, 1, 12)])
def test_nothing_is_left_of_the_lives_of_a_job(group: Group, ranks: int, ports: int, lives: int) -> None:
    """Also where a life begins at the port at which the one before ends."""
    group.start_ranks("lives.py", ranks, *[f"127.0.0.1:{free_port()}" for _ in range(ports)] * lives)
    for status, output in group.finish():
        assert status == 0 and "lived" in output, output


@pytest.mark.parametrize(
    ("limit", "way", "remedy"),
    [
        ("files", "over TCP", "ulimit -n"),
        ("address space", "over TCP", "ulimit -v"),
        ("address space of all from the beginning", "shared", None),
    ],
)
def test_memory_that_cannot_be_shared_is_told_of_once(
    group: Group, tmp_path: Path, limit: str, way: str, remedy: str | None
) -> None:
    limited = str(tmp_path / "limited")
    group.start_ranks("limits.py", 2, limit, limited, HERRINGBONE_STORE=f"127.0.0.1:{free_port()}")
    outcomes = group.finish()
    assert all(status == 0 and way in output for status, output in outcomes), outcomes
    # On a busy machine there may be warnings of ranks that are late.
    warnings = [line for _, output in outcomes for line in output.splitlines() if "cannot be shared" in line]
    if remedy is None:
        assert not warnings
    else:
        [warning] = warnings
        said = "WARN herringbone rank 1"
        assert said in warning and "] rank 0 is on this host, but its memory cannot be shared" in warning and remedy in warning


@pytest.mark.parametrize("case", cases_of("messages.py"))
def test_messages(run_of_messages: Run, case: str) -> None:
    run_of_messages.check(case)
