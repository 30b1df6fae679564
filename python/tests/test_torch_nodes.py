"""Several nodes, each with a torchrun of its own, as network namespaces."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("torch")

from conftest import WORKERS
from test_hosts import on_hosts

NODES, EACH = 2, 2


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the ranks have written in both lives of the job, by file."""
    folder = tmp_path_factory.mktemp("nodes")
    output = on_hosts(NODES, 1, str(WORKERS / "nodes.py"), str(NODES), str(EACH), RESULTS=str(folder))
    return {"output": output, **{file: (folder / file).read_text() for file in os.listdir(folder)}}


def test_a_rank_that_is_killed_on_one_node_is_named_on_all(said: dict[str, str]) -> None:
    last = NODES * EACH - 1
    reported = {name: text for name, text in said.items() if name.startswith("told")}
    assert sorted(reported) == [f"told{rank}" for rank in range(last)], said
    for text in reported.values():
        assert re.match(rf"PeerLostError: .*\brank {last}\b", text), reported


def test_all_nodes_start_again_and_add_right(said: dict[str, str]) -> None:
    done = {name: text for name, text in said.items() if name.startswith("done")}
    nodes = {f"done{rank}": f"life 1, node {rank // EACH}" for rank in range(NODES * EACH)}
    assert done == nodes, said
