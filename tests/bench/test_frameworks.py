"""What `make frameworks` makes of the outcomes of trainings; no framework is needed here."""

import importlib.util
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOSSES = [[1.5, 1.25], [1.0, 0.75]]


@pytest.fixture(scope="module")
def run():
    """tests/frameworks/run.py, under a name of its own: other folders have a run.py, too."""
    spec = importlib.util.spec_from_file_location("frameworks_run", ROOT / "tests" / "frameworks" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(losses=LOSSES, digests=("a", "a"), folds=6):
    return [
        {"losses": each, "digest": digest, "all_reduces": folds, "kind": "BackendHerringbone"}
        for each, digest in zip(losses, digests)
    ]


def test_the_same_bits_are_right_and_nothing_else_is(run):
    gloos = outcome(folds=None)
    assert run.judged(outcome(), gloos) == ("Gloo's losses and parameters, bit for bit, in 6 all-reduces", None)
    assert run.judged(gloos, gloos) == ("the reference", None)
    one_bit = [LOSSES[0], [1.0, 0.7500000000000001]]
    for other, said in (
        (outcome(losses=one_bit), "losses [[1.5, 1.25], [1.0, 0.7500000000000001]] and through Gloo"),
        (outcome(digests=("b", "b")), "digest ['b', 'b'] and through Gloo ['a', 'a']"),
        (outcome(digests=("a", "b")), "the ranks have different parameters"),
    ):
        result, wrong = run.judged(other, gloos)
        assert result == "" and wrong.startswith(said)


def test_a_training_that_fails_fails_the_run(run, monkeypatch, tmp_path, capsys):
    def train(_, way):
        return ([], "exit status 1") if way.name == "named" else (outcome(), None)

    record = tmp_path / "frameworks.md"
    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(run, "version", lambda _: "1.0")
    monkeypatch.setattr(run, "the_page", lambda: run.row("all three", "the page", "4 passed", None, 1.0))
    monkeypatch.setattr(run, "replicas", lambda: run.row("torchft", "its page", "7 passed", None, 1.0))
    monkeypatch.setattr(run, "averages", lambda: run.row("torchft", "averages", "3 passed", None, 1.0))
    monkeypatch.setattr("sys.argv", ["run.py", "--record", str(record)])
    with pytest.raises(SystemExit) as end:
        run.main()
    assert end.value.code == 1
    assert "exit status 1" in capsys.readouterr().err
    lines = record.read_text().splitlines()
    assert [line for line in lines if "FAILED" in line] == [f"| lightning | 1.0 | {run.NAMED.reported} |  | FAILED |"]
    assert len([line for line in lines if "| 1.0 |" in line]) == sum(map(len, run.WAYS.values()))


def test_figures_are_objects_if_asked_for(run, monkeypatch, capsys):
    monkeypatch.setattr(run, "train", lambda *_: (outcome(), None))
    monkeypatch.setattr(run, "version", lambda _: "1.0")
    monkeypatch.setattr("sys.argv", ["run.py", "--json", "--only", "accelerate"])
    with pytest.raises(SystemExit) as end:
        run.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert end.value.code == 0
    assert [(each["way"], each["wrong"]) for each in rows] == [(way.reported, None) for way in run.WAYS["accelerate"]]
