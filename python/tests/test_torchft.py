"""Replicas that torchft's manager leads: one is killed, the other goes on, and the next one takes its place."""

from __future__ import annotations

import re
import signal
import time

import pytest

pytest.importorskip("torch")
coordination = pytest.importorskip("torchft.coordination", reason="torchft is not installed here: `make frameworks` runs this")
process_group = pytest.importorskip("torchft.process_group")

import torch.distributed as dist
from conftest import WORKERS, Group

WAYS = ["torchft", "torch"]
"""The group is one of torchft's kind, or one of torch that is reconfigured."""

if not hasattr(process_group, "reconfigure_with_store"):
    pytest.skip("the DDP of this torchft ends a replica whose step another one fails", allow_module_level=True)


@pytest.mark.parametrize("way", WAYS)
def test_training_goes_on_while_a_replica_is_killed_and_started_again(group: Group, way: str) -> None:
    if way == "torch" and not hasattr(dist.ProcessGroup, "reconfigure"):
        pytest.skip("torch has its reconfigure interface from 2.14 on")
    lighthouse = coordination.LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=50, heartbeat_timeout_ms=1000
    )
    try:
        begin = [str(WORKERS / "replica.py"), lighthouse.address()]
        group.start(*begin, "0", way, "lives")
        victim = group.start(*begin, "1", way, "dies")
        assert victim.wait(120) == -signal.SIGKILL
        time.sleep(1)
        group.start(*begin, "1", way, "lives")
        survivor, _, successor = group.finish(60)
    finally:
        lighthouse.shutdown()
    assert survivor[0] == successor[0] == 0, survivor[1] + successor[1]
    steps = "\n".join(re.findall(r"^step \d+ of .*$", survivor[1], re.MULTILINE))
    assert re.search(r"of 2 done\n(.*left out\n)+(.*of 1 done\n)+(.*of 2 done\n?)+$", steps), steps
    weights = [re.findall(r"^weights (.*)$", output, re.MULTILINE) for _, output in (survivor, successor)]
    assert len(weights[0]) == 1 and weights[0] == weights[1], weights
