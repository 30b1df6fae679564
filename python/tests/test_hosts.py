"""Several hosts, with several ranks on each: shared memory inside them, sockets between them, in one operation."""

from __future__ import annotations

import json

import pytest
from conftest import WORKERS, Group, Run, cases_of, collect

from lab.hosts import Namespaces, NoNamespaces
from lab.job import python

pytest.importorskip("ml_dtypes")

COLLECTIVES = ["all_reduce", "reduce_scatter", "all_gather"]
HIERARCHICAL = "hierarchical(radix,radix)"


def on_hosts(hosts: int, each: int, *command: str, reducers: int = 0, **environment: str) -> str:
    """What the ranks of a job on so many hosts print; reducers have hosts of their own."""
    try:
        with Namespaces(hosts + reducers) as spaces, Group() as serving, Group() as ranks:
            served = [f"{spaces.address(hosts + reducer)}:7070" for reducer in range(reducers)]
            store, port = f"{spaces.address(0)}:29501", "29500"
            common = {"WORLD_SIZE": str(hosts * each), "LOCAL_WORLD_SIZE": str(each), "HERRINGBONE_STORE": store}
            common |= {"MASTER_ADDR": spaces.address(0), "MASTER_PORT": port, "HERRINGBONE_REDUCERS": ",".join(served)}
            common |= {"HERRINGBONE_TOKEN": "hosts-of-these-tests", "PYTHON_EXEC": python(), **environment}
            for at, host in zip(served, spaces.hosts[hosts:], strict=True):
                serving.start("-m", "herringbone", "serve", "--listen", at, host=host, **common)
            for rank in range(hosts * each):
                host, local = divmod(rank, each)
                place = {"RANK": str(rank), "LOCAL_RANK": str(local), "HOST_ADDRESS": spaces.address(host)}
                ranks.start(*command, host=spaces.hosts[host], forked=None, **common, **place)
            statuses = {status for status, _ in ranks.finish()}
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")
    output = "".join(ranks.lines)
    assert statuses == {0}, output
    return output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("hosts")
    output = on_hosts(2, 2, str(WORKERS / "arrays.py"), RESULTS=str(folder))
    return collect(4, folder, output)


@pytest.mark.parametrize("case", cases_of("arrays.py"))
def test_arrays_between_hosts(run: Run, case: str) -> None:
    run.check(case)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("served")
    forced = {"HERRINGBONE_ALGORITHM": "hierarchical(radix,reduction_server)", "RESULTS": str(folder)}
    output = on_hosts(2, 2, str(WORKERS / "arrays.py"), reducers=3, **forced)
    return collect(4, folder, output)


@pytest.mark.parametrize("case", cases_of("arrays.py"))
def test_arrays_through_reducers(served: Run, case: str) -> None:
    served.check(case)


@pytest.mark.parametrize(("hosts", "each", "reducers", "dtype"), [(4, 2, 3, "f32"), (4, 2, 4, "bf16"), (3, 4, 3, "f32")])
def test_hosts_add_up_before_reducers_do(hosts: int, each: int, reducers: int, dtype: str) -> None:
    """Also where there are fewer reducers than hosts, and where a rank's memory is small."""
    words = ["--dtype", dtype, "--sizes", "1600004,12M", "--seconds", "0.01", "--json"]
    for memory in ("64M", "4M"):
        output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words, reducers=reducers, HERRINGBONE_STAGING_BYTES=memory)
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        assert [row["in_place"]["wrong"] for row in rows] == [0, 0], output
        assert {row["algorithm"] for row in rows} == {"hierarchical(radix,reduction_server)"}, output


@pytest.mark.parametrize(
    ("hosts", "each", "dtype", "expected"),
    [
        (2, 4, "f32", ["radix(4,2)", "radix(4,2)", "radix(4,2)"]),
        (2, 4, "bf16", ["radix(4,2)", "radix(4,2)", "radix(4,2)"]),
        (3, 2, "f32", ["radix(2,4)", "radix(2,4)", "radix(2,4)"]),
        (4, 1, "f32", ["radix(2,2)", "radix(2,2)", "radix(2,2)"]),
        (4, 1, "bf16", ["radix(4;2,2)", "radix", "radix(2,2)"]),
        (3, 1, "f32", ["radix", "radix", "radix"]),
        (2, 3, "f32", 3 * [HIERARCHICAL]),
        (2, 3, "bf16", [HIERARCHICAL, "radix", HIERARCHICAL]),
        (3, 3, "f32", 3 * [HIERARCHICAL]),
        (2, 6, "bf16", 3 * [HIERARCHICAL]),
    ],
)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_hosts_add_up_first(hosts: int, each: int, dtype: str, expected: list[str], collective: str) -> None:
    """Every result is checked by bench itself; which algorithm, is what a user would see in its table."""
    words = ["--collective", collective, "--dtype", dtype, "--sizes", "100004,3M", "--seconds", "0.01", "--json"]
    output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["bytes"] - (3 << 20) in range(4 * hosts * each) for row in rows] == [False, True], output
    for row in rows:
        assert all(row[way] is None or row[way]["wrong"] == 0 for way in ("in_place", "out_of_place")), row
    assert {row["algorithm"] for row in rows} == {expected[COLLECTIVES.index(collective)]}, output


@pytest.mark.parametrize(
    ("hosts", "each", "reducers", "expected"),
    [
        (2, 3, 0, "radix(4,2)"),
        (2, 6, 0, "radix(8,2)"),
        (3, 3, 0, "radix(4,4)"),
        (3, 3, 3, "hierarchical(radix,reduction_server)"),
    ],
)
def test_hosts_are_nodes_where_the_order_goes_by_them(hosts: int, each: int, reducers: int, expected: str) -> None:
    words = ["--sizes", "12M", "--seconds", "0.01", "--json"]
    output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words, reducers=reducers, HERRINGBONE_FOLD_ORDER="hosts")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [(row["algorithm"], row["in_place"]["wrong"]) for row in rows] == [(expected, 0)], output


@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (3, 2), (4, 1), (3, 3)])
def test_the_least_staging_memory_is_enough(hosts: int, each: int) -> None:
    """Ranks with more partners need more of it than others: the cut has to suit them all."""
    words = ["--sizes", "2400000,25M", "--seconds", "0.01", "--json"]
    output = on_hosts(hosts, each, "-m", "herringbone", "bench", *words, HERRINGBONE_STAGING_BYTES="4M")
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [row["in_place"]["wrong"] for row in rows] == [0, 0], output


def test_forced_algorithms_end_where_some_ranks_only_talk_to_their_own_host() -> None:
    """More segments than windows hold, and ranks that begin several at once beside ranks that send over links."""
    names = [
        *("tree", "trees", "trees(single)", "trees(mxnet)", "trees(mxnet,single)", "trees(best)", "trees(best,single)"),
        *("trees(throughput)", "double_tree", "chain", "star", "ring", "radix", "radix(;4,2)", "doubling", "one_shot"),
        HIERARCHICAL,
    ]
    counts = [4_800_000 + 1000 * number for number in range(len(names))]
    rules = [f"all_reduce:{4 * count}-{4 * count + 4}:{name}" for count, name in zip(counts, names, strict=True)]
    environment = {"HERRINGBONE_PLAN": ",".join(rules), "HERRINGBONE_TREE_ARRAY_BOUND": "0"}
    output = on_hosts(3, 2, str(WORKERS / "forced.py"), *map(str, counts), **environment)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert rows == [{"algorithm": name, "wrong": 0} for name in names], output


@pytest.mark.full
def test_shards_have_the_bits_of_one_worker_on_hosts() -> None:
    """Whose sums are made inside of hosts first, or by reducers."""

    def steps(hosts: int, each: int, **settings: object) -> set[str]:
        output = on_hosts(hosts, each, str(WORKERS / "sharded.py"), "3", "convolutional", "bf16", **settings)  # type: ignore[arg-type]
        return {line for line in output.splitlines() if line.startswith("step")}

    alone = steps(1, 1)
    assert len(alone) == 6
    assert steps(2, 3) == alone
    forced = {"HERRINGBONE_ALGORITHM": "hierarchical(radix,reduction_server)"}
    assert steps(2, 4, reducers=2, **forced) == alone
