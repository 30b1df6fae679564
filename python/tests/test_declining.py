"""A setting that a rank cannot use is an error on all ranks at once, and not after their timeouts."""

from __future__ import annotations

import importlib.util

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
