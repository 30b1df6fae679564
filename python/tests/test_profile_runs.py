"""``python -m herringbone.profile`` of real trainings: what it measures of them, and why it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS, Group, clean_environment, free_port
from herringbone.profile import Profile, read
from herringbone.profile.buckets import CAP_BYTES, FIRST_BYTES, grouped

STEPS = 4
SLEEP = 0.02
"""As in workers/profiled.py."""


def profiled(group: Group, folder: Path, kind: str, *words: str, status: int = 0) -> str:
    """Profile a training in one process; what it prints."""
    file = str(folder / "profile.json")
    script = str(WORKERS / "profiled.py")
    group.start(str(WORKERS / "profiling.py"), "--output", file, "--steps", str(STEPS), *words, script, kind, forked=True)
    [(ended, output)] = group.finish()
    assert ended == status, output
    return output


def found(folder: Path) -> Profile:
    return read(folder / "profile.json")


@pytest.mark.parametrize(
    "kind, backend",
    [
        *((kind, "herringbone") for kind in ("ddp", "ddp-cap", "ddp-unused", "ddp-static", "ddp-no-sync")),
        *((kind, "gloo") for kind in ("ddp", "ddp-cap")),
    ],
)
def test_ranks_under_ddp_have_its_buckets(group: Group, tmp_path: Path, kind: str, backend: str) -> None:
    """The buckets that DDP has made are those of the rule, and its profile says which."""
    pytest.importorskip("torch")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = ["--output", str(tmp_path / "{rank}.json"), "--steps", str(STEPS), str(WORKERS / "profiled.py"), kind, backend]
    group.start_ranks("profiling.py", 2, *words, **place)
    outcomes = group.finish(60)
    assert [status for status, _ in outcomes] == [0, 0], outcomes
    assert "the end of the script" not in outcomes[0][1]
    for rank in range(2):
        profile = read(tmp_path / f"{rank}.json")
        assert profile.run is not None and profile.buckets is not None and profile.measured is not None
        assert (profile.run.rank, profile.run.ranks, profile.run.ranks_on_host) == (rank, 2, 2)
        assert (profile.run.backend, profile.run.wrapper) == (backend, "DistributedDataParallel")
        assert profile.measured.steps == STEPS and profile.measured.passes == (2 if kind == "ddp-no-sync" else 1)
        parameters = list(profile.parameters())
        assert [each.trainable for each in parameters] == [True] * 2 + [False] * 2 + [True] * 4
        assert all(each.ready_seconds for each in parameters if each.trainable)
        cap = {"ddp-cap": 1 << 20}.get(kind, CAP_BYTES)
        assert profile.buckets == grouped(parameters, FIRST_BYTES, cap, kind == "ddp-unused")
    sizes = [sum(parameters[index].bytes for index in bucket) for bucket in profile.buckets.rebuilt]
    assert sizes == ([1089568, 2097152] if kind == "ddp-unused" else [1085472, 2101248])


def of_two_ranks(group: Group, folder: Path, kind: str, *words: str, status: int = 0) -> list[str]:
    """Profile a training of two ranks under DDP; what each prints."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    options = ["--output", str(folder / "profile.json"), "--steps", str(STEPS), *words]
    group.start_ranks("profiling.py", 2, *options, str(WORKERS / "profiled.py"), kind, "herringbone", **place)
    outcomes = group.finish(60)
    assert [ended for ended, _ in outcomes] == [status, status], outcomes
    return [output for _, output in outcomes]


@pytest.mark.parametrize("sums", [True, False])
def test_ranks_without_sums_go_apart(group: Group, tmp_path: Path, sums: bool) -> None:
    """Each rank has other batches, so only sums keep their weights alike."""
    pytest.importorskip("torch")
    outputs = of_two_ranks(group, tmp_path, "ddp-weights", *([] if sums else ["--without-sums"]))
    first, second = ([line for line in output.splitlines() if line.startswith("weights")] for output in outputs)
    assert len(first) == 1 and (first == second) == sums, outputs
    profile = found(tmp_path)
    assert profile.measured is not None and profile.measured.sums == sums
    parameters = list(profile.parameters())
    assert profile.buckets == grouped(parameters, FIRST_BYTES, CAP_BYTES, False)


def test_sums_of_a_hook_cannot_be_left_out(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    outputs = of_two_ranks(group, tmp_path, "ddp-hook", "--without-sums", status=1)
    for output in outputs:
        assert "no profile: DDP's sums cannot be left out, because the script registers a communication hook" in output
    assert not (tmp_path / "profile.json").exists()


@pytest.mark.parametrize("words", [(), ("--without-sums",)])
def test_a_profile_of_two_ranks_can_be_simulated(group: Group, tmp_path: Path, words: Sequence[str]) -> None:
    """The command has the profile's buckets, and predicts no step that is shorter than computing."""
    pytest.importorskip("torch")
    of_two_ranks(group, tmp_path, "ddp", *words)
    profile = found(tmp_path)
    command = [sys.executable, "-m", "herringbone", "simulate-training", "--model", str(tmp_path / "profile.json")]
    options = ["--workers", "2", "--algorithm", "ring", "--gbps", "0.5", "--json"]
    done = subprocess.run([*command, *options], env=clean_environment({}), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    parameters = list(profile.parameters())
    assert profile.buckets is not None and profile.measured is not None
    sizes = [sum(parameters[index].bytes for index in bucket) for bucket in profile.buckets.rebuilt]
    assert [bucket["bytes"] for bucket in said["buckets"]] == sizes
    measured = profile.measured
    computing = measured.forward_seconds + measured.backward_seconds + measured.optimizer_seconds + measured.other_seconds
    computing += measured.tail_seconds if words else 0.0
    assert said["forward_s"] + said["backward_s"] + said["after_s"] == pytest.approx(computing)
    [step] = said["steps"]
    # 3 MiB over links of 0.5 Gbit/s take 50 ms, and most of them is ready at the end.
    assert step["step_s"] >= computing and step["exposed_s"] > 0
    assert step["step_s"] == pytest.approx(computing + step["exposed_s"])


def test_parts_that_sleep_take_as_long_as_that(group: Group, tmp_path: Path) -> None:
    """A sleep is never shorter, so lower bounds hold on any machine."""
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, "sleeps", "--json")
    profile = found(tmp_path)
    assert json.loads(output.splitlines()[-1])["layers"] == json.loads((tmp_path / "profile.json").read_text())["layers"]
    assert [layer.name for layer in profile.layers] == ["", "hidden", "out"]
    took = profile.measured
    assert took is not None and profile.run is not None and profile.run.wrapper == "none" and profile.buckets is None
    assert min(took.forward_seconds, took.backward_seconds, took.optimizer_seconds, took.other_seconds) >= SLEEP
    assert took.step_seconds >= 4 * SLEEP
    _, hidden, out = profile.layers
    last, first = ([each.ready_seconds or 0.0 for each in layer.parameters] for layer in (out, hidden))
    assert min(first) - max(last) >= SLEEP > 0 < min(last)


@pytest.mark.parametrize("kind", ["closure", "compiled", "compiled in place", "outer"])
def test_trainings_of_other_forms_are_profiled(group: Group, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, kind)
    profile = found(tmp_path)
    assert profile.name == "Net" and profile.elements == 1 + 16 * 32 + 32 + 32 * 4 + 4
    assert [layer.name for layer in profile.layers] == ["", "hidden", "out"]
    assert profile.run is not None and profile.run.compiled == kind.startswith("compiled")
    assert profile.measured is not None and profile.measured.steps == STEPS
    assert all(each.ready_seconds for each in profile.parameters())
    assert "the end of the script" not in output


def test_passes_before_the_last_one_are_accumulation(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, "accumulates")
    took = found(tmp_path).measured
    assert took is not None and took.passes == 3 and took.accumulation_seconds > 0
    assert "accumulation" in output


def test_a_script_that_moves_elsewhere_is_profiled_where_it_began(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = str(WORKERS / "profiled.py")
    group.start(str(WORKERS / "profiling.py"), "--steps", "2", script, "moves", folder=str(tmp_path), forked=True)
    [(status, output)] = group.finish()
    assert status == 0 and "wrote profile.json" in output and found(tmp_path).elements == 677, output


def test_a_script_that_ends_early_has_the_steps_that_there_were(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, "short", "--warm-up", "2")
    took = found(tmp_path).measured
    assert took is not None and took.steps == 3
    assert "the end of the script" in output and "ended after 3 of the 4 steps" in output


def test_a_process_that_the_script_forks_is_left_alone(group: Group, tmp_path: Path) -> None:
    """It trains to its end, is neither measured nor stopped, and writes no profile."""
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, "forks")
    lines = output.splitlines()
    assert lines.count("the end of the child") == 1 and "the child ended with 7" in lines, output
    assert sum(line.startswith("wrote ") for line in lines) == 1 and "the end of the script" not in lines, output


def test_a_model_whose_name_controls_terminals_has_a_profile(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert "\033" not in profiled(group, tmp_path, "named")
    assert found(tmp_path).name == "Net[2J"


REASONS = {
    "functional": "has stepped an optimizer 2 times or more and never called backward()",
    "untrained": "no training step was seen in profiled.py",
    "manual": "has called backward() 40 times but no optimizer",
    "short": "has trained 5 steps, but 5 are for the warm-up: pass a --warm-up below 5",
    "of two": "updates parameters of several models (Net, Net)",
    "two models": "updates parameters that Net does not have",
    "uncalled": "trains Net without calling it",
    "within": "steps within the backward pass",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_script_without_a_profile_is_told_why(group: Group, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, kind, status=1)
    assert "herringbone.profile: no profile: " in output and REASONS[kind] in output, output
    assert "Traceback" not in output and not (tmp_path / "profile.json").exists()


def test_a_script_that_fails_keeps_its_error_and_its_code(group: Group, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = profiled(group, tmp_path, "fails", status=1)
    lines = output.splitlines()
    first = lines.index("Traceback (most recent call last):")
    assert "profiled.py" in lines[first + 1] and "runpy" not in output
    assert "ValueError: an error of the script" in lines
    assert "ended with exit code 1, so there is no profile" in lines[-1]
    with Group() as another:
        assert "exit code 7" in profiled(another, tmp_path, "exits", status=7)


def test_models_on_other_devices_are_refused() -> None:
    torch = pytest.importorskip("torch")
    from herringbone.profile import finding
    from herringbone.profile.problems import ProfileError

    with pytest.raises(ProfileError, match="a parameter is on meta: .*CUDA_VISIBLE_DEVICES"):
        finding.outline(torch.nn.Linear(2, 2, device="meta"))
    sharded = type("FullyShardedDataParallel", (torch.nn.Linear,), {})
    with pytest.raises(ProfileError, match="sharded"):
        finding.outline(sharded(2, 2))


def test_shared_parameters_stand_in_their_first_layer() -> None:
    torch = pytest.importorskip("torch")
    from herringbone.profile import finding

    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5))
    model[1].weight = model[0].weight
    layers = finding.layers_of(model, {0: 2.0, 1: 1.0})
    assert [(layer.name, [each.name for each in layer.parameters]) for layer in layers] == [("0", ["weight"]), ("1", ["bias"])]
    assert [each.ready_seconds for layer in layers for each in layer.parameters] == [2.0, 1.0]
    assert len(finding.outline(model)) == len(list(model.parameters()))


@pytest.mark.parametrize(
    "words, status, message",
    [
        (["--steps", "0", "train.py"], 2, "'0' is no whole number from 1 to 10000"),
        (["--warm-up", "1", "train.py"], 2, "'1' is no whole number from 2 to 10000"),
        (["--output", "/nowhere/profile.json", "train.py"], 2, "the folder /nowhere does not exist"),
        (["nowhere.py"], 3, "the script nowhere.py does not exist"),
        ([], 2, "script"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str],
    status: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    from herringbone.profile.__main__ import main

    monkeypatch.chdir(tmp_path)
    try:
        ended: Any = main(words)
    except SystemExit as ending:
        ended = ending.code
    assert ended == status and message in capfd.readouterr().err


def test_without_torch_an_error_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    program = (
        "import sys; sys.modules['torch'] = None; from herringbone.profile.__main__ import main; sys.exit(main(['train.py']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=clean_environment({}), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 3 and "herringbone.profile needs torch" in ended.stderr
