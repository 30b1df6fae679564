"""Compressed all-reduces, beside numpy's simulation of every codec."""

from __future__ import annotations

import pytest
from conftest import Run, cases_of
from test_arrays import SETTINGS, run_of

pytest.importorskip("ml_dtypes")


@pytest.fixture(scope="module", params=SETTINGS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of("compressed.py", request, tmp_path_factory)


@pytest.mark.parametrize("case", cases_of("compressed.py"))
def test_compressed(run: Run, case: str) -> None:
    run.check(case)
