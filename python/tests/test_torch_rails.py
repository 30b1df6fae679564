"""Ranks that add up on their hosts first: real processes on hosts that are network namespaces, with Gloo in NCCL's place."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from conftest import WORKERS, Group, Run, cases_of, collect
from ports import free_port
from test_hosts import on_hosts

SHAPES = [(2, 2), (2, 3), (3, 2)]


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]} hosts of {shape[1]}")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    hosts, each = request.param
    folder = tmp_path_factory.mktemp("rails")
    output = on_hosts(hosts, each, str(WORKERS / "rails.py"), RESULTS=str(folder))
    return collect(hosts * each, folder, output)


@pytest.mark.parametrize("case", cases_of("rails.py"))
def test_hosts_add_up_first(run: Run, case: str) -> None:
    run.check(case)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (1, 3), (3, 2)])
def test_all_ranks_are_told_when_one_is_killed(group: Group, hosts: int, each: int, moment: str) -> None:
    size = hosts * each
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("rails_killed.py", size, str(each), moment, **place)
    for status, output in group.finish()[:-1]:
        assert status == 42, output
        assert "next call: " in output and f"rank {size - 1} is lost" in output, output


@pytest.mark.parametrize("way", ["length", "op", "type", "leaves", "aborts"])
def test_all_ranks_are_told_when_one_calls_something_else(group: Group, way: str) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("rails_confused.py", 4, "2", way, **place)
    outcomes = group.finish()
    for status, output in outcomes if way != "leaves" else outcomes[:-1]:
        assert status == 0 and "next call: " in output, output


NONE = "no ranks add up on their host first: "


@pytest.mark.parametrize(
    ("hosts", "devices", "variables", "said"),
    [
        ("a,a,b,b", "0,1,0,1", {}, "the 2 ranks of each of 2 hosts add up first, by gloo"),
        ("a,b,a,b", "0,0,1,1", {}, "the 2 ranks of each of 2 hosts add up first, by gloo"),
        ("a,b,b,a", "0,0,1,1", {}, "the 2 ranks of each of 2 hosts add up first, by gloo"),
        ("a,a,a", "0,1,2", {}, "the 3 ranks of each of 1 host add up first, by gloo"),
        (
            "a,a,a,b",
            "0,1,2,0",
            {},
            NONE + "hosts differ in the number of their ranks: that of rank 0 has 3, that of rank 3 has 1",
        ),
        ("a,a,b,b", "0,0,0,1", {}, NONE + "ranks 0 and 1 share a device"),
        ("a,b", "0,0", {}, NONE + "no host has several ranks"),
        ("a,a,b,b", "0,1,0,1", {"HERRINGBONE_LOCAL_SUMS": "off"}, NONE + "it is switched off"),
    ],
)
def test_whether_hosts_add_up_first(group: Group, hosts: str, devices: str, variables: dict[str, str], said: str) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables}
    group.start_ranks("rails_said.py", len(hosts.split(",")), hosts, devices, **place)
    outcomes = group.finish()
    assert {status for status, _ in outcomes} == {0}, outcomes
    assert f"said: {[said]}" in outcomes[0][1]


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (1, 3)])
def test_a_training_has_the_losses_of_gloo(group: Group, hosts: int, each: int) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("rails_ddp.py", hosts * each, str(each), **place)
    outcomes = group.finish()
    assert {status for status, _ in outcomes} == {0}, outcomes
