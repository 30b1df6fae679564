"""``examples/train.py``: a training that is resumed is the training that was never stopped, with DDP and with FSDP2."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import START_SECONDS, Group, clean_environment

TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
SMALL = ["--width=32", "--blocks=2", "--heads=2", "--context=32", "--batch=4", "--report-every=1", "--json"]
HALF = 4
LAUNCHERS = {
    "ddp": ["-m", "herringbone", "launch", "-n", "2", "--", sys.executable],
    "fsdp2": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


def run(parallel: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [*LAUNCHERS[parallel], str(TRAIN), *SMALL, f"--parallel={parallel}", f"--checkpoint={folder}", *arguments]
    command, environment = [sys.executable, *words], clean_environment()
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
def half(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """The first half of a training, made once for each way."""
    return functools.cache(lambda parallel: train(parallel, tmp_path_factory.mktemp(parallel), HALF, "--resume"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    """A training in one go, made once for each way."""
    return functools.cache(lambda parallel: train(parallel, tmp_path_factory.mktemp(parallel), 2 * HALF))


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


@pytest.mark.parametrize("ended", LAUNCHERS)
@pytest.mark.parametrize("begun", LAUNCHERS)
def test_a_resumed_training_is_the_one_that_never_stopped(
    begun: str, ended: str, half: Callable[[str], Trained], whole: Callable[[str], Trained], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    first, straight = half(begun), whole(ended)
    assert straight.said.items() >= {"parallel": ended, "backend": "herringbone", "ranks": 2}.items()
    assert list(straight.losses) == list(range(1, 2 * HALF + 1))
    assert straight.losses[2 * HALF] < straight.losses[1] - 0.1, "it learns"

    folder = tmp_path / "saved"
    shutil.copytree(first.folder, folder)
    (folder / f"step-{HALF + 1}").mkdir()  # what a training leaves that dies while it saves
    second = train(ended, folder, 2 * HALF, "--resume")
    assert second.said["resumed"] == str(folder / f"step-{HALF}")
    assert first.losses | second.losses == straight.losses
    assert second.said["held_out"] == straight.said["held_out"]
    assert len(second.bits()) > 50, "parameters, and two moments of each"
    assert second.bits() == straight.bits()


def test_a_checkpoint_of_another_training_is_refused(half: Callable[[str], Trained]) -> None:
    pytest.importorskip("torch")
    done = run("ddp", half("ddp").folder, "--resume", "--context=16")
    assert done.returncode != 0
    assert f"step-{HALF} was trained with context 32: use the same, or another folder" in done.stderr


def test_wrong_arguments_are_explained(group: Group) -> None:
    pytest.importorskip("torch")
    wrong = {
        "--width 10 cannot be divided by --heads 4: choose a multiple": ["--width=10"],
        "--resume needs --checkpoint FOLDER": ["--resume"],
        "argument --steps: 0 is no whole number from 1": ["--steps=0"],
        "this is no job of several ranks: herringbone launch -n 2 -- python examples/train.py": [],
    }
    for arguments in wrong.values():
        group.start(str(TRAIN), *arguments)
    for (status, output), message in zip(group.finish(), wrong, strict=True):
        assert status == 2, output
        assert message in output
