"""LocalSGD and DiLoCo beside those of torchft, which average over herringbone.torchft, on the same model and seed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
coordination = pytest.importorskip("torchft.coordination", reason="torchft is not installed here: `make frameworks` runs this")

from conftest import WORKERS, Group

BOUND = 1e-6
"""Relative to the largest parameter, in float32: rounding."""


def test_the_results_are_those_of_torchft(group: Group) -> None:
    lighthouse = coordination.LighthouseServer(
        bind="[::]:0", min_replicas=2, join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    try:
        group.torchrun(str(WORKERS / "averaging_torchft.py"), 2, lighthouse.address())
        outcomes = group.finish(90)
    finally:
        lighthouse.shutdown()
    for status, output in outcomes:
        assert status == 0, output
        off = {kind: float(apart) for kind, apart in re.findall(r"^(local|diloco|streaming) (\S+)$", output, re.MULTILINE)}
        print(off)
        assert off.keys() == {"local", "diloco", "streaming"} and all(apart <= BOUND for apart in off.values()), output
