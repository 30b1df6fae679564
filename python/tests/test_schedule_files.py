"""A schedule from a file: rank 0 reads and proves it for all ranks of a job, or no rank starts."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
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


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: texts between ranks are cut, and an error of a file begins with its path."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


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
    folder: Path, group: Group, algorithm: str | None, change: tuple[str, str], world: int, said: str
) -> None:
    file = folder / "found.txt"
    if algorithm is not None:
        file.write_text(shown("show", "--algorithm", algorithm, "--ranks", "4").replace(*change, 1))
    for status, output in sums(group, f"all_reduce:64K-inf:file={file}", world):
        assert status == 1 and "ConfigError" in output and said in output, output


def test_a_schedule_of_hosts_needs_their_order(folder: Path, group: Group) -> None:
    """Here all ranks are on one host, so the order of hosts is that of ranks, which a schedule of two hosts of three does not have."""
    file = folder / "found.txt"
    words = ["--algorithm", "hierarchical", "--ranks", "6", "--per-host", "3", "--fold-order", "hosts"]
    file.write_text(shown("show", *words))
    for status, output in sums(group, f"all_reduce:64K-inf:file={file}", 6):
        assert status == 1 and "its sums are not added in the order of ranks" in output, output


def test_a_file_is_read_up_to_a_limit(folder: Path, group: Group) -> None:
    file = folder / "found.txt"
    file.write_text("#" * (513 << 10))
    for status, output in sums(group, f"all_reduce:64K-inf:file={file}", 2):
        assert status == 1 and "more than 524288 bytes" in output, output


SLOW_PAIRS = "0,0.1,1,1\n0.1,0,1,1\n1,1,0,0.1\n1,1,0.1,0\n"
"""Links of four ranks in GB/s; two pairs have slow ones."""


def test_a_job_runs_what_a_search_finds(tmp_path: Path, group: Group) -> None:
    (tmp_path / "links.csv").write_text(SLOW_PAIRS)
    file = tmp_path / "found.txt"
    words = ["--topology", str(tmp_path / "links.csv"), "--rounds", "3", "--seed", "7", "--output", str(file), "--json"]
    said = json.loads(shown("search", *words))
    assert said["is_better"] and said["percent_less"] > 5 and said["written"] == str(file), said
    taken = lines(sums(group, f"all_reduce:0-inf:file={file}"))
    assert all(str(file) in algorithm for *_, algorithm in taken), taken
    for plan in ("all_reduce:0-inf:radix", "all_reduce:0-inf:tree"):
        with Group() as plain:
            expected = lines(sums(plain, plan))
        assert [line[:3] for line in taken] == [line[:3] for line in expected], plan


SHRINKS = """import herringbone
import numpy as np

with herringbone.init(timeout=60) as comm:
    values = np.ones(50_000, np.float32)
    comm.all_reduce(values)
    print("whole", values[0], comm.explain(50_000), flush=True)
    if comm.rank != 1:
        with comm.shrink() as left:
            values = np.ones(50_000, np.float32)
            left.all_reduce(values)
            print("left", values[0], left.explain(50_000), flush=True)"""


def test_fewer_ranks_take_the_usual_choice_and_one_warning_says_so(tmp_path: Path, group: Group) -> None:
    file = tmp_path / "found.txt"
    file.write_text(shown("show", "--algorithm", "radix", "--ranks", "3"))
    place = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(3):
        group.start("-c", SHRINKS, forked=None, RANK=str(rank), HERRINGBONE_PLAN=f"all_reduce:0-inf:file={file}", **place)
    outputs = group.finish(120)
    text = "".join(output for _, output in outputs)
    assert {status for status, _ in outputs} == {0}, text
    assert text.count("whole 3.0 file=") == 3 and text.count("left 2.0 ") == 2 and "left 2.0 file=" not in text, text
    assert text.count("its schedule is of 3 ranks, and 2 continue: they take the usual choice in its place") == 1, text
