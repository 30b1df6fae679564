"""Trainings of DDP with compressed gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import Run, cases_of, torchrun


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("compressed_ddp.py", 2, tmp_path_factory.mktemp("compressed_ddp"))


@pytest.mark.parametrize("case", cases_of("compressed_ddp.py"))
def test_trainings(trained: Run, case: str) -> None:
    trained.check(case)


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("corrected_ddp.py", 2, tmp_path_factory.mktemp("corrected_ddp"))


@pytest.mark.parametrize("case", cases_of("corrected_ddp.py"))
def test_corrected_gradients(corrected: Run, case: str) -> None:
    corrected.check(case)


@pytest.mark.full
def test_momentum_before_a_codec_pays(tmp_path: Path) -> None:
    run = torchrun("corrected_gain.py", 2, tmp_path)
    for case in cases_of("corrected_gain.py"):
        run.check(case)
