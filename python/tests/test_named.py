"""Operations with names, which ranks submit in any order, in real processes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Group, free_port

pytest.importorskip("numpy")


def run(group: Group, size: int, way: str, *arguments: str, seconds: float = 120) -> list[dict[str, Any]]:
    """What each of ``size`` ranks says at its end."""
    group.start_ranks("named.py", size, way, *arguments, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    said = []
    for status, output in group.finish(seconds):
        assert status == 0, output
        said.append(json.loads(output.strip().splitlines()[-1]))
    return said


def test_names_come_in_any_order_and_the_cache_saves_rank_0_all(group: Group) -> None:
    for rank in run(group, 3, "any_order"):
        first, last = rank["first"], rank["last"]
        assert last["responses"] == 30 * 40 and last["uncached_requests"] == 40
        assert first["bytes_to_coordinator"] == last["bytes_to_coordinator"] > 0
        assert last["fused_tensors"] > 1000
