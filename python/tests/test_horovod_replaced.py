"""``HERRINGBONE_REPLACE=horovod``: programs that import Horovod run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment

PATHS = Path(__file__).parents[1] / "wheel.data" / "purelib"
"""Where the wheel's file is that Python reads when it starts."""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a Python that has read the wheel's file, as an installed one has."""
    started = f"import site; site.addsitedir({str(PATHS)!r})\n{code}"
    command = [sys.executable, "-W", "error::ImportWarning", "-c", started]
    return subprocess.run(command, env=clean_environment(environment), capture_output=True, text=True, timeout=120)


def test_a_program_finds_the_modules_under_horovods_names() -> None:
    pytest.importorskip("torch")
    code = """import horovod.torch as hvd
import herringbone.horovod.torch as own
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import env
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.mpi_ops import allreduce_async_, synchronize
assert hvd is own and hvd.HorovodInternalError is HorovodInternalError
assert (own.__name__, own.__spec__.name) == ("herringbone.horovod.torch",) * 2
import torch
hvd.init()
print(hvd.allreduce(torch.ones(2)).tolist())"""
    outcome = python(code, HERRINGBONE_REPLACE="gloo, horovod", HERRINGBONE_RANK="0", HERRINGBONE_WORLD_SIZE="1")
    assert outcome.stdout == "[1.0, 1.0]\n", outcome.stderr


def test_a_part_that_is_not_there_says_so() -> None:
    code = """for name in ("tensorflow", "keras", "spark.torch", "ray", "mxnet", "data", "metadata", "runner.elastic.driver"):
    try:
        __import__(f"horovod.{name}")
    except ImportError as error:
        print(error.name, "-", error)
try:
    import horovod.nothing
except ModuleNotFoundError as error:
    print(error)"""
    outcome = python(code, HERRINGBONE_REPLACE="horovod")
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("horovod.tensorflow - HERRINGBONE_REPLACE=horovod: Herringbone has no horovod.tensorflow")
    assert "horovod.numpy has the same functions" in lines[4]
    assert "use torch.utils.data" in lines[5] and "hvd.mpi_built()" in lines[6] and "horovodrun" in lines[7]
    assert len(lines) == 9 and lines[8] == "No module named 'horovod.nothing'"


def test_nothing_is_replaced_or_imported_unless_it_is_asked_for() -> None:
    for asked in ("", "gloo"):
        code = "import sys; print('herringbone' in sys.modules); import herringbone, horovod"
        outcome = python(code, HERRINGBONE_REPLACE=asked)
        assert outcome.stdout == "False\n" and "No module named 'horovod'" in outcome.stderr


def test_the_numpy_interface_and_the_launcher_import_no_torch() -> None:
    pytest.importorskip("numpy")
    code = "import sys, herringbone.horovod.numpy, herringbone.horovod.horovodrun; print('torch' in sys.modules)"
    assert python(code).stdout == "False\n"
