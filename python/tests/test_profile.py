"""``herringbone.profile``: buckets, what it makes of a training's moments, and files of profiles."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from herringbone.profile import Buckets, FormatError, Layer, Measured, Parameter, Profile, Run, parsed, read, text
from herringbone.profile.buckets import CAP_BYTES, FIRST_BYTES, arrival, assigned, grouped
from herringbone.profile.options import Options
from herringbone.profile.steps import Recorder, measured, ready
from herringbone.profile.summary import summary

MODELS = sorted((ROOT / "crates" / "cli" / "models").glob("*.json"))
MEASURED = ROOT / "testdata" / "profiles" / "measured.json"


def of(*sizes: int, dtype: str = "float32", ready: list[float | None] | None = None) -> list[Parameter]:
    """Parameters of so many bytes."""
    moments = ready or [None] * len(sizes)
    return [Parameter("weight", (size // 4,), dtype, ready_seconds=moment) for size, moment in zip(sizes, moments)]


# Buckets


def test_a_bucket_is_full_when_it_reaches_its_limit() -> None:
    parameters = of(40, 60, 100, 4, 96, 100, 8)
    assert assigned(parameters, range(7), [100, 200]) == [[0, 1], [2, 3, 4], [5, 6]]
    assert assigned(parameters, range(7), [101, 200]) == [[0, 1, 2], [3, 4, 5], [6]]
    assert assigned(parameters, [6, 2, 0], [8, 8]) == [[6], [2], [0]]
    assert assigned(parameters, range(7), []) == [[0, 1, 2, 3, 4, 5, 6]]
    assert assigned(parameters, [], [8]) == []


def test_the_last_limit_holds_for_all_further_buckets() -> None:
    assert assigned(of(*[4] * 7), range(7), [4, 8]) == [[0], [1, 2], [3, 4], [5, 6]]


def test_each_dtype_has_buckets_and_limits_of_its_own() -> None:
    parameters = [*of(8), *of(16, dtype="float64"), *of(8), *of(16, dtype="float64"), *of(8)]
    assert [each.bytes for each in parameters] == [8, 32, 8, 32, 8]
    assert assigned(parameters, range(5), [8, 16]) == [[0], [1], [3], [2, 4]]


def test_gradients_arrive_in_the_order_of_their_moments_else_from_the_last_layer() -> None:
    assert arrival(of(4, 4, 4)) == [2, 1, 0]
    assert arrival(of(4, 4, 4, ready=[0.1, 0.3, 0.2])) == [0, 2, 1]
    assert arrival(of(4, 4, 4, ready=[0.1, None, 0.1])) == [2, 0, 1]
    frozen = [dataclasses.replace(each, trainable=number != 1) for number, each in enumerate(of(4, 4, 4))]
    assert arrival(frozen) == [2, 0]


def test_the_first_step_has_one_bucket_and_later_ones_follow_the_arrival() -> None:
    parameters = of(2 << 20, 4096, 1 << 20, 1024, ready=[0.0105, 0.0061, 0.006, 0.0021])
    assert grouped(parameters) == Buckets(FIRST_BYTES, CAP_BYTES, [[0, 1, 2, 3]], [[3, 2], [1, 0]])
    kept = grouped(parameters, finds_unused=True)
    assert kept.initial == kept.rebuilt == [[1, 2, 3], [0]]
    assert grouped(parameters, 4096, 4096).rebuilt == [[3, 2], [1], [0]]


# Steps


def recorded(script: str) -> Recorder:
    """Tells moments: a letter for each, and a second passes at each dot. Digits are gradients."""
    recorder, now = Recorder(), 0.0
    moments: dict[str, Callable[[float], Any]] = {
        "s": recorder.step_begins,
        "f": recorder.forward_begins,
        "F": recorder.forward_ends,
        "b": recorder.backward_begins,
        "B": recorder.backward_ends,
        "o": recorder.optimizer_begins,
        "O": recorder.optimizer_ends,
    }
    for letter in script.replace(" ", ""):
        if letter == ".":
            now += 1
        elif letter.isdigit():
            recorder.gradient_ready(int(letter), now)
        else:
            moments[letter](now)
    recorder.finish()
    return recorder


def test_a_step_has_parts_that_add_up() -> None:
    [step] = recorded("s.f..F.b.2...1.0..B.o....O").steps
    (one,) = step.passes
    assert (one.forward, one.backward, one.tail, step.optimizer) == (2, 5, 2, 4)
    assert one.ready == {2: 1, 1: 4, 0: 5}
    assert step.seconds == 16 and step.other == 3 and step.accumulation == 0


def test_a_step_ends_with_the_last_optimizer_before_the_next_forward() -> None:
    first, second = recorded("s f.F b.0B o.O .o.O ... f.F b.0B o.O").steps
    assert (first.seconds, first.optimizer) == (5, 2)
    assert (second.seconds, second.other) == (6, 3)


def test_only_the_last_of_several_passes_has_moments() -> None:
    [step] = recorded("s f.F b..1.0B f.F b.0.B .o.O").steps
    assert len(step.passes) == 2 and step.accumulation == 4
    assert step.passes[-1].backward == 1 and step.passes[-1].tail == 1
    assert step.ready() == {0: 1, 1: 0}


def test_a_closure_is_no_optimizers_time() -> None:
    first, second = recorded("s o.f..Fb...0B.O o.f..Fb...0B.O").steps
    assert [first.optimizer, first.passes[0].forward, first.passes[0].backward, first.other] == [2, 2, 3, 0]
    assert second.seconds == 7


def test_a_pass_within_a_pass_and_a_forward_within_it_are_part_of_it() -> None:
    [step] = recorded("s f.F b.1 f.F b.B .0.B o.O").steps
    assert step.passes[0].ready == {1: 1, 0: 4} and step.passes[0].forward == 1


def test_what_is_no_training_makes_no_step() -> None:
    assert recorded("f.F b.0B o.O").steps == []  # nobody has said that the first step begins
    assert recorded("s f.F o.O f.F").steps == []  # nothing was differentiated
    assert recorded("s f.F b.B o.O").steps == []  # no gradient of the model came
    assert recorded("s f.F b.0B").steps == []  # no optimizer


def test_medians_are_over_steps_and_gradients_that_never_come_are_missing() -> None:
    steps = recorded("s f.F b.0.1B o.O f..F b..0B o.O f...F b...0B o.O").steps
    found = measured(steps, 2, True)
    assert (found.steps, found.warm_up, found.passes) == (3, 2, 1)
    assert (found.forward_seconds, found.backward_seconds, found.step_seconds) == (2, 2, 5)
    assert ready(steps) == {0: 2, 1: 2}


# Files


def test_the_example_is_read_and_written_as_it_is() -> None:
    profile = read(MEASURED)
    assert text(profile) == MEASURED.read_text()
    assert profile.timing == "seconds" and profile.measured is not None and profile.measured.steps == 20
    assert profile.buckets is not None and profile.buckets.rebuilt == grouped(list(profile.parameters())).rebuilt


def test_models_are_what_the_tool_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    tool = importlib.import_module("model_profiles")
    monkeypatch.setattr(sys, "argv", ["model_profiles.py", str(tmp_path)])
    tool.main()
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in MODELS}, "run tools/model_profiles.py"


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_totals_are_those_that_were_published(path: Path) -> None:
    """To the last parameter where these are exact; BERT's and Fairring's are rounded."""
    profile = read(path)
    assert path.stat().st_size < 60_000 and profile.published is not None
    exact = "torchvision" in profile.published.source
    assert profile.elements == pytest.approx(profile.published.parameters, rel=0 if exact else 0.012)
    if profile.published.multiply_adds is not None:
        assert profile.multiply_adds == pytest.approx(profile.published.multiply_adds, rel=0.0015)


def changed(change: Callable[[dict[str, Any]], None], path: Path = MEASURED) -> bytes:
    whole = json.loads(path.read_text())
    change(whole)
    return json.dumps(whole).encode()


def put(*place: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts a value to a place in a file."""

    def change(whole: Any) -> None:
        for key in place[:-1]:
            whole = whole[key]
        whole[place[-1]] = value

    return change


WEIGHT = ("layers", 1, "parameters", 0)
REFUSED = {
    "other format": (put("format", value="a picture"), "this is not a profile of a model"),
    "newer": (put("version", value=2), "its version is 2, but this program reads version 1"),
    "version that is true": (put("version", value=True), "its version is True, but"),
    "version with a fraction": (put("version", value=1.0), "its version is 1.0, but"),
    "timing of lists": (put("timing", value=[]), "timing is a list"),
    "name of two lines": (put("name", value="a\nb"), r"name is 'a\\nb', which has a line break or another control character"),
    "name that clears the screen": (put("name", value="\033[2J"), r"name is '\\x1b\[2J', which has"),
    "timing": (put("timing", value="hours"), "timing is 'hours'"),
    "unknown key": (put("layer", value=[]), "the profile has the unknown key 'layer'"),
    "lacking key": (lambda whole: whole.pop("run"), "the profile lacks 'run'"),
    "of the other timing": (put("sample", value="an image"), "the profile has the unknown key 'sample'"),
    "no layers": (put("layers", value=[]), "layers is empty"),
    "empty layer": (put("layers", 1, "parameters", value=[]), r"layers\[1\] has no parameters"),
    "layer": (put("layers", 1, value=7), r"layers\[1\] is 7, not an object"),
    "negative length": (put(*WEIGHT, "shape", value=[-1]), r"layers\[1\].parameters\[0\].shape is -1"),
    "float length": (put(*WEIGHT, "shape", value=[2.0]), r"shape is 2.0, not a whole number"),
    "true as a length": (put(*WEIGHT, "shape", value=[True]), "shape is True, not a whole number"),
    "many lengths": (put(*WEIGHT, "shape", value=[1] * 17), "shape has 17 entries"),
    "bytes": (put(*WEIGHT, "bytes", value=8), "bytes is 8, but .* has 2097152"),
    "dtype": (put(*WEIGHT, "dtype", value="float12"), "dtype is 'float12'"),
    "dtype of lists": (put(*WEIGHT, "dtype", value=[]), "dtype is a list"),
    "before the beginning": (put(*WEIGHT, "ready_seconds", value=-1.0), "ready_seconds is -1.0, not a number of seconds"),
    "frozen and ready": (put(*WEIGHT, "trainable", value=False), "has ready_seconds, but is not trainable"),
    "never said": (lambda whole: whole["layers"][1]["parameters"][0].pop("ready_seconds"), "has no ready_seconds"),
    "long text": (put("name", value="a" * 1001), "not a text of at most 1000 characters"),
    "flag": (put("run", "compiled", value=0), "run.compiled is 0, not true or false"),
    "seconds": (put("measured", "step_seconds", value="1"), "measured.step_seconds is '1', not a number of seconds"),
    "sums": (put("measured", "sums", value=0), "measured.sums is 0, not true or false"),
    "no such parameter": (put("buckets", "rebuilt", value=[[5]]), "has parameter 5"),
    "frozen in a bucket": (put("buckets", "initial", value=[[0]]), "has parameter 0"),
    "twice in buckets": (put("buckets", "rebuilt", value=[[1], [1]]), "has parameter 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_no_profile_can_be_is_refused(name: str) -> None:
    change, message = REFUSED[name]
    with pytest.raises(FormatError, match=message):
        parsed(changed(change))


def test_bytes_that_are_no_json_are_refused(tmp_path: Path) -> None:
    endless = b'{"format": "herringbone model profile", "version": ' + b"[" * 200_000
    for data in (b"", b"\xff", b"[1, 2", endless, b"[]", b'{"a": 1, "a": 2}', b'{"a": NaN}', b"1" * 5000):
        with pytest.raises(FormatError):
            parsed(data)
    with pytest.raises(FormatError, match="more than 16 MiB"):
        parsed(b" " * ((16 << 20) + 1))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FormatError, match="not a regular file"):
        read(tmp_path / "fifo")
    (tmp_path / "file").write_text("{}")
    with pytest.raises(FormatError, match="file: this is not a profile"):
        read(tmp_path / "file")


def test_a_file_needs_operations_in_each_layer() -> None:
    with pytest.raises(FormatError, match=r"layers\[2\] lacks 'multiply_adds'"):
        parsed(changed(lambda whole: whole["layers"][2].pop("multiply_adds"), MODELS[0]))


def test_every_field_is_on_the_page_of_the_format() -> None:
    page = (ROOT / "docs" / "reference" / "model-profile.md").read_text()
    kinds = (Buckets, Layer, Measured, Parameter, Profile, Run)
    names = {field.name for kind in kinds for field in dataclasses.fields(kind)} - {"elements"}
    assert [name for name in names if f"`{name}`" not in page] == []


def test_a_rank_writes_its_own_file_or_the_first_one_does() -> None:
    options = Options(Path("train.py"), [], 1, 2, "profile.json", False, True, Path.cwd())
    assert [options.writes(rank) for rank in (0, 1)] == [Path("profile.json"), None]
    each = dataclasses.replace(options, output="rank-{rank}.json")
    assert [each.writes(rank) for rank in (0, 1)] == [Path("rank-0.json"), Path("rank-1.json")]


def test_a_summary_has_all_parts_and_buckets() -> None:
    shown = summary(read(MEASURED))
    assert "787,713 elements in 5 parameters of 3 layers" in shown and "buckets in MiB: 1.00, 2.00" in shown
    for part in ("step", "forward", "backward", "tail", "optimizer", "other"):
        assert f"\n  {part} " in shown
    assert "accumulation" not in shown


def test_the_page_has_all_options_and_reasons() -> None:
    """Reasons are quoted as the program says them."""
    page = (ROOT / "docs" / "profile.md").read_text()
    folder = ROOT / "python" / "herringbone" / "profile"
    options = re.findall(r'add_argument\("(--[\w-]+)"', (folder / "options.py").read_text())
    assert len(options) == 5 and [each for each in options if f"`{each}" not in page] == []
    sources = re.sub(r'"\s*\n\s*f?"', "", "".join(path.read_text() for path in folder.glob("*.py")))
    quoted = re.findall(r"^\| `([^`]+)` \|", page.partition("## If there is no profile")[2], re.MULTILINE)
    assert len(quoted) == 11 and [words for words in quoted if words not in sources] == []
