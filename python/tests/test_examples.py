"""``examples/train.py``: a training that is resumed is the training that was never stopped, with DDP and with FSDP2."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import START_SECONDS, Group, clean_environment, free_port

from lab.job import python

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
SMALL = ["--width=32", "--blocks=2", "--heads=2", "--context=32", "--batch=4", "--report-every=1", "--json"]
HALF = 4
LAUNCHERS = {
    "ddp": ["-m", "herringbone", "launch", "-n", "2", "--", "python"],
    "fsdp2": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


def run(parallel: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = [python() if word == "python" else word for word in LAUNCHERS[parallel]]
    words = [*launcher, str(TRAIN), *SMALL, f"--parallel={parallel}", f"--checkpoint={folder}", *arguments]
    command, environment = [python(), *words], clean_environment({"PYTHON_EXEC": python()})
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_SECONDS)


@dataclass(frozen=True)
class Trained:
    """What a training has left and said, and the loss of each of its steps."""

    folder: Path
    said: dict[str, object]
    losses: dict[int, float]

    def bits(self) -> dict[str, bytes]:
        """Those of every tensor of the last checkpoint."""
        return tensors(self.folder / f"step-{self.said['step']}")


def train(parallel: str, folder: Path, steps: int, *arguments: str) -> Trained:
    done = run(parallel, folder, f"--steps={steps}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(line.removeprefix("[rank 0] ")) for line in done.stdout.splitlines()]
    losses = {each["step"]: each["loss"] for each in said if "loss" in each}
    assert all(each["tokens_per_s"] > 0 for each in said if "loss" in each)
    return Trained(folder, {name: value for each in said for name, value in each.items()}, losses)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A training in one go, made once for each way, which saves at its half and at its end."""
    arguments = ("--resume", f"--save-every={HALF}")
    return functools.cache(lambda parallel: train(parallel, tmp_path_factory.mktemp(parallel), 2 * HALF, *arguments))


def tensors(folder: Path) -> dict[str, bytes]:
    """The bits of every tensor of a checkpoint, whichever rank wrote which part of it."""
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = folder / "whole.pt"
    dcp_to_torch_save(folder, whole)
    found: dict[str, bytes] = {}

    def collect(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                collect(f"{name}/{key}", part)
        elif isinstance(value, torch.Tensor):
            found[name] = value.numpy().tobytes()

    collect("", torch.load(whole, weights_only=False))
    return found


@pytest.mark.parametrize(("begun", "ended"), [("ddp", "fsdp2"), ("fsdp2", "ddp")])
def test_a_resumed_training_is_the_one_that_never_stopped(
    begun: str, ended: str, whole: Callable[[str], Trained], tmp_path: Path
) -> None:
    """Each way continues what the other has saved. As both come to the same bits, so would what it has saved itself."""
    pytest.importorskip("torch")
    first, straight = whole(begun), whole(ended)
    assert straight.said.items() >= {"parallel": ended, "backend": "herringbone", "ranks": 2, "resumed": None}.items()
    assert list(straight.losses) == list(range(1, 2 * HALF + 1))
    assert straight.losses[2 * HALF] < straight.losses[1] - 0.1, "it learns"

    half, folder = f"step-{HALF}", tmp_path / "saved"
    shutil.copytree(first.folder / half, folder / half)
    assert tensors(folder / half) == tensors(straight.folder / half)
    (folder / f"step-{HALF + 1}").mkdir()  # what a training leaves that dies while it saves
    second = train(ended, folder, 2 * HALF, "--resume")
    assert second.said["resumed"] == str(folder / half)
    assert second.losses == {step: loss for step, loss in straight.losses.items() if step > HALF}
    assert second.said["held_out"] == straight.said["held_out"]
    assert len(second.bits()) > 50, "parameters, and two moments of each"
    assert second.bits() == straight.bits()


def test_a_checkpoint_of_another_training_is_refused(group: Group, whole: Callable[[str], Trained]) -> None:
    pytest.importorskip("torch")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    folder = whole("ddp").folder
    group.start(str(TRAIN), *SMALL, f"--checkpoint={folder}", "--resume", "--context=16", forked=True, **alone)
    [(status, output)] = group.finish()
    assert status == 1, output
    assert f"step-{2 * HALF} was trained with context 32, ranks 2: use the same, or another folder" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width=10"], "--width 10 cannot be divided by --heads 4: choose a multiple"),
        (["--resume"], "--resume needs --checkpoint FOLDER"),
        (["--steps=0"], "argument --steps: 0 is not a whole number from 1"),
        ([], "this is not a job of several ranks: herringbone launch -n 2 -- python examples/train.py"),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(TRAIN.parent))
    monkeypatch.setattr(sys, "argv", [TRAIN.name, *arguments])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("train").arguments()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
