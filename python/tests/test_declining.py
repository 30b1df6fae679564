"""A setting that a rank cannot use is an error on all ranks at once, and not after their timeouts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from conftest import Group, free_port

ALONE = """import herringbone
herringbone.init(timeout=600)"""

WITH_TORCH = """import torch.distributed as dist
dist.init_process_group("herringbone")"""


@pytest.mark.parametrize("wrong", [0, 2])
@pytest.mark.parametrize("program", [ALONE, WITH_TORCH], ids=["alone", "torch"])
def test_all_ranks_are_told_what_is_wrong_with_one(group: Group, program: str, wrong: int) -> None:
    if program == WITH_TORCH and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(3):
        own = {"HERRINGBONE_TRANSPORT": "tpc"} if rank == wrong else {}
        group.start("-c", program, forked=None, RANK=str(rank), **place, **own)
    for status, output in group.finish(120):
        assert status == 1 and "ConfigError" in output, output
        assert '"tpc" is not one of shm, tcp; did you mean tcp?' in output, output


LATER_PLAN = """import os
from herringbone.horovod.common.launched import Plan
from herringbone.horovod.common.settings import Settings
Plan(1, os.environ["PLACE"], (4, 5)).join(int(os.environ["OWN"]), 15, Settings.read())"""


def test_a_new_worker_of_a_later_plan_does_not_end_those_before_it(group: Group, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    for own, wrong in ((4, {}), (5, {"HERRINGBONE_CALIBRATION": str(tmp_path / "missing")})):
        group.start("-c", LATER_PLAN, forked=None, OWN=str(own), PLACE=place, **wrong)
    (_, stays), (_, declines) = group.finish(120)
    assert "ConfigError" in declines, declines
    # Workers try again after such an error, and it says what was in the way.
    assert "RendezvousError" in stays and "rank 1 cannot use HERRINGBONE_CALIBRATION" in stays, stays


def test_a_replica_that_cannot_use_a_setting_ends_its_quorum_at_once_and_no_later_one(group: Group) -> None:
    pytest.importorskip("torch")
    group.start_ranks("quorums.py", 2, MASTER_PORT=str(free_port()))
    for status, output in group.finish(120):
        first, refused, last = [line for line in output.splitlines() if line.startswith("quorum ")]
        assert status == 0 and first == "quorum 0: [2.0, 2.0, 2.0]" and last == "quorum 2: [2.0, 2.0, 2.0]", output
        assert '"tpc" is not one of shm, tcp' in refused, output


SOON = """import herringbone
herringbone.init(timeout=15)"""


def test_a_rank_of_another_job_does_not_end_this_one(group: Group) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start("-c", SOON, forked=None, RANK="0", HERRINGBONE_JOB="this", **place)
    group.start("-c", SOON, forked=None, RANK="1", HERRINGBONE_JOB="another", HERRINGBONE_TRANSPORT="tpc", **place)
    (_, waits), (_, declines) = group.finish(120)
    assert "ConfigError" in declines, declines
    assert "RendezvousError" in waits and "HERRINGBONE_JOB=another" in waits, waits
