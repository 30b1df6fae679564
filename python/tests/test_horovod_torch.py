"""Horovod's interface for torch in real processes, started as Horovod's users start theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Group, Run, cases_of, collect

from lab.job import python

pytest.importorskip("torch")

SCRIPT = "horovod_torch.py"
WORKER = Path(__file__).parent / "workers" / SCRIPT


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All cases on four ranks."""
    folder, group = tmp_path_factory.mktemp("horovod"), Group()
    try:
        command = ["-m", "herringbone", "horovodrun", "-np", "4", python(), str(WORKER)]
        group.start(*command, RESULTS=str(folder))
        [(_, output)] = group.finish()
    finally:
        group.kill()
    return collect(4, folder, output)


@pytest.mark.parametrize("case", cases_of(SCRIPT))
def test_on_four_ranks(four: Run, case: str) -> None:
    four.check(case)
