"""ps-lite's lines: one program as scheduler, servers and workers."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from conftest import START_SECONDS, WORKERS, clean_environment, free_port

from lab.job import python

pytest.importorskip("numpy")


class Started:
    """The processes of a job by their roles, in the order of the list."""

    def __init__(self, work: str, roles: list[str], **more: str) -> None:
        line = {
            "DMLC_NUM_WORKER": "2",
            "DMLC_NUM_SERVER": "2",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "PS_HEARTBEAT_TIMEOUT": "1",
            "HERRINGBONE_TIMEOUT_S": "60",
            **more,
        }
        command = [python(), str(WORKERS / "kvstore_async.py"), work]
        self.processes = []
        for role in roles:
            settings = clean_environment() | line | {"DMLC_ROLE": role.partition(" ")[0]}
            if " " in role:
                settings["DMLC_WORKER_ID"] = role.partition(" ")[2]
            process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.processes.append(process)

    def finish(self) -> tuple[list[int], str]:
        """The exit statuses, in order, and what all have printed."""
        deadline = time.monotonic() + START_SECONDS
        try:
            output = "".join(process.communicate(timeout=deadline - time.monotonic())[0] for process in self.processes)
        finally:
            for process in self.processes:
                process.kill()
        return [process.returncode for process in self.processes], output


ROLES = ["worker", "server", "scheduler", "worker", "server"]


@pytest.mark.parametrize("work", ["everything", pytest.param("synchronous", marks=pytest.mark.full)])
def test_one_program_is_all_roles(work: str) -> None:
    statuses, output = Started(work, ROLES).finish()
    assert statuses == [0] * 5, output
    if work == "synchronous":
        assert sorted(output.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_workers_ids_are_their_ranks() -> None:
    job = Started("synchronous", ["worker 1", "server", "scheduler", "worker 0", "server"])
    statuses, output = job.finish()
    assert statuses == [0] * 5 and output == "rank 1 of 2\nrank 0 of 2\n", output


@pytest.mark.full
def test_all_end_though_a_worker_is_killed() -> None:
    job = Started("killed", ["worker 0", "server", "scheduler", "worker 1", "server"])
    statuses, output = job.finish()
    assert statuses == [0, 0, 0, -signal.SIGKILL, 0] and "rank 0 has waited" in output, output


def test_the_job_fails_without_its_scheduler() -> None:
    job = Started("waits", ["worker 0", "server", "scheduler", "worker 1", "server"])
    assert job.processes[0].stdout is not None and job.processes[0].stdout.readline() == "waits\n"
    job.processes[2].kill()
    statuses, output = job.finish()
    assert statuses[2] == -signal.SIGKILL and all(statuses), output
    assert "the scheduler at 127.0.0.1:" in output and "start the whole job again" in output


@pytest.mark.full
def test_a_worker_too_many_is_told() -> None:
    job = Started("everything", ["worker 0", "server", "scheduler", "worker 0", "server"], HERRINGBONE_TIMEOUT_S="5")
    statuses, output = job.finish()
    assert "another process is there in place of this one: the job has 2 workers" in output, output
    assert sum(status != 0 for status in statuses) >= 1


@pytest.mark.full
def test_without_a_token_only_loopback_is_used() -> None:
    statuses, output = Started("everything", ["scheduler"], DMLC_PS_ROOT_URI="0.0.0.0").finish()
    assert statuses == [1] and "no job token is set" in output, output
