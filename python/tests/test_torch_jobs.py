"""How jobs of torch begin and end, what runs beside their collectives, and how many groups they may have."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import WORKERS, Group, Run, cases_of, clean_environment, forked, torchrun

from herringbone.torch import OLDEST
from lab.job import python


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("beside.py", 2, tmp_path_factory.mktemp("beside"), forked=False, TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.mark.parametrize("case", cases_of("beside.py"))
def test_beside_collectives(beside: Run, case: str) -> None:
    beside.check(case)


@pytest.fixture(scope="module")
def confused(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return forked("confused.py", 4, tmp_path_factory.mktemp("confused"))


@pytest.mark.parametrize("case", cases_of("confused.py"))
def test_no_wrong_sum_whatever_ranks_confuse(confused: Run, case: str) -> None:
    confused.check(case)


def meet(ranks: int, path: Path, *ways: str, **environment: str) -> list[str]:
    """What the ranks say that meet in these ways, one job after the other: its number, its way, and the outcome."""
    command = [python(), str(WORKERS / "meeting.py"), str(ranks), str(path), *ways]
    variables = clean_environment(environment)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    said = [line for line in done.stdout.splitlines() if re.match(r"\d \w+ (rank|file) ", line)]
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(said)


def outcomes(job: str, *ranks: str, file: bool) -> list[str]:
    return [f"{job} file {file}", *(f"{job} rank {rank} {outcome}" for rank, outcome in enumerate(ranks))]


def test_stores_that_the_program_makes(tmp_path: Path) -> None:
    assert meet(3, tmp_path / "own", "stores") == outcomes("0 stores", "added", "added", "added", file=False)


def test_ranks_that_meet_over_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 on its loopback interface: {error}")
    jobs = [outcomes(job, "added", "added", file=False) for job in ("0 ipv6", "1 port")]
    assert meet(2, tmp_path / "none", "ipv6", "port") == sum(jobs, [])


def test_a_file_that_a_job_has_left_serves_the_next(tmp_path: Path) -> None:
    """Over Gloo the next job may call addresses of the one before: it adds, or fails soon, or after five timeouts."""
    jobs = [outcomes(job, "added", "added", file=True) for job in ("0 crash", "1 crash", "2 file")]
    assert meet(2, tmp_path / "left", "crash", "crash", "file") == sum(jobs, [])


def test_a_file_of_a_job_that_did_not_form_serves_the_next(tmp_path: Path) -> None:
    """Its rank 0 has left an address, which the next job's rank 1 finds there before its own rank 0 comes."""
    jobs = [["0 alone file True"], outcomes("1 late", "added", "added", file=True)]
    assert meet(2, tmp_path / "left", "alone", "late") == sum(jobs, [])


def test_a_thousand_groups_of_eight_ranks(group: Group, tmp_path: Path) -> None:
    group.start(str(WORKERS / "many_groups.py"), str(tmp_path / "store"), forked=True)
    [(status, output)] = group.finish()
    assert status == 0 and sorted(re.findall(r"rank (\d) passed", output)) == list("01234567"), output


def python_with_torch(version: str, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where torch says that it has this version, and has nothing else."""
    package = folder / "torch"
    (package / "distributed").mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\nfrom . import distributed\n')
    (package / "distributed" / "__init__.py").write_text("class Backend: ...\ndef is_available(): return True\n")
    paths = [str(folder), *filter(None, [clean_environment().get("PYTHONPATH")])]
    environment = clean_environment({"PYTHONPATH": ":".join(paths)})
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


def test_a_torch_that_is_too_old_is_refused(tmp_path: Path) -> None:
    oldest = ".".join(map(str, OLDEST))
    message = f'needs torch {oldest} or later, and this is torch 2.9.1; pip install "torch>={oldest}"'
    done = python_with_torch("2.9.1+cpu", tmp_path / "one", "import herringbone.torch")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and last.startswith("ImportError: herringbone's") and message in last.replace("+cpu", "")
    done = python_with_torch("2.9.1", tmp_path / "two", "import torch, herringbone; print(herringbone.__version__)")
    assert done.returncode == 0 and done.stdout.count(".") == 2, done.stderr
    assert "torch 2.9.1 cannot use the backend 'herringbone'" in done.stderr and message in done.stderr
