"""The dependency engine for Python: arrays as variables, exceptions, pictures, traces, and collectives of real processes."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from conftest import START_SECONDS, clean_environment

import herringbone

np = pytest.importorskip("numpy")

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_random_programs_compute_what_calls_would() -> None:
    for seed in range(40):
        chosen = random.Random(seed)
        steps = [(chosen.sample(range(5), 2), chosen.randrange(5), chosen.randrange(100)) for _ in range(40)]
        serial, parallel = [[np.full(3, float(at)) for at in range(5)] for _ in range(2)]

        def act(arrays: list[object], reads: list[int], target: int, number: int) -> None:
            arrays[target] *= 0.5  # type: ignore[operator]
            for read in reads:
                arrays[target] += arrays[read] * number  # type: ignore[operator]
            arrays[target] %= 1000  # type: ignore[operator]

        with herringbone.Engine(1 + seed % 8) as engine:
            for reads, target, number in steps:
                act(serial, reads, target, number)
                call = (parallel, reads, target, number)
                used = [parallel[read] for read in reads]
                engine.push(lambda call=call: act(*call), used, [parallel[target]], chosen.randrange(-2, 3))
        assert all(np.array_equal(a, b) for a, b in zip(serial, parallel)), f"seed {seed}"


def test_views_have_the_variable_of_their_memory() -> None:
    engine = herringbone.Engine(1)
    array = np.zeros((4, 4))
    assert engine.variable_of(array[1:].T) is engine.variable_of(array)
    assert engine.variable_of(array.copy()) is not engine.variable_of(array)
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 4)
    assert engine.variable_of(tensor[1:].t()) is engine.variable_of(tensor)


def test_the_variable_of_an_array_goes_with_it() -> None:
    engine = herringbone.Engine(1)
    array = np.zeros(4)
    engine.push(lambda: None, mutates=[array])
    engine.wait_all()
    gone = weakref.ref(array)
    del array
    assert gone() is None and len(engine._of_memory) == 0


def test_exceptions_come_at_the_wait_and_dependants_are_skipped() -> None:
    engine = herringbone.Engine(2)
    a, b, ran = engine.var("a"), engine.var("b"), []

    def fails() -> None:
        raise KeyError("mine")

    engine.push(fails, [], [a])
    engine.push(lambda: ran.append(1), [a], [b])
    with pytest.raises(KeyError, match="mine"):
        engine.wait(b)
    engine.wait(b)
    with pytest.raises(KeyError, match="mine"):
        engine.wait_all()
    engine.wait_all()
    engine.push(lambda: ran.append(2), [a], [b])
    engine.wait(b)
    assert ran == [2] and (a.version, b.version) == (0, 1)


def test_async_functions_end_on_any_thread_and_once() -> None:
    engine = herringbone.Engine(2)
    tag, other, kept, order = engine.var(), engine.var(), [], []

    def begin(done: herringbone.dependency.OnComplete) -> None:
        done.release(other)
        kept.append(done)
        threading.Timer(0.05, lambda: (order.append("end"), done.complete())).start()

    engine.push_async(begin, [], [tag, other])
    engine.push(lambda: order.append("released"), [other])
    engine.push(lambda: order.append("after"), [tag])
    engine.wait_all()
    assert order == ["released", "end", "after"]
    with pytest.raises(RuntimeError, match="done.complete of operation .*: it has ended already"):
        kept[0].complete()

    engine.push_async(lambda done: done.fail(ValueError("no")), [], [tag])
    with pytest.raises(ValueError, match="no"):
        engine.wait(tag)
    engine.push_async(lambda done: 1 / 0, [], [tag])
    with pytest.raises(ZeroDivisionError):
        engine.wait(tag)
    engine.push_async(lambda done: None, [], [tag])
    with pytest.raises(
        herringbone.HerringboneError, match="operation .* failed: its function returned without using `done`.*done.complete"
    ):
        engine.wait(tag)


def test_what_makes_no_sense_is_refused() -> None:
    engine = herringbone.Engine(1)
    with pytest.raises(TypeError, match="cannot be called"):
        engine.push(3)
    with pytest.raises(TypeError, match="reads is a Variable; pass a list"):
        engine.push(print, engine.var())
    with pytest.raises(TypeError, match="a int is no variable, array or tensor"):
        engine.push(print, [3])
    with pytest.raises(ValueError, match="another dependency engine"):
        engine.push(print, [herringbone.Engine(1).var()])
    with pytest.raises(ValueError, match="pass 1 to 256"):
        herringbone.Engine(0)
    engine.push(engine.wait_all, [], [])
    with pytest.raises(herringbone.HerringboneError, match="may not wait for the engine"):
        engine.wait_all()
    engine.close()
    with pytest.raises(herringbone.ClosedError, match="make a new one"):
        engine.push(print)


def test_a_forked_child_is_told_to_make_its_own() -> None:
    program = """
import os, herringbone
engine = herringbone.Engine(1)
if os.fork() == 0:
    try:
        engine.push(print)
    except herringbone.ForkedError:
        os._exit(7)
    os._exit(1)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=START_SECONDS, env=clean_environment())
    assert done.returncode == 7


def test_a_program_may_end_with_operations_that_nobody_waits_for() -> None:
    program = "import herringbone\ne = herringbone.Engine(2)\nfor _ in range(1000): e.push(lambda: sum(range(100)))\nprint('end')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=START_SECONDS, env=clean_environment()
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_example_has_the_bits_of_calls_and_draws_its_queues(tmp_path: Path) -> None:
    picture, trace = tmp_path / "step.svg", tmp_path / "step.json"
    command = [sys.executable, "-m", "herringbone", "launch", "-n", "2", "--", sys.executable, str(EXAMPLES / "engine_mlp.py")]
    command += ["--steps=8", f"--picture={picture}", f"--trace={trace}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same bits as one call after the other: True") == 2
    svg = picture.read_text()
    assert "forward 0" in svg and "all_reduce 2" in svg and svg.count("#ef8a80") > 10
    names = [event["name"] for event in json.loads(trace.read_text()) if event["ph"] == "X"]
    assert names.count("all_reduce 1") == 8 and names.count("backward 2") == 8
