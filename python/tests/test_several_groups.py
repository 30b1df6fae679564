"""Processes that join their job several times: by stores, by init, by Horovod's interface."""

from __future__ import annotations


import pytest
from conftest import START_SECONDS, WORKERS, Group, free_port

from lab.job import python

pytest.importorskip("numpy")

ORDERS = [
    "store-store",
    "init-store",
    "store-init",
    "store-hvd",
    "hvd-store-init",
    "store-close-store-init",
    "init-options",
    "init-init-first",
]


def where() -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_that_are_started_plainly_make_several_groups(group: Group, order: str) -> None:
    group.start_ranks("several_groups.py", 2, order, **where())
    for rank, (status, output) in enumerate(group.finish(START_SECONDS)):
        assert status == 0 and f"done {rank} of 2" in output, output


@pytest.mark.parametrize("launcher", ["herringbone launch -n", "torch.distributed.run --nproc-per-node"])
def test_ranks_of_a_launcher_make_several_groups(group: Group, launcher: str) -> None:
    if launcher.startswith("torch"):
        pytest.importorskip("torch")
    program = [str(WORKERS / "several_groups.py"), "store-hvd-init-store"]
    between = ["--", python()] if launcher.startswith("herringbone") else []
    group.start("-m", *launcher.split(), "2", *between, *program)
    [(status, output)] = group.finish(START_SECONDS)
    assert status == 0 and "done 0 of 2" in output and "done 1 of 2" in output, output


@pytest.mark.full
def test_a_process_alone_makes_several_groups(group: Group) -> None:
    group.start(str(WORKERS / "several_groups.py"), "store-init-hvd-store")
    [(status, output)] = group.finish(START_SECONDS)
    assert status == 0 and "done 0 of 1" in output, output


def test_a_group_of_torch_that_has_the_address_is_named(group: Group) -> None:
    pytest.importorskip("torch")
    group.start_ranks("several_groups.py", 2, "torch", **where())
    for status, output in group.finish(START_SECONDS):
        assert status == 0, output
