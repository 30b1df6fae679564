"""Horovod's interface for torch in real processes, started as Horovod's users start theirs."""

from __future__ import annotations


import pytest
from conftest import Run, cases_of, horovodrun

from lab.job import python

pytest.importorskip("torch")

SCRIPT = "horovod_torch.py"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All cases on four ranks."""
    return horovodrun(SCRIPT, 4, tmp_path_factory.mktemp("horovod"), python())


@pytest.mark.parametrize("case", cases_of(SCRIPT))
def test_on_four_ranks(four: Run, case: str) -> None:
    four.check(case)
