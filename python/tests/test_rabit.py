"""``herringbone.rabit``, with real processes that are killed: they continue where they were, and nothing is computed twice."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from conftest import ROOT, START_SECONDS, WORKERS, clean_environment

from herringbone import HerringboneError, rabit
from lab.launched import ranks_of

np = pytest.importorskip("numpy")

SIZE = 4
VERSIONS = 4
SAID = re.compile(r"^\[rank (\d+)\] (\w+) (.*)$", re.MULTILINE)
PREPARES = ["bootstrap", *(f"{version}.{call}" for version in range(VERSIONS) for call in (0, SIZE + 1))]
"""What a rank computes for all-reduces."""


def launcher(size: int, attempts: int) -> list[str]:
    words = ["launch", "-n", str(size), "--max-attempts", str(attempts), "--", sys.executable]
    return [sys.executable, "-m", "herringbone", *words]


def launch(size: int, *program: str, attempts: int = 5) -> subprocess.CompletedProcess[str]:
    command = [*launcher(size, attempts), *program]
    return subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=START_SECONDS)


@dataclass
class Rank:
    """What all processes of a rank have said."""

    pids: list[str] = field(default_factory=list)
    loaded: list[list[str]] = field(default_factory=list)
    prepares: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def hear(self, word: str, rest: list[str]) -> None:
        if word == "starts":
            self.pids.append(rest[1])
        elif word == "prepares":
            self.prepares += rest
        else:
            {"loads": self.loaded.append, "ends": self.ends.extend}[word](rest)


def recover(mode: str, *mocks: str) -> list[Rank]:
    done = launch(SIZE, str(WORKERS / "rabit_recover.py"), mode, *(f"mock={mock}" for mock in mocks))
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [Rank() for _ in range(SIZE)]
    for rank, word, rest in SAID.findall(done.stdout):
        ranks[int(rank)].hear(word, rest.split())
    return ranks


@pytest.fixture(scope="module")
def undisturbed() -> list[Rank]:
    return recover("local")


@pytest.mark.parametrize(
    ("mode", "mocks", "versions"),
    [
        # Two at once, one of them once more before it has loaded; then rank 0.
        ("global", ["1,1,2,0", "3,1,2,0", "3,0,init,1", "0,2,5,0"], [["0", "2"], ["0", "1"], ["0"], ["0", "1"]]),
        # One in its replay, too; and one inside a checkpoint, in which the others wait for rank 0.
        ("local", ["2,1,5,0", "2,1,1,1", "1,2,checkpoint,0"], [["0"], ["0", "2"], ["0", "1", "1"], ["0"]]),
        # All others are in the checkpoint of version 2, so the old model is gone, and the new one is version 3.
        ("lazy", ["0,1,5,0", "3,2,checkpoint,0", "1,3,0,0"], [["0", "1"], ["0", "3"], ["0"], ["0", "3"]]),
    ],
)
def test_killed_processes_continue_where_they_were(
    mode: str, mocks: list[str], versions: list[list[str]], undisturbed: list[Rank]
) -> None:
    ranks = recover(mode, *mocks)
    for number, (rank, other) in enumerate(zip(ranks, undisturbed)):
        assert len(rank.pids) == 1 + sum(mock.startswith(f"{number},") for mock in mocks)
        assert [version for version, _ in rank.loaded] == versions[number]
        assert rank.prepares == PREPARES, "each input is made once, by the process that lives or by the one after it"
        pid, kept, *digests = rank.ends
        assert pid == rank.pids[-1]
        assert digests == (other.ends[2:] if mode == "local" else digests), "the local model"
        assert digests[0] == other.ends[2], "the global model"
        assert kept == other.loaded[0][1] == other.ends[1], "only results of calls before load_checkpoint are kept"


def test_a_program_that_makes_another_call_in_its_replay_ends_with_the_call_and_its_rank() -> None:
    code = """import os, signal, numpy as np
from herringbone import rabit
attempt = int(os.environ["DMLC_NUM_ATTEMPT"])
rabit.init()
rabit.load_checkpoint()
rabit.allreduce(np.ones(4), rabit.SUM)
rabit.allreduce(np.ones(4 if attempt == 0 else 8), rabit.SUM)
if rabit.get_rank() == 1 and attempt == 0:
    os.kill(os.getpid(), signal.SIGKILL)
rabit.checkpoint(0)
rabit.finalize()"""
    done = launch(2, "-c", code, attempts=2)
    assert done.returncode != 0
    problem = "rank 1 replays call 1 of version 0 with 64 bytes"
    said = [line for line in done.stderr.splitlines() if "ReplayError" in line]
    assert len(said) == 1, done.stderr
    assert all(line.startswith("[rank 1] ") and problem in line for line in said), done.stderr
    assert "rank 1 failed 2 times without progress" in done.stderr


def test_ranks_that_gather_other_types_get_both_named() -> None:
    code = """import numpy as np
from herringbone import rabit
rabit.init()
for given in (np.arange(3.0), np.array(["a", "bc"]), np.array([1 + 2j]), np.empty((0, 2), np.int16)):
    gathered = rabit.allgather(given)
    assert gathered.dtype == given.dtype and np.array_equal(gathered, [given, given])
rabit.allgather(np.ones(3, "f8" if rabit.get_rank() else "i8"))"""
    done = launch(2, "-c", code, attempts=1)
    both = "MismatchError.*: rank 0 called all_gather of 3 i64, rank 1 called all_gather of 3 f64"
    assert done.returncode != 0 and re.search(both, done.stderr), done.stderr


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process as the only rank of a job."""
    monkeypatch.setenv("HERRINGBONE_RANK", "0")
    monkeypatch.setenv("HERRINGBONE_WORLD_SIZE", "1")
    rabit.init([])
    yield
    rabit.finalize()


def test_options_are_a_list() -> None:
    for args in ("rabit_local_replica=1", b"rabit_local_replica=1"):
        with pytest.raises(TypeError, match=r"pass a list of arguments: \[b?'rabit_local_replica=1'\]"):
            rabit.init(args)  # type: ignore[arg-type]
    with pytest.raises(HerringboneError, match="call rabit.init"):
        rabit.get_rank()


def test_a_root_is_a_rank(alone: None) -> None:
    for root in (-1, 1):
        with pytest.raises(ValueError, match=f"broadcast: root {root} is not a rank; pass one from 0 to 0"):
            rabit.broadcast("text", root)
    with pytest.raises(TypeError, match="broadcast: root is a str, not a rank"):
        rabit.broadcast("text", "0")  # type: ignore[arg-type]
    assert rabit.broadcast("text", 0) == "text"


def test_a_model_that_cannot_be_packed_is_refused_at_once(alone: None) -> None:
    known = "is of the type object; pass dictionaries"
    for name, call in (("checkpoint", rabit.checkpoint), ("lazy_checkpoint", rabit.lazy_checkpoint)):
        with pytest.raises(TypeError, match=rf"{name}: the global model\['trees'\]\[1\] {known}"):
            call({"trees": [0, object()]})
    with pytest.raises(TypeError, match=f"checkpoint: the local model {known}"):
        rabit.checkpoint(0, object())
    assert rabit.version_number() == 0
    model = np.zeros(1 << 22)
    tracemalloc.start()
    rabit.lazy_checkpoint({"model": model, "view": model[1:]})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rabit.version_number() == 1 and most < model.nbytes / 8, "nothing is copied"


def test_an_array_of_the_right_layout_is_overwritten(alone: None) -> None:
    whole = np.arange(6.0).reshape(2, 3)
    row = whole[1]
    assert rabit.allreduce(row, rabit.SUM, lambda out: np.copyto(out, 7)) is row
    assert whole[1].tolist() == [7, 7, 7]
    column = whole[:, 0]
    result = rabit.allreduce(column, rabit.SUM, lambda out: np.copyto(out, 9))
    assert result.tolist() == [9, 9] and column.tolist() == [0, 7]


def kmeans(act: Callable[[int, int], None]) -> list[str]:
    """What each rank has said last, if ``act`` is called with the launcher after each round."""
    command = [*launcher(SIZE, attempts=5), str(ROOT / "examples" / "rabit_kmeans.py"), "--pause", "0.02"]
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        last = [""] * SIZE
        for line in job.stdout:
            rank, said = re.fullmatch(r"\[rank (\d+)\] (.*)\n", line).groups()  # type: ignore[union-attr]
            last[int(rank)] = said
            if said.startswith("round "):
                act(job.pid, int(said.split()[1]))
    assert job.returncode == 0
    return last


def test_killed_processes_of_the_example_find_the_same_groups() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    plan = [(4, [rng.randrange(SIZE)]), (9, rng.sample(range(SIZE), 2))]

    def kill(launcher: int, round: int) -> None:
        if plan and round >= plan[0][0]:
            _, victims = plan.pop(0)
            time.sleep(rng.uniform(0, 0.03))
            processes = ranks_of(launcher)
            for rank in victims:
                os.kill(processes[rank], signal.SIGKILL)

    whole = kmeans(lambda *_: None)
    assert "digest" in whole[0] and whole == [whole[0]] * SIZE
    assert kmeans(kill) == whole, f"seed {seed}"
    assert not plan, f"seed {seed}"


LOST_AT_THE_END = """
import os, signal
from herringbone import rabit

rabit.init()
rabit.checkpoint(0)
rank = rabit.get_rank()
if rank == 2:  # without a word
    os._exit(0)
rabit.finalize()
"""


def test_the_error_says_who_was_not_started_again() -> None:
    done = launch(3, "-c", LOST_AT_THE_END, "rabit_timeout_sec=5", attempts=1)
    assert done.returncode == 1
    assert re.search(
        r"was not started again within 5 s, the limit of rabit_timeout_sec: rank 2 (of 3 )?did not come", done.stderr
    )


def test_a_process_that_is_lost_after_the_others_have_left_ends_the_job() -> None:
    program = LOST_AT_THE_END.replace("os._exit(0)", "rabit.finalize(); os.kill(os.getpid(), signal.SIGKILL)")
    done = launch(3, "-c", program, attempts=20)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "rank 2 ended with signal: 9 (SIGKILL) after the other ranks had left" in done.stderr
