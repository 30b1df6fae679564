"""Ranks that add up on their hosts first: real processes on hosts that are network namespaces, with Gloo in NCCL's place."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from conftest import WORKERS, Run, cases_of, collect
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
