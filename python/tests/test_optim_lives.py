"""Ranks die within a round of averaging: the others end it among themselves, and new processes join between rounds."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch.distributed as dist
from conftest import START_SECONDS, WORKERS, Group, clean_environment, free_port

from lab.job import place, python
from lab.process import Process

ROUNDS = 8
ROUND = re.compile(r"round (\d+) (\w+) of (\d)")


def begin(group: Group, rank: int, store: str, kind: str, *dies: int, waits: int = 0) -> Process:
    words = [str(WORKERS / "averaging_lives.py"), kind, str(ROUNDS), str(waits), *map(str, dies)]
    settings = {"HERRINGBONE_STORE": store, "HERRINGBONE_TIMEOUT_S": "60", **place(rank, 3)}
    return group.start(*words, forked=True, **settings)


def store_of_ranks() -> dict[str, str]:
    return {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_TIMEOUT_S": "20"}


def rounds_of(output: str) -> dict[int, tuple[str, int]]:
    """The digest after each round, and of how many ranks."""
    return {int(found[1]): (found[2], int(found[3])) for found in map(ROUND.match, output.splitlines()) if found}


@pytest.mark.parametrize(
    "kind, victim, dies",
    [
        pytest.param("diloco", 1, (3, 2), marks=pytest.mark.full),  # among its inner steps
        ("streaming", 2, (3, 2)),  # once its exchange has started
        pytest.param("streaming", 0, (2, 3), marks=pytest.mark.full),
        pytest.param("local", 0, (0, 1), marks=pytest.mark.full),
        pytest.param("local", 2, (3, 1), marks=pytest.mark.full),
        pytest.param("post", 1, (3, 0), marks=pytest.mark.full),  # while gradients are averaged
        pytest.param("post", 1, (7, 2), marks=pytest.mark.full),
    ],
)
def test_the_others_end_the_round_and_go_on(group: Group, kind: str, victim: int, dies: tuple[int, int]) -> None:
    store = f"127.0.0.1:{free_port()}"
    for rank in range(3):
        begin(group, rank, store, kind, *(dies if rank == victim else ()))
    outcomes = group.finish()
    assert outcomes.pop(victim)[0] == -signal.SIGKILL
    said = [rounds_of(output) for _, output in outcomes]
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert said[0] == said[1] and said[0].keys() == set(range(1, ROUNDS + 1)), outcomes
    # The exchange of the round in which the rank dies is that of the others, unless it was whole before: then it is that of all.
    together = dies[0] + (kind == "streaming" and [size for _, size in said[0].values()][dies[0]] == 3)
    assert [size for _, size in said[0].values()] == [3] * together + [2] * (ROUNDS - together), outcomes
    assert len({digest for digest, _ in said[0].values()}) == ROUNDS, "rounds change the parameters"


@pytest.mark.full
def test_a_rank_dies_among_the_calls_of_an_exchange() -> None:
    """At random moments of it: the others end it and have the same parameters."""
    seed = int(time.time())
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(4):
        victim, store = chance.randrange(3), f"127.0.0.1:{free_port()}"
        words = [str(WORKERS / "averaging_lives.py"), "wide", "4", "0"]
        dies = ["2", "3", str(chance.uniform(0.001, 0.1))]
        with Group() as group:
            for rank in range(3):
                settings = {"HERRINGBONE_STORE": store, "HERRINGBONE_TIMEOUT_S": "60", **place(rank, 3)}
                group.start(*words, *(dies if rank == victim else ()), forked=True, **settings)
            outcomes = group.finish()
        assert outcomes.pop(victim)[0] == -signal.SIGKILL, outcomes
        said = [rounds_of(output) for _, output in outcomes]
        assert [status for status, _ in outcomes] == [0, 0] and said[0] == said[1] and len(said[0]) == 4, outcomes
        print(re.findall("of 2 after .*", outcomes[0][1]))


@pytest.mark.parametrize(
    "kind, victim",
    [
        pytest.param("streaming", 1, marks=pytest.mark.full),
        pytest.param("diloco", 0, marks=pytest.mark.full),
        pytest.param("local", 2, marks=pytest.mark.full),
        pytest.param("post", 1, marks=pytest.mark.full),
    ],
)
def test_a_new_process_joins_between_rounds(group: Group, kind: str, victim: int) -> None:
    store = f"127.0.0.1:{free_port()}"
    dies = (2, 0 if kind == "post" else 1)
    ranks = [begin(group, rank, store, kind, *(dies if rank == victim else ()), waits=4) for rank in range(3)]
    assert ranks[victim].wait() == -signal.SIGKILL
    begin(group, victim, store, kind)
    outcomes = group.finish()
    del outcomes[victim]
    assert [status for status, _ in outcomes] == [0, 0, 0], outcomes
    old, other, new = (rounds_of(output) for _, output in outcomes)
    # It has another seed's parameters at first. What it is given is of the round that begins.
    began = int(outcomes[2][1].split("begins in round ")[1].split()[0])
    assert 3 <= began <= 5, outcomes
    assert old == other and new == {round: old[round] for round in range(began + 1, ROUNDS + 1)}, outcomes
    assert [size for _, size in old.values()][-1] == 3


@pytest.mark.full
def test_a_new_process_with_other_arguments_is_refused_by_name(group: Group) -> None:
    store = f"127.0.0.1:{free_port()}"
    ranks = [begin(group, rank, store, "diloco", *((2, 1) if rank == 1 else ()), waits=4) for rank in range(3)]
    assert ranks[1].wait() == -signal.SIGKILL
    begin(group, 1, store, "local")
    outcomes = group.finish()
    del outcomes[1]
    assert [status for status, _ in outcomes] == [0, 0, 1], outcomes
    wrong = "the class is LocalSGD on rank 1 and DiLoCo on rank 0"
    assert f"ArgumentError: LocalSGD: {wrong}" in outcomes[2][1], outcomes
    for _, output in outcomes[:2]:
        assert f"RuntimeWarning: DiLoCo: {wrong}" in output and "others continue without it" in output, output
        assert rounds_of(output)[ROUNDS][1] == 2, output


@pytest.mark.parametrize("wrong", [1, pytest.param(0, marks=pytest.mark.full)])
def test_nobody_waits_for_a_rank_that_was_refused(group: Group, tmp_path: Path, wrong: int) -> None:
    """Its program lives on, and has no object that it could close."""
    group.start_ranks("elastic_unlike.py", 3, str(wrong), str(tmp_path), **store_of_ranks())
    outcomes = group.finish()
    assert [status for status, _ in outcomes] == [0, 0, 0], outcomes
    assert f"refused: DiLoCo: outer_lr is 0.5 on rank {wrong} and 0.7 on rank" in outcomes.pop(wrong)[1]
    assert all("others continue without it" in output and "a round of 2" in output for _, output in outcomes), outcomes


@pytest.mark.parametrize("kind", [pytest.param("diloco", marks=pytest.mark.full), pytest.param("local", marks=pytest.mark.full)])
def test_a_group_of_torch_that_is_formed_again_ends_the_round(group: Group, kind: str) -> None:
    if not hasattr(dist.ProcessGroup, "reconfigure"):
        pytest.skip("torch has its reconfigure interface from 2.14 on")
    group.torchrun(str(WORKERS / "averaging_regrouped.py"), 3, kind)
    outcomes = group.finish()
    assert [status for status, _ in outcomes] == [0, -signal.SIGKILL, 0], outcomes
    assert all("lost\ndone" in outcomes[rank][1] for rank in (0, 2)), outcomes


@pytest.mark.full
@pytest.mark.parametrize("kind", ["streaming", "local", "post"])
def test_again_and_again(group: Group, kind: str) -> None:
    """Ranks are killed at random moments, rank 0 among them, and come back."""
    seed = int(time.time())
    print(f"seed {seed}")
    chance, store = random.Random(seed), f"127.0.0.1:{free_port()}"

    def start(rank: int) -> Process:
        words = [str(WORKERS / "averaging_lives.py"), kind, "150", "0", "-1", "0", "0.01"]
        return group.start(*words, forked=True, HERRINGBONE_STORE=store, HERRINGBONE_TIMEOUT_S="60", **place(rank, 3))

    def wait_for(process: Process, word: str) -> None:
        for line in process.stdout:
            said[process] = said.get(process, "") + line
            if line.startswith(word):
                return
        pytest.fail(f"a process ended before it said {word!r}:\n{said[process]}")

    said: dict[Process, str] = {}
    ranks = [start(rank) for rank in range(3)]
    for process in ranks:
        wait_for(process, "round 1")
    for victim in [chance.randrange(3) for _ in range(4)]:
        time.sleep(chance.uniform(0.05, 0.4))
        ranks[victim].send_signal(signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 0.3))
        ranks[victim] = start(victim)
        wait_for(ranks[victim], "round")
    outcomes = group.finish()
    killed = [process for process in group.processes if process not in ranks]
    found: dict[int, set[tuple[str, int]]] = {}
    for process, (status, output) in zip(group.processes, outcomes):
        assert status == (-signal.SIGKILL if process in killed else 0), output[-2000:]
        for round, outcome in rounds_of(said.get(process, "") + output).items():
            found.setdefault(round, set()).add(outcome)
    assert max(found) == 150
    # A rank that is killed may have been the only one to see the end of a round, which the others then end without it.
    digests = [{digest for digest, _ in found[round]} for round in sorted(found)]
    assert sum(len(each) > 1 for each in digests) <= 4 and len(digests[-1]) == 1, found


@pytest.mark.full
def test_a_new_process_that_comes_too_late_does_not_wait_in_vain(tmp_path: Path) -> None:
    """Else it would wait for the others until its timeout, and start again then."""
    words = ["launch", "-n", "2", "--max-attempts", "5", "--", python(), str(WORKERS / "averaging_late.py")]
    command = [sys.executable, "-m", "herringbone", *words, str(tmp_path)]
    settings = {**clean_environment(), "HERRINGBONE_TIMEOUT_S": str(10 * START_SECONDS)}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=START_SECONDS)
    assert done.stdout.count("starts again") == 1 and done.returncode == 128 + signal.SIGKILL, done
    assert "rank 1" in done.stderr and "after the other ranks had left" in done.stderr, done.stderr
