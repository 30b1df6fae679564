"""A schedule from a file: rank 0 reads and proves it for all ranks of a job, or no rank starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from conftest import Group, free_port

from lab.job import environment, python

SUMS = """import zlib
import herringbone
import numpy as np

with herringbone.init(timeout=60) as comm:
    for count in (0, 1, 5, 16_384, 100_003):
        values = (np.random.default_rng(comm.rank).standard_normal(count) * 1e3).astype(np.float32)
        comm.all_reduce(values)
        said = comm.explain(count).split(":")[0]
        print("sum", count, zlib.crc32(values.tobytes()), said, flush=True)"""


def shown(*words: str) -> str:
    """What the program prints."""
    program = [python(), "-m", "herringbone", *words]
    return subprocess.run(program, check=True, env=environment(), capture_output=True, text=True, timeout=60).stdout


def sums(group: Group, plan: str, world: int = 4, **of_others: str) -> list[tuple[int, str]]:
    """The status and the output of each rank of a job; ranks but the first may have another plan."""
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(world):
        own = {"HERRINGBONE_PLAN": plan} | (of_others if rank else {})
        group.start("-c", SUMS, forked=None, RANK=str(rank), **place, **own)
    return group.finish(120)


def lines(outputs: list[tuple[int, str]]) -> list[list[str]]:
    """The lines of sums, which all ranks have alike."""
    assert {status for status, _ in outputs} == {0}, outputs
    found = [[line for line in output.splitlines() if line.startswith("sum ")] for _, output in outputs]
    assert all(of_rank == found[0] for of_rank in found), found
    return [line.split(maxsplit=3) for line in found[0]]


@pytest.mark.parametrize("others", [{}, {"HERRINGBONE_PLAN": ""}], ids=["all-name-it", "rank-0-alone"])
def test_a_job_takes_the_schedule_of_a_file_to_the_same_bits(tmp_path: Path, group: Group, others: dict[str, str]) -> None:
    file = tmp_path / "found.txt"
    file.write_text("# by hand\n" + shown("show", "--algorithm", "radix(2,2)", "--ranks", "4"))
    taken = lines(sums(group, f"all_reduce:64K-inf:file={file}", **others))
    assert ["file=" in said for *_, said in taken] == [False, False, False, True, True], taken
    assert str(file) in taken[-1][-1] and "digest" in taken[-1][-1], taken
    with Group() as plain:
        expected = lines(sums(plain, "all_reduce:0-inf:radix"))
    assert [line[:3] for line in taken] == [line[:3] for line in expected]


@pytest.mark.parametrize(
    ("algorithm", "change", "world", "said"),
    [
        ("ring", ("", ""), 4, "its sums are not added in the order of ranks"),
        ("radix", ("", ""), 3, "its schedule is of 4 ranks, and the job has 3"),
        ("radix", ("finish", "fold"), 4, "it is no all_reduce"),
        ("radix", ("send", "sent"), 4, "expected send, recv, fold"),
        (None, ("", ""), 3, "No such file or directory"),
        ("reduction_server", ("", ""), 4, "a plan takes schedules of workers alone"),
    ],
)
def test_no_rank_starts_with_a_file_that_cannot_be_taken(
    tmp_path: Path, group: Group, algorithm: str | None, change: tuple[str, str], world: int, said: str
) -> None:
    file = tmp_path / "found.txt"
    if algorithm is not None:
        file.write_text(shown("show", "--algorithm", algorithm, "--ranks", "4").replace(*change, 1))
    for status, output in sums(group, f"all_reduce:64K-inf:file={file}", world):
        assert status == 1 and "ConfigError" in output and said in output, output


def test_a_file_is_read_up_to_a_limit(tmp_path: Path, group: Group) -> None:
    file = tmp_path / "found.txt"
    file.write_text("#" * (513 << 10))
    for status, output in sums(group, f"all_reduce:64K-inf:file={file}", 2):
        assert status == 1 and "more than 524288 bytes" in output, output
