"""Ranks that add up on their hosts first: real processes on hosts that are network namespaces, with Gloo in NCCL's place."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import WORKERS, Group, Run, cases_of, collect
from ports import free_port
from test_hosts import on_hosts

FULL = pytest.mark.full
"""Each job costs seconds, so `make test` has one of each kind."""


def also_in_full(shapes: list[tuple[int, int]]) -> list[object]:
    """Numbers of hosts and of their ranks: all but the first are for `make full`."""
    return [shapes[0], *(pytest.param(shape, marks=FULL) for shape in shapes[1:])]


def named(shape: tuple[int, int]) -> str:
    return f"{shape[0]} hosts of {shape[1]}"


@pytest.fixture(scope="module", params=also_in_full([(2, 2), (2, 3), (3, 2)]), ids=named)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    hosts, each = request.param
    folder = tmp_path_factory.mktemp("rails")
    output = on_hosts(hosts, each, str(WORKERS / "rails.py"), RESULTS=str(folder))
    return collect(hosts * each, folder, output)


@pytest.mark.parametrize("case", cases_of("rails.py"))
def test_hosts_add_up_first(run: Run, case: str) -> None:
    run.check(case)


@pytest.mark.parametrize("moment", ["after", pytest.param("before", marks=FULL)])
@pytest.mark.parametrize("shape", also_in_full([(2, 2), (1, 3), (3, 2)]), ids=named)
def test_all_ranks_are_told_when_one_is_killed(group: Group, shape: tuple[int, int], moment: str) -> None:
    hosts, each = shape
    size = hosts * each
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("rails_killed.py", size, str(each), moment, **place)
    for status, output in group.finish()[:-1]:
        assert status == 42, output
        assert "next call: " in output and f"rank {size - 1} is lost" in output, output


def on_one_machine(script: str, folder: Path, *arguments: str) -> Run:
    """The cases of a worker with four ranks, which are told of which hosts they are."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RESULTS": str(folder)}
    with Group() as group:
        group.start_ranks(script, 4, *arguments, **place)
        outputs = [output for _, output in group.finish()]
    return collect(4, folder, "".join(outputs))


@pytest.fixture(scope="module")
def confused(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on_one_machine("rails_confused.py", tmp_path_factory.mktemp("confused"), "2")


@pytest.mark.parametrize("case", cases_of("rails_confused.py"))
def test_all_ranks_are_told_when_one_calls_something_else(confused: Run, case: str) -> None:
    confused.check(case)


def test_no_rank_waits_for_another_when_its_program_ends_with_open_groups(confused: Run) -> None:
    assert "leaving before" not in confused.output, confused.output


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on_one_machine("rails_said.py", tmp_path_factory.mktemp("said"))


@pytest.mark.parametrize("case", cases_of("rails_said.py"))
def test_whether_hosts_add_up_first(said: Run, case: str) -> None:
    said.check(case)


@FULL
@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (1, 3)])
def test_a_training_has_the_losses_of_gloo(group: Group, hosts: int, each: int) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("rails_ddp.py", hosts * each, str(each), **place)
    outcomes = group.finish()
    assert {status for status, _ in outcomes} == {0}, outcomes
