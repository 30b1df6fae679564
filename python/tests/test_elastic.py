"""Workers die, leave and come back under training that goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import herringbone
import numpy as np
import pytest
from conftest import WORKERS, free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic.py"
PATIENCE = 60.0


class Training:
    """The example's processes, one for each rank, and those that came after them."""

    def __init__(self, directory: Path, ranks: int, *arguments: str) -> None:
        self.directory, self.ranks, self.arguments = directory, ranks, arguments
        self.place = f"127.0.0.1:{free_port()}"
        self.processes: list[subprocess.Popen[str]] = []
        self.lives = [0] * ranks
        for rank in range(ranks):
            self.processes.append(self._start(rank))

    def _start(self, rank: int, **settings: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            **settings,
            "HERRINGBONE_RANK": str(rank),
            "HERRINGBONE_WORLD_SIZE": str(self.ranks),
            "HERRINGBONE_STORE": self.place,
            "HERRINGBONE_TIMEOUT_S": "60",
        }
        hurried = [str(WORKERS / "hurried.py"), str(self.directory / "hurry"), str(EXAMPLE)]
        command = [sys.executable, *hurried, *self.arguments, "--events", str(self.events_of(rank))]
        with self.log_of(rank).open("a") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)

    def log_of(self, rank: int) -> Path:
        return self.directory / f"log.{rank}.{self.lives[rank]}"

    def events_of(self, rank: int) -> Path:
        return self.directory / f"events.{rank}.{self.lives[rank]}"

    def events(self, rank: int) -> list[dict[str, Any]]:
        file = self.events_of(rank)
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_for(self, rank: int, pattern: str) -> re.Match[str]:
        """Wait until a rank's present process has said something."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = re.search(pattern, self.log_of(rank).read_text())
            if found:
                return found
            time.sleep(0.05)
        logs = "\n".join(f"-- {file.name}\n{file.read_text()}" for file in sorted(self.directory.iterdir()))
        pytest.fail(f"rank {rank} did not say {pattern!r}:\n{logs}")

    def wait_for_event(self, rank: int, names: set[str]) -> None:
        """Wait until one of these is among a rank's events."""
        until = time.monotonic() + PATIENCE
        while not any(event["event"] in names for event in self.events(rank)) and time.monotonic() < until:
            time.sleep(0.05)

    def signal(self, rank: int, what: signal.Signals) -> None:
        self.processes[rank].send_signal(what)
        if what == signal.SIGKILL:
            self.processes[rank].wait()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def restart(self, rank: int, **settings: str) -> None:
        self.lives[rank] += 1
        self.processes[rank] = self._start(rank, **settings)

    def losses(self, ranks: list[int]) -> list[float]:
        """The last losses of ranks that end well. All that is to happen has happened, so steps take no time from here on."""
        (self.directory / "hurry").touch()
        found = [float(self.wait_for(rank, r"done after \d+ steps: loss ([\d.]+)")[1]) for rank in ranks]
        assert [self.processes[rank].wait(PATIENCE) for rank in ranks] == [0] * len(ranks)
        return found


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """Begins trainings that are over at the end of the test."""
    with contextlib.ExitStack() as ends:

        def begin(ranks: int, *arguments: str) -> Training:
            training = Training(tmp_path, ranks, *arguments)
            ends.callback(training.end)
            return training

        yield begin


def test_a_killed_worker_comes_back(begin: Callable[..., Training]) -> None:
    training = begin(3, "--steps", "400", "--pause", "0.02")
    training.wait_for(1, "step 50")
    training.signal(1, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 2")
    training.wait_for(2, "is rank 1 of 2")
    training.restart(1)
    training.wait_for(1, "is rank 1 of 3")
    training.wait_for(2, "is rank 2 of 3")
    losses = training.losses([0, 1, 2])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses
    happened = [event["event"] for event in training.events(0)]
    assert happened == ["began", "lost", "goes on", "replaced", "ended"], training.events(0)
    # It takes less than a second, and a timeout a minute; the rest is margin for a busy machine.
    assert training.events(0)[2]["seconds"] < 30


def test_rank_0_comes_back(begin: Callable[..., Training]) -> None:
    training = begin(3, "--steps", "400", "--pause", "0.02")
    training.wait_for(1, "step 50")
    training.signal(0, signal.SIGKILL)
    training.wait_for(1, "is rank 0 of 2")
    training.restart(0)
    training.wait_for(0, "is rank 0 of 3")
    losses = training.losses([0, 1, 2])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses


def test_the_others_wait_for_the_new_process_if_they_are_told_to(begin: Callable[..., Training]) -> None:
    training = begin(3, "--steps", "300", "--wait", "50")
    training.wait_for(0, "step 50")
    training.signal(2, signal.SIGKILL)
    time.sleep(1)
    training.restart(2)
    losses = training.losses([0, 1, 2])
    assert len(set(losses)) == 1 and losses[0] < 1e-5, losses
    assert "is rank 0 of 2" not in training.log_of(0).read_text(), "it went on without"


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_worker_that_is_told_to_end_leaves_at_the_end_of_a_step(begin: Callable[..., Training], leaver: int) -> None:
    training = begin(3, "--steps", "300")
    training.wait_for(leaver, "step 50")
    training.signal(leaver, signal.SIGTERM)
    assert training.processes[leaver].wait(PATIENCE) == 0
    losses = training.losses([rank for rank in range(3) if rank != leaver])
    assert len(set(losses)) == 1 and losses[0] < 1e-5, losses
    assert training.events(leaver)[-1]["event"] == "leaves"


def test_too_few_do_not_go_on(begin: Callable[..., Training]) -> None:
    training = begin(3, "--steps", "100000", "--least", "3")
    training.wait_for(0, "step 50")
    training.signal(1, signal.SIGKILL)
    for rank in (0, 2):
        training.wait_for(rank, r"PeerLostError.*2 of at least 3 are left")
        assert training.processes[rank].wait(PATIENCE) == 1


def test_again_and_again(begin: Callable[..., Training]) -> None:
    """Ranks are killed at random moments, rank 0 among them, and come back."""
    training = begin(4, "--steps", "1500", "--pause", "0.01")
    rng = np.random.default_rng(int(time.time()))
    for rank in range(4):
        training.wait_for(rank, "is rank")
    for victim in (int(victim) for victim in rng.integers(0, 4, 4)):
        time.sleep(float(rng.uniform(0.1, 0.8)))
        training.signal(victim, signal.SIGKILL)
        time.sleep(float(rng.uniform(0.0, 0.5)))
        training.restart(victim)
        training.wait_for(victim, f"is rank {victim} of 4")
    losses = training.losses([0, 1, 2, 3])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses


STATE = {
    "step": 7,
    "rate": 0.1,
    "name": "model",
    "none": None,
    "flags": [True, False],
    "pair": (1, 2.5),
    3: {"weights": np.arange(6, dtype=np.float64).reshape(2, 3), "empty": np.zeros((0, 4), np.int16)},
    "scalar": np.float32(2.5),
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (np.ndarray, np.generic)):
        return one.dtype == other.dtype and np.shape(one) == np.shape(other) and bool(np.all(one == other))
    return type(one) is type(other) and one == other


def test_a_state_is_built_again_from_what_is_sent() -> None:
    from herringbone.plain import build, describe, pack, unpack

    arrays: list[np.ndarray[Any, Any]] = []
    described = json.loads(json.dumps(describe("test", STATE, "state", arrays)))
    sent = [np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for array in arrays]
    assert same(STATE, build("test", described, iter(sent)))
    more = {"state": STATE, "bytes": b"x\x00y", "sets": [{1, 2}, frozenset({3})], "number": float("inf"), "none": None}
    assert same(more, unpack("test", pack("test", more)))
    with pytest.raises(TypeError, match="test: the object\\['code'\\] is of the type function"):
        pack("test", {"code": same})
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="test: the object\\['weights'\\] is a quantized tensor"):
        pack("test", {"weights": torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.quint8)})
    with pytest.raises(TypeError, match="is a nested tensor"):
        pack("test", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))


def test_a_new_process_that_ends_before_all_have_met_does_not_end_the_job(begin: Callable[..., Training]) -> None:
    training = begin(4, "--steps", "2500", "--pause", "0.01")
    training.wait_for(0, "step 50")
    training.signal(2, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 3")
    training.signal(3, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 2")
    # One waits for the other, and is stopped when that comes.
    training.restart(2)
    time.sleep(3)
    training.restart(3)
    time.sleep(0.5)
    training.signal(2, signal.SIGSTOP)
    # It was stopped before all had met, or on a fast machine after it.
    training.wait_for_event(0, {"not replaced", "replaced"})
    losses = training.losses([0, 1])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses


def test_a_new_process_that_stops_as_the_others_give_it_their_state_does_not_end_the_job(
    begin: Callable[..., Training],
) -> None:
    training = begin(4, "--steps", "2500", "--pause", "0.01")
    training.wait_for(0, "step 50")
    training.signal(2, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 3")
    training.signal(3, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 2")
    training.restart(2, STOPS_ONCE_JOINED="1")
    training.restart(3)
    training.wait_for_event(0, {"replaced"})
    losses = training.losses([0, 1, 3])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses
    happened = [event["event"] for event in training.events(0)]
    assert happened == ["began", "lost", "goes on", "lost", "goes on", "lost", "replaced", "ended"], training.events(0)


def test_a_new_process_that_cannot_use_a_setting_does_not_end_the_job(begin: Callable[..., Training]) -> None:
    training = begin(2, "--steps", "400", "--pause", "0.02")
    training.wait_for(1, "step 50")
    training.signal(1, signal.SIGKILL)
    training.wait_for(0, "is rank 0 of 1")
    training.restart(1, HERRINGBONE_CALIBRATION=str(training.directory / "missing"))
    training.wait_for(1, "ConfigError")
    assert training.processes[1].wait(PATIENCE) == 1
    training.wait_for(0, "rank 1 at .* cannot use HERRINGBONE_CALIBRATION: .*waits for another process")
    training.restart(1)
    training.wait_for(1, "is rank 1 of 2")
    losses = training.losses([0, 1])
    assert len(set(losses)) == 1 and losses[0] < 1e-6, losses
    happened = [event["event"] for event in training.events(0)]
    assert happened == ["began", "lost", "goes on", "replaced", "ended"], training.events(0)


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"least": 0}, ValueError, "least is 0; the job has 1 ranks"),
        ({"least": 2}, ValueError, "least is 2; the job has 1 ranks"),
        ({"least": "x"}, TypeError, "least is a str, not a number of ranks"),
        ({"wait": None}, TypeError, "wait is a NoneType, not a number of seconds"),
        ({"wait": float("nan")}, ValueError, "wait is nan"),
        ({"save": None}, TypeError, "save is a NoneType, not a function"),
        ({"on_change": 3}, TypeError, "on_change is a int, not a function"),
        ({"communicator": "x"}, TypeError, "communicator is a str"),
        ({"events": "/nonexistent/x"}, FileNotFoundError, "nonexistent"),
    ],
)
def test_arguments_are_checked_before_anything_begins(wrong: dict[str, Any], kind: type[Exception], text: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with herringbone.init(rank=0, size=1, store=f"127.0.0.1:{free_port()}") as alone:
        given: dict[str, Any] = {"save": dict, "load": print, "communicator": alone, **wrong}
        with pytest.raises(kind, match=text):
            herringbone.Elastic(given.pop("save"), given.pop("load"), **given)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_group_that_was_closed_is_not_replaced() -> None:
    alone = herringbone.init(rank=0, size=1, store=f"127.0.0.1:{free_port()}")
    alone.close()
    assert alone.newcomers() == []
    with pytest.raises(herringbone.ClosedError):
        alone.replace(timeout=1)


def test_ranks_may_leave_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """That the last calls differ is an error, and that a rank has left before one of them is none."""
    errors = [herringbone.PeerLostError("rank 1 is lost: left without broadcast", [1]), herringbone.MismatchError("disagree")]

    def close(communicator: herringbone.Communicator) -> None:
        real(communicator)
        raise errors.pop(0)

    real = herringbone.Communicator.close
    monkeypatch.setattr(herringbone.Communicator, "close", close)
    for expected in (contextlib.nullcontext(), pytest.raises(herringbone.MismatchError)):
        alone = herringbone.init(rank=0, size=1, store=f"127.0.0.1:{free_port()}")
        with expected:
            herringbone.Elastic(dict, print, communicator=alone).close()
    assert not errors


def test_what_is_no_state_is_refused_with_its_place() -> None:
    with herringbone.init(rank=0, size=1, store=f"127.0.0.1:{free_port()}") as alone:
        assert herringbone.broadcast_state(alone, STATE) is STATE
        with pytest.raises(TypeError, match=r"state\['a'\]\[1\] is of the type type"):
            herringbone.broadcast_state(alone, {"a": [1, int]})
        with pytest.raises(TypeError, match="is an array of object"):
            herringbone.broadcast_state(alone, np.array([None]))
        with pytest.raises(ValueError, match="root 1 is not a rank"):
            herringbone.broadcast_state(alone, 1, root=1)
