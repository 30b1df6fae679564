"""Jobs that know how fast their links are: their sums, and what ranks are told that do not agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import Run, forked, torchrun

RANKS = 4
LINKS = [[0, 1, 3, 2], [1, 0, 2, 3], [3, 2, 0, 1], [2, 3, 1, 0]]
"""The fast ones are not those of the usual order, which begins with ranks 0 and 1."""


def links(folder: Path, matrix: list[list[int]] = LINKS) -> str:
    file = folder / f"links-{len(list(folder.iterdir()))}.json"
    file.write_text(json.dumps(matrix))
    return str(file)


def job(folder: Path, name: str, start: Callable[..., Run] = forked, **environment: str) -> Run:
    results = folder / name
    results.mkdir()
    return start("linked.py", RANKS, results, **environment)


def same_on_all_ranks(run: Run) -> dict[str, str]:
    assert run.ranks[0] and all(rank == run.ranks[0] for rank in run.ranks), [*run.ranks, run.output[-3000:]]
    return {name: bits for name, bits in run.ranks[0].items() if name != "plan"}


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The bits of a job that knows nothing of its links."""
    return same_on_all_ranks(job(tmp_path_factory.mktemp("links"), "blind"))


def test_trees_of_a_topology_add_in_the_usual_order_or_in_their_own(tmp_path: Path, blind: dict[str, str]) -> None:
    known = {"HERRINGBONE_TOPOLOGY": links(tmp_path), "HERRINGBONE_TREE_ARRAY_BOUND": "1000"}
    canonical = job(tmp_path, "canonical", HERRINGBONE_ALGORITHM="trees", **known)
    assert same_on_all_ranks(canonical) == blind
    assert canonical.ranks[0]["plan"] == "trees: forced"
    chosen = job(tmp_path, "chosen", **known)
    assert same_on_all_ranks(chosen) == blind
    assert "slowest link is busy for" in chosen.ranks[0]["plan"]
    best = job(tmp_path, "best", HERRINGBONE_ALGORITHM="trees(best)", **known)
    # The ranks agree on bits that are not those of the usual order.
    assert same_on_all_ranks(best)["float32"] != blind["float32"]
    assert best.ranks[0]["plan"] == "trees(best): forced"


def test_a_job_measures_its_links_and_keeps_its_bits(tmp_path: Path, blind: dict[str, str]) -> None:
    measured = job(tmp_path, "measured", HERRINGBONE_TOPOLOGY="measure", HERRINGBONE_ALGORITHM="trees")
    assert same_on_all_ranks(measured) == blind
    assert "] the ranks measure their links in" in measured.output
    assert "GB/s" in measured.output


def test_a_rank_with_other_links_is_refused_with_both_digests(tmp_path: Path) -> None:
    other = [[entry + (entry > 0) for entry in row] for row in LINKS]
    # torchrun ends the other ranks at once.
    run = job(tmp_path, "other", torchrun, HERRINGBONE_TOPOLOGY=links(tmp_path), OTHER_LINKS=links(tmp_path, other))
    error = run.ranks[2]["error"]
    assert error.startswith("RendezvousError"), error
    digests = error.partition('HERRINGBONE_TOPOLOGY = "')[2]
    theirs, _, rest = digests.partition('", rank 0 has "')
    assert len(theirs) == 16 and theirs != rest[:16] and "set it to the same on every rank" in rest, error
