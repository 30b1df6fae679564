"""Several hosts, with several ranks on each: shared memory inside them, sockets between them, in one operation."""

from __future__ import annotations

import json
import sys

import pytest
from conftest import WORKERS, Group, Run, cases_of, collect
from on_hosts import REFUSED

pytest.importorskip("ml_dtypes")


def on_hosts(hosts: int, each: int, *command: str, **environment: str) -> str:
    """What the ranks of a job on so many hosts print."""
    group = Group()
    try:
        group.start(str(WORKERS / "on_hosts.py"), str(hosts), str(each), sys.executable, *command, **environment)
        [(status, output)] = group.finish()
    finally:
        group.kill()
    if status == REFUSED:
        pytest.skip(f"hosts are network namespaces: {output.strip()}")
    assert status == 0, output
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("hosts")
    output = on_hosts(2, 2, str(WORKERS / "arrays.py"), RESULTS=str(folder))
    return collect(4, folder, output)


@pytest.mark.parametrize("case", cases_of("arrays.py"))
def test_arrays_between_hosts(run: Run, case: str) -> None:
    run.check(case)


@pytest.mark.parametrize(
    ("hosts", "each", "dtype", "folding", "gathering"),
    [
        (2, 4, "f32", "radix(4,2)", "radix(4,2)"),
        (2, 4, "bf16", "radix(4,2)", "radix(4,2)"),
        (3, 2, "f32", "radix(2,4)", "radix(2,4)"),
        (4, 1, "f32", "radix(2,2)", "radix(2,2)"),
        (4, 1, "bf16", "radix", "radix(2,2)"),
        (3, 1, "f32", "radix", "radix"),
    ],
)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_hosts_add_up_first(
    hosts: int, each: int, dtype: str, folding: str, gathering: str, collective: str
) -> None:
    """Every result is checked by bench itself; which algorithm, is what a user would see in its table."""
    words = ["--collective", collective, "--dtype", dtype, "--sizes", "100004,3M", "--seconds", "0.01", "--json"]
    output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["bytes"] for row in rows][1:] == [3 << 20], output
    for row in rows:
        assert all(row[way] is None or row[way]["wrong"] == 0 for way in ("in_place", "out_of_place")), row
    expected = gathering if collective == "all_gather" else folding
    assert {row["algorithm"] for row in rows} == {expected}, output


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (3, 2), (4, 1)])
def test_the_least_staging_memory_is_enough(hosts: int, each: int) -> None:
    """Ranks with more partners need more of it than others: the cut has to suit them all."""
    words = ["--sizes", "2400000,25M", "--seconds", "0.01", "--json"]
    output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words, HERRINGBONE_STAGING_BYTES="4M")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["in_place"]["wrong"] for row in rows] == [0, 0], output
