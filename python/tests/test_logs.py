"""What ranks and reducers log: text and JSON, who left and who died, and Python's ``logging``."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS, Group, free_port

from lab.job import Process, environment

SCRIPT = str(WORKERS / "logs.py")
SECRET = "sixteen characters or more"
LINE = re.compile(r"\[(\S+Z) (ERROR|WARN|INFO|DEBUG) herringbone ([^\],]+)(?:, job ([^\]]+))?\] (.*)")
KEYS = ["time", "level", "target", "who", "rank", "job", "peer", "message"]
NIGHTLY = {"HERRINGBONE_JOB": "nightly", "HERRINGBONE_LOG": "info"}


class Logged(Group):
    """Ranks with a reducer."""

    def run(self, kind: str, form: str) -> tuple[list[str], list[str], str]:
        """The lines of the ranks and of the reducer, and where that listens."""
        address = f"127.0.0.1:{free_port()}"
        words = ["-m", "herringbone", "serve", "--listen", address, "--log-format", form]
        reducer: Process = self.start(*words, HERRINGBONE_TOKEN=SECRET)
        next(iter(reducer.stdout))
        variables = {"HERRINGBONE_REDUCERS": address, "HERRINGBONE_ALGORITHM": "reduction_server", "HERRINGBONE_TOKEN": SECRET}
        place = {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_LOG_FORMAT": form}
        ranks = [self.start(SCRIPT, kind, RANK=str(rank), WORLD_SIZE="2", **variables, **place, **NIGHTLY) for rank in range(2)]
        lines = [line.rstrip("\n") for rank in ranks for line in rank.stdout]
        [rank.wait(20) for rank in ranks]
        reducer.terminate()
        of_reducer = [line.rstrip("\n") for line in reducer.stdout]
        assert reducer.wait(20) == 0
        return lines, of_reducer, address


@pytest.fixture
def logged() -> Iterator[Logged]:
    with Logged() as logged:
        yield logged


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    """The objects among the lines; their keys stand in one order."""
    objects = [json.loads(line) for line in lines if line.startswith("{")]
    for found in objects:
        assert list(found) == [key for key in KEYS if key in found] and found["target"] == "herringbone"
        assert {"time", "level", "target", "who", "message"} <= found.keys()
        assert datetime.strptime(found["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
        assert ("rank" in found) == found["who"].startswith("rank ")
    return objects


def test_a_clean_end_reads_as_one_in_json(logged: Logged) -> None:
    lines, of_reducer, address = logged.run("leave", "json")
    ranks, reducer = parsed(lines), parsed(of_reducer)
    assert {found["job"] for found in ranks} == {"nightly"} and {found["rank"] for found in ranks} == {0, 1}
    formed = next(found["message"] for found in ranks if found["message"].startswith("rank 0 of 2"))
    for part in ("of job nightly (by HERRINGBONE_JOB)", "by shared memory", "reduction_server forced", f"the reducer {address}"):
        assert part in formed, formed
    assert re.search(r"sums in the order of ranks.*; herringbone \S+, protocol \d+, job id [0-9a-f]{16}", formed)
    left = [found for found in ranks if found.get("peer") == "rank 1"]
    assert [found["rank"] for found in left] == [0], ranks
    assert re.fullmatch(r"rank 1 has left: \d+ operations, .* exchanged with it", left[0]["message"])
    of_job = [found for found in reducer if found.get("job") == "nightly"]
    assert all(found["who"] == f"reducer {address}" for found in reducer)
    assert of_job[0]["message"].startswith("job nightly has come, of 2 workers; its id is ")
    departed = {found["peer"]: found["message"] for found in of_job if "has left" in found["message"]}
    for rank in ("rank 0", "rank 1"):
        assert re.fullmatch(rf"{rank} has left: \d+ operations, [\d.]+ MB exchanged with it", departed[rank]), reducer
    assert not [found for found in ranks + reducer if found["level"] != "info"]


def test_a_death_reads_as_one_in_text(logged: Logged) -> None:
    lines, of_reducer, _ = logged.run("die", "text")
    ranks = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
    assert "lost (1,)" in lines and ranks, "\n".join(lines)
    deaths = [(level, who, job, text) for _, level, who, job, text in ranks if text.startswith("rank 1 is lost: ")]
    assert len(deaths) == 1 and deaths[0][:3] == ("WARN", "rank 0", "nightly"), lines
    reducer = [match.groups() for line in of_reducer if (match := LINE.fullmatch(line))]
    heard = {(level, text.partition(":")[0]) for _, level, _, job, text in reducer if job == "nightly" and "rank" in text}
    assert {("WARN", "rank 1 is lost"), ("INFO", "rank 0 has left")} <= heard, of_reducer
    assert ("INFO", "rank 1 has left") not in heard


def handled(output: str) -> list[list[str]]:
    """What a handler of ``logging`` has written, by fields."""
    return [line.split("|", 7) for line in output.splitlines() if line.count("|") >= 7]


def test_a_program_that_has_configured_logging_gets_the_records(group: Group) -> None:
    """Rank 0 keeps the interpreter's lock while its engine logs."""
    place = {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_JOB": "nightly"}
    for rank in range(2):
        group.start(SCRIPT, "held", RANK=str(rank), WORLD_SIZE="2", **place)
    outcomes = [(process.wait(30), "".join(process.stdout)) for process in group.processes]
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert not any(LINE.search(output) for _, output in outcomes), outcomes
    for rank, (_, output) in enumerate(outcomes):
        records = handled(output)
        assert [fields[:4] for fields in records] == [["INFO", "herringbone", str(rank), "nightly"]] * len(records)
        assert any(f"rank {rank}: rank {rank} of 2" in fields[7] for fields in records), output
    heard = [fields for fields in handled(outcomes[0][1]) if fields[4] == "rank 1"]
    assert len(heard) == 1 and "rank 0: rank 1 has left" in heard[0][7], outcomes
    assert float(heard[0][5]) * 1000 % 1000 == pytest.approx(int(heard[0][6]), abs=1.5)


def test_systemd_is_told(group: Group, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        heard: list[str] = []

        def hear(wanted: str) -> None:
            while wanted not in heard:
                heard.extend(manager.recv(4096).decode().split("\n"))

        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        serve = group.start("-m", "herringbone", "serve", "--listen", "127.0.0.1:0", **variables)
        hear("READY=1")
        assert heard[1].startswith("STATUS=listening on 127.0.0.1:")
        hear("STATUS=serving 0 jobs, 0 since the start")
        heard.clear()
        hear("WATCHDOG=1")
        serve.terminate()
        hear("STOPPING=1")
        assert serve.wait(20) == 0


def output_of(*words: str, **variables: str) -> str:
    done = subprocess.run([sys.executable, *words], env=environment(variables), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_records_are_dropped_and_counted_rather_than_waited_for() -> None:
    count, _, last = output_of(SCRIPT, "slow").partition(" ")
    dropped = re.match(r"(\d+) records of the engine were dropped", last)
    assert dropped, last
    # Of 530 groups that form and end.
    assert int(count) - 1 + int(dropped[1]) == 2 * 530


def test_what_a_forked_child_logs_is_a_line() -> None:
    """Its thread is another process's. What the parent has logged went to ``logging``."""
    output = output_of(SCRIPT, "forked", RANK="0", WORLD_SIZE="1", HERRINGBONE_JOB="nightly")
    assert any("rank 0 of 1" in fields[7] for fields in handled(output)), output
    assert [match[5] for line in output.splitlines() if (match := LINE.fullmatch(line)) and "rank 0 of 1" in match[5]], output


def test_importing_starts_no_thread_and_levels_are_the_environments() -> None:
    program = """
import logging, os, herringbone
print(len(os.listdir("/proc/self/task")))
logging.basicConfig(level="ERROR", format="%(levelname)s %(message)s")
herringbone.init(rank=0, size=1, store="127.0.0.1:0").close()
"""
    alone = {"OPENBLAS_NUM_THREADS": "1"}
    assert output_of("-c", program, **alone) == "1\n"
    said = output_of("-c", program, HERRINGBONE_LOG="info", **alone)
    assert said.startswith("1\n") and "INFO rank 0: rank 0 of 1" in said
