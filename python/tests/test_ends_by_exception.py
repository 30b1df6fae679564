"""A program that an exception ends: its traceback is the last that it writes, and the other ranks name its rank."""

from __future__ import annotations

import pytest
from conftest import START_SECONDS, WORKERS, Group, free_port

from lab.job import python

pytest.importorskip("numpy")

END = 'raise ValueError("the end")\nValueError: the end\n'


@pytest.mark.parametrize("case", ["local", "updater"])
def test_nothing_follows_the_traceback_of_a_program_alone(group: Group, case: str) -> None:
    group.start(str(WORKERS / "ends_by_exception.py"), case)
    [(status, output)] = group.finish(START_SECONDS)
    assert status == 1 and output.endswith(END) and output.count("Traceback") == 1, output


@pytest.mark.parametrize("case", ["sync", "group", "horovod", "engine", "sleeps"])
def test_nothing_follows_the_traceback_of_a_rank_and_the_others_name_it(group: Group, case: str) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group.start_ranks("ends_by_exception.py", 2, case, forked=False, **where)
    (status, other), (failed, output) = group.finish(START_SECONDS)
    assert failed == 1 and output.endswith(END) and output.count("Traceback") == 1, output
    assert status == 0 and "told: (1,)" in other, other


def test_nothing_follows_the_traceback_of_a_worker_of_servers(group: Group) -> None:
    script = [python(), str(WORKERS / "ends_by_exception.py"), "async"]
    group.start("-m", "herringbone", "launch", "-n", "2", "--tables", "1", "--", *script)
    [(status, output)] = group.finish(START_SECONDS)
    lines = [line for line in output.splitlines() if line.startswith("[rank 1] ")]
    assert status != 0 and lines[-1] == "[rank 1] ValueError: the end" and output.count("Traceback") == 1, output
    assert "rank 1 failed first" in output, output
