"""``horovod.run``: functions as the ranks of a job."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import START_SECONDS, clean_environment

from herringbone import horovod
from herringbone.horovod import runner
from herringbone.horovod.launch import Job

np = pytest.importorskip("numpy")

PATHS = Path(__file__).parents[1] / "wheel.data" / "purelib"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run inside of a job; the functions are found in this file."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def places(factor: int, *, offset: int = 0) -> tuple[int, list[float], int]:
    """A rank, a sum over ranks, and what it was called with."""
    import herringbone.horovod.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.full(2, hvd.rank() + 1.0), op=hvd.Sum)
    return hvd.rank(), total.tolist(), factor * hvd.rank() + offset


def failing(victim: int) -> None:
    """Fails on one rank; the others wait for it."""
    import herringbone.horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == victim:
        raise KeyError("no such sample")
    hvd.barrier()


def test_the_results_come_in_the_order_of_the_ranks() -> None:
    assert horovod.run(places, (10,), {"offset": 1}, np=2) == [(0, [3.0, 3.0], 1), (1, [3.0, 3.0], 11)]
    assert horovod.run(os.getpid) != [os.getpid()]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_failure_names_the_rank_and_has_its_traceback(victim: int) -> None:
    with pytest.raises(RuntimeError) as caught:
        horovod.run(failing, (victim,), np=2)
    text = str(caught.value)
    assert text.startswith(f"horovod.run: the function failed on rank {victim}:\nTraceback")
    assert "in failing" in text and text.rstrip().endswith("KeyError: 'no such sample'")


def test_a_process_that_ends_is_named() -> None:
    with pytest.raises(RuntimeError, match="the process of rank 0 ended with exit status 7"):
        horovod.run(os._exit, (7,))
    with pytest.raises(RuntimeError, match=f"rank 0 ended with exit status {128 + signal.SIGKILL}"):
        horovod.run(_killed)
    with pytest.raises(RuntimeError, match="the function returned a generator that cannot be sent"):
        horovod.run(_generator)


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _generator() -> Any:
    return (number for number in range(3))


def test_mistakes_are_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="far.example is another host.*herringbone horovodrun -H far.example:N python"):
        horovod.run(places, hosts="localhost:1,far.example:1")
    with pytest.raises(ValueError, match="num_proc is 0; it is a number of processes, 1 or more"):
        horovod.run(places, np=0)
    with pytest.raises(TypeError, match="func is a int, not a function"):
        horovod.run(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="it has no argument 'processes'"):
        horovod.run(places, processes=3)
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        horovod.run(places, (_generator(),))
    with pytest.raises(ValueError, match="cannot start '/no/such/python'"):
        horovod.run(places, executable="/no/such/python")


def test_what_is_executed_comes_from_a_file_of_this_user_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Looking(Job):
        def run(self) -> int:
            folder = Path(self._options.command[-1])
            seen.extend(stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (folder, folder / "call"))
            return super().run()

    monkeypatch.setattr(runner, "Job", Looking)
    assert horovod.run(os.getppid) == [os.getpid()]
    assert seen == [0, 0]


PROGRAM = """import sys
import horovod
def rank(add):
    import horovod.numpy as hvd
    hvd.init()
    return hvd.rank() + add
if "guarded" not in sys.argv or __name__ == "__main__":
    print(horovod.run(rank, args=(5,), np=2))
"""


def test_functions_of_a_program_need_cloudpickle_or_a_guard(tmp_path: Path) -> None:
    program, without = tmp_path / "program.py", tmp_path / "without" / "cloudpickle.py"
    program.write_text(f"import site; site.addsitedir({str(PATHS)!r})\n{PROGRAM}")
    without.parent.mkdir()
    without.write_text("raise ImportError('it is not there')\n")

    def started(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = clean_environment({"HERRINGBONE_REPLACE": "horovod", **environment})
        command = [sys.executable, str(program), *words]
        return subprocess.run(command, env=given, capture_output=True, text=True, timeout=START_SECONDS)

    path = {"PYTHONPATH": os.pathsep.join([str(without.parent), os.environ.get("PYTHONPATH", "")])}
    guarded = started("guarded", **path)
    assert guarded.stdout == "[5, 6]\n", guarded.stderr
    again = started(**path)
    assert again.returncode == 1 and 'below `if __name__ == "__main__":`' in again.stderr
    command = [sys.executable, "-c", "from herringbone import horovod\ndef one(): return 1\nprint(horovod.run(one, np=2))"]
    typed = subprocess.run(command, env=clean_environment(path), capture_output=True, text=True, timeout=START_SECONDS)
    assert typed.returncode == 1 and "one is from a program without a file" in typed.stderr, typed.stderr
    assert "install the package cloudpickle" in typed.stderr and typed.stdout == ""
    pytest.importorskip("cloudpickle", reason="only it sends functions of a program that has no guard")
    assert started().stdout == "[5, 6]\n"
