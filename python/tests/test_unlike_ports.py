"""Hosts whose ports are not alike: a job that measures them gives the slow one less to carry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import WORKERS, Group

from lab.hosts import Namespaces, NoNamespaces
from lab.job import python

HOSTS, FAST, SLOW = 4, 500, 100
HEADERS = 1.08
"""What headers, acknowledgements and control messages add to the payload at most."""


def job(folder: Path, **environment: str) -> list[dict[str, object]]:
    """What each rank of a job has found, one rank on each host; the last host's port is slow."""
    folder.mkdir()
    try:
        with Namespaces(HOSTS, FAST, {HOSTS - 1: SLOW}) as spaces, Group() as ranks:
            common = {"WORLD_SIZE": str(HOSTS), "LOCAL_WORLD_SIZE": "1", "HERRINGBONE_STORE": f"{spaces.address(0)}:29501"}
            common |= {"MASTER_ADDR": spaces.address(0), "MASTER_PORT": "29500", "RESULTS": str(folder)}
            common |= {"HERRINGBONE_TOKEN": "unlike-ports-of-tests", "PYTHON_EXEC": python(), **environment}
            for rank, host in enumerate(spaces.hosts):
                place = {"RANK": str(rank), "LOCAL_RANK": "0", "HOST_ADDRESS": spaces.address(rank)}
                ranks.start(str(WORKERS / "counted_ports.py"), host=host, forked=None, **common, **place)
            statuses = {status for status, _ in ranks.finish()}
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")
    assert statuses == {0}, "".join(ranks.lines)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(HOSTS)]


@pytest.mark.full
def test_a_slow_port_carries_the_buffer_once_each_way(tmp_path: Path) -> None:
    blind = job(tmp_path / "blind")
    assert all(1.45 < rank["out"] < 1.5 * HEADERS for rank in blind), blind  # type: ignore[operator]
    measured = job(tmp_path / "measured", HERRINGBONE_TOPOLOGY="measure")
    assert len({str(rank["plan"]) for rank in measured}) == 1, "all ranks plan alike"
    plan = str(measured[-1]["plan"])
    # On a busy machine another port may be measured as slower than it is, and then owns less.
    shares = plan.partition("weighted(radix,")[2].partition("): the port of rank 3's host")[0]
    assert shares.endswith(",0"), plan
    slow = measured[-1]
    assert all(0.99 < float(str(slow[way])) < HEADERS for way in ("into", "out")), slow


@pytest.mark.full
def test_a_file_of_ports_does_the_same(tmp_path: Path) -> None:
    nodes = [{"name": f"host{host}", "kind": "host"} for host in range(HOSTS)]
    rates = [FAST / 8000] * (HOSTS - 1) + [SLOW / 8000]
    ports = [{"host": f"host{host}", "out": rate, "into": rate} for host, rate in enumerate(rates)]
    file = tmp_path / "ports.json"
    file.write_text(json.dumps({"nodes": nodes, "ports": ports}))
    known = job(tmp_path / "known", HERRINGBONE_TOPOLOGY=str(file))
    assert str(known[0]["plan"]).startswith("weighted(radix,16x3,0): "), known[0]
    assert 0.99 < float(str(known[-1]["out"])) < HEADERS, known[-1]
