"""Horovod's interface for numpy, and the variables that it reads, in real processes."""

from __future__ import annotations

import sys

import pytest
from conftest import Run, cases_of, horovodrun

import herringbone
from herringbone.horovod.common.settings import Settings, variables_without_effect

pytest.importorskip("numpy")

SCRIPT = "horovod_numpy.py"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All cases on three ranks."""
    run = horovodrun(SCRIPT, 3, tmp_path_factory.mktemp("horovod"), sys.executable, HOROVOD_TORUS_ALLREDUCE="1")
    assert run.output.count("these variables have no effect: HOROVOD_TORUS_ALLREDUCE") == 1
    return run


@pytest.mark.parametrize("case", cases_of(SCRIPT))
def test_on_three_ranks(three: Run, case: str) -> None:
    three.check(case)


def test_variables_are_read_in_their_units() -> None:
    said = {
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_TIMELINE": "DYNAMIC",
        "HOROVOD_DISABLE_GROUP_FUSION": "true",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "9",
    }
    settings = Settings.read(said)
    assert (settings.cycle_time, settings.fusion_threshold, settings.stall_warning) == (0.0025, 0, 7.0)
    assert (settings.autotune, settings.autotune_log, settings.timeline) == (True, "log.csv", None)
    assert (settings.group_fusion, settings.operation_timeout) == (False, 9.0)
    assert variables_without_effect(said | {"HOROVOD_NUM_NCCL_STREAMS": "2"}) == ["HOROVOD_NUM_NCCL_STREAMS"]
    assert Settings.read({}) == Settings()
    assert Settings.read({"HOROVOD_STALL_CHECK_DISABLE": "1"}).stall_warning == 0


@pytest.mark.parametrize("wrong", ["fast", "-1", "nan", "inf"])
def test_a_variable_that_is_no_number_is_refused(wrong: str) -> None:
    with pytest.raises(herringbone.ConfigError, match=f"HOROVOD_CYCLE_TIME: '{wrong}' is not a number"):
        Settings.read({"HOROVOD_CYCLE_TIME": wrong})
