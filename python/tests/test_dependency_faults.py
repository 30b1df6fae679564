"""The dependency engine where things go wrong: memory under several names, forks, Ctrl-C, closes, failures that nobody asks for."""

from __future__ import annotations

import gc
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

import pytest
from conftest import START_SECONDS, clean_environment

import herringbone

np = pytest.importorskip("numpy")


def run(program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-W", "ignore", *options, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, env=clean_environment())


def interrupted(program: str) -> tuple[int, str]:
    """The exit status and the output of a program that gets Ctrl-C once it has printed a line."""
    # Whoever started the tests in the background has them ignore it.
    restores = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-W", "ignore", "-c", restores + program]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, text=True, env=clean_environment(), **pipes)  # type: ignore[call-overload]
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    return process.returncode, first + rest


def test_all_that_shows_the_memory_of_a_tensor_has_one_variable() -> None:
    torch = pytest.importorskip("torch")
    engine = herringbone.Engine(1)
    parameter = torch.nn.Parameter(torch.zeros(4, 4))
    own = engine.variable_of(parameter)
    shown = [parameter.data, parameter.detach(), parameter.detach().numpy(), parameter.data.numpy()[1:], parameter.view(16)[2:]]
    assert all(engine.variable_of(thing) is own for thing in shown)
    assert engine.variable_of(np.from_dlpack(parameter.detach())) is own
    assert engine.variable_of(parameter.detach().clone()) is not own


def test_a_wait_for_a_parameters_data_is_one_for_the_parameter() -> None:
    torch = pytest.importorskip("torch")
    engine, parameter = herringbone.Engine(1), torch.nn.Parameter(torch.zeros(4))
    go = threading.Event()

    def fill() -> None:
        go.wait(10)
        parameter.data.fill_(3)

    engine.push(fill, mutates=[parameter.data])
    threading.Timer(0.2, go.set).start()
    engine.wait(parameter.detach())
    assert parameter.tolist() == [3, 3, 3, 3]
    engine.push(lambda: 1 / 0, mutates=[parameter])
    with pytest.raises(ZeroDivisionError):
        engine.wait(parameter.detach().numpy())


def test_arrays_and_tensors_over_one_memory_have_one_variable() -> None:
    torch = pytest.importorskip("torch")
    engine, array = herringbone.Engine(1), np.zeros(100)
    assert engine.variable_of(torch.from_numpy(array[10:])) is engine.variable_of(array)
    memory = bytearray(80)
    assert engine.variable_of(np.frombuffer(memory)) is engine.variable_of(np.frombuffer(memory, np.uint8, 8, 16))
    other = np.zeros(100)[::-1]
    assert engine.variable_of(torch.from_numpy(other.base[50:])) is engine.variable_of(other)
    assert engine.variable_of(np.zeros(0)) is not engine.variable_of(np.zeros(0))
    with pytest.raises(TypeError, match="a float64 is no variable"):
        engine.variable_of(np.float64(3))
    with pytest.raises(TypeError, match="sparse"):
        engine.variable_of(torch.zeros(3, 3).to_sparse())


def test_parts_that_turn_out_to_be_of_one_array_are_waited_for_with_it() -> None:
    torch = pytest.importorskip("torch")
    engine, array, go = herringbone.Engine(2), np.zeros(100), threading.Event()
    parts = [torch.from_numpy(array[:40]), torch.from_numpy(array[60:])]
    assert engine.variable_of(parts[0]) is not engine.variable_of(parts[1])

    def fill(part: object, value: int) -> None:
        go.wait(10)
        part.fill_(value)  # type: ignore[attr-defined]

    for value, part in enumerate(parts, 1):
        engine.push(lambda part=part, value=value: fill(part, value), mutates=[part])
    threading.Timer(0.2, go.set).start()
    engine.wait(array)
    assert array.sum() == 40 * 1 + 40 * 2
    assert engine.variable_of(array[50:]) is engine.variable_of(parts[1]) is engine.variable_of(parts[0])


def test_memory_that_is_gone_leaves_no_failure_for_the_next_one_at_its_place() -> None:
    torch = pytest.importorskip("torch")
    engine = herringbone.Engine(1)
    for _ in range(50):
        tensor, array = torch.zeros(1000), np.zeros(1000)
        engine.wait(tensor)
        engine.wait(array)
        engine.push(lambda: 1 / 0, mutates=[tensor, array])
        engine.wait(engine.var())
        del tensor, array
    gc.collect()
    assert len(engine._of_memory) == 0
    with pytest.raises(ZeroDivisionError):
        engine.wait_all()


def test_a_ticket_releases_variables_of_its_own_engine_alone() -> None:
    engine, other = herringbone.Engine(1), herringbone.Engine(1)
    tags, foreign, errors = [engine.var() for _ in range(3)], [other.var() for _ in range(3)], []

    def begin(done: herringbone.dependency.OnComplete) -> None:
        for variable in foreign:
            try:
                done.release(variable)
            except ValueError as error:
                errors.append(str(error))
        threading.Timer(0.1, done.complete).start()

    engine.push_async(begin, [], tags)
    seen = []
    engine.push(lambda: seen.append(len(errors)), tags)
    engine.wait_all()
    assert seen == [3] and all("another dependency engine" in error for error in errors)


def test_a_release_of_what_an_operation_does_not_use_is_an_error_and_the_operation_goes_on() -> None:
    engine, errors = herringbone.Engine(1), []
    tag, other = engine.var("weights"), engine.var("gradients")

    def begin(done: herringbone.dependency.OnComplete) -> None:
        done.release(tag)
        for variable in (other, tag):
            try:
                done.release(variable)
            except ValueError as error:
                errors.append(str(error))
        done.complete()
        done.release(other)  # there is nothing left to release

    engine.push_async(begin, [], [tag], name="load")
    engine.wait_all()
    begun = r"done.release of operation 0 \(load\): operation 0 \(load\) cannot release variable \d+ \(%s\): "
    assert [bool(re.match(begun % name, text)) for name, text in zip(("gradients", "weights"), errors)] == [True] * 2, errors
    assert tag.version == 1


def test_an_operation_ends_once_and_what_fails_after_its_end_is_printed() -> None:
    program = """
import herringbone
engine = herringbone.Engine(1)
tag, ran = engine.var("tag"), []
def twice(done):
    done.complete()
    done.complete()
engine.push_async(twice, [], [tag], name="load")
engine.push(lambda: ran.append(tag.version), [tag])
engine.wait_all()
print(ran)
"""
    done = run(program)
    assert done.returncode == 0 and done.stdout == "[1]\n", done.stderr
    assert "done.complete of operation 0 (load): it has ended already" in done.stderr, done.stderr


def test_a_read_only_array_is_read_and_never_mutated() -> None:
    engine, array = herringbone.Engine(1), np.ones((2, 3))
    frozen = array[1:]
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"push: an array of shape \(1, 3\) in mutates of operation 'scale' is read-only"):
        engine.push(lambda: None, mutates=[array, frozen], name="scale")
    assert engine.pending == 0
    seen: list[float] = []
    engine.push(lambda: seen.append(float(frozen.sum())), [frozen])
    engine.wait_all()
    assert seen == [3.0]


def test_a_forked_child_is_told_and_never_hangs() -> None:
    program = """
import os, time, herringbone
engine = herringbone.Engine(2)
tag, order = engine.var("tag"), []
import numpy
array = numpy.zeros(8)
calls = [lambda: engine.pending, engine.var, engine.picture, engine.record, engine.trace, lambda: engine.push(print),
         lambda: engine.wait(tag), engine.wait_all, lambda: engine.variable_of(numpy.ones(3))]
for turn in range(60):
    for _ in range(300):
        engine.push(lambda: None, [], [tag, array])
    child = os.fork()
    if child == 0:
        for call in calls:
            try:
                call()
            except herringbone.ForkedError:
                continue
            os._exit(3)
        del tag
        engine.close()
        with herringbone.Engine(1) as own:
            own.push(lambda: order.append(1))
        os._exit(0 if order == [1] else 4)
    deadline = time.monotonic() + 30
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, 9)
            raise SystemExit(f"the child of turn {turn} hangs")
        time.sleep(0.002)
    assert status == 0, os.waitstatus_to_exitcode(status)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_a_push_that_waits_for_room() -> None:
    status, said = interrupted("""
import os, threading, herringbone
go = threading.Event()
engine = herringbone.Engine(1)
engine.push(go.wait)
for _ in range(65_535):
    engine.push(int)
print("full", flush=True)
try:
    engine.push(int)
except KeyboardInterrupt:
    print("interrupted", engine.pending, flush=True)
    go.set()
    engine.wait_all()
    print("done", engine.pending, flush=True)
""")
    assert (status, said.split("\n")[:3]) == (0, ["full", "interrupted 65536", "done 0"]), said


@pytest.mark.parametrize("way", ["close", "exit"])
def test_ctrl_c_ends_a_close_and_the_exit(way: str) -> None:
    status, said = interrupted(f"""
import threading, herringbone
engine = herringbone.Engine(1)
engine.push(threading.Event().wait)
print("runs", flush=True)
if {way == "close"}:
    try:
        engine.close()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
""")
    assert status == 0, said
    assert ("interrupted" if way == "close" else "KeyboardInterrupt") in said


def test_a_failure_that_nobody_asks_for_is_told_at_the_end() -> None:
    program = """
import herringbone
engine = herringbone.Engine(1)
a, b = engine.var(), engine.var()
def first(): raise KeyError("told")
def second(): raise KeyError("unreported")
engine.push(first, [], [a], name="one")
try:
    engine.wait(a)
except KeyError:
    pass
if {fails}:
    engine.push(second, [], [b], name="two")
{end}
"""
    for end in ("", "engine.close()"):
        done = run(program.format(fails=True, end=end))
        assert "nobody waited for operation two, which failed" in done.stderr and "'unreported'" in done.stderr, done.stderr
        assert "'told'" not in done.stderr
    assert "KeyError: 'unreported'" in run(program.format(fails=True, end="del engine, a, b")).stderr
    done = run(program.format(fails=False, end=""))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_function_may_close_its_engine_and_a_later_close_waits() -> None:
    engine, ran, go = herringbone.Engine(2), [], threading.Event()

    def closes() -> None:
        engine.close()
        go.wait(10)
        time.sleep(0.2)
        ran.append(1)

    engine.push(closes)
    threading.Timer(0.1, go.set).start()
    while True:
        try:
            engine.push(int)
        except herringbone.ClosedError:
            break
    engine.close()
    assert ran == [1]


def test_pictures_and_traces_take_any_name() -> None:
    engine, go = herringbone.Engine(1), threading.Event()
    name = "a\0b\x1f<\ufffe"
    tag = engine.var(name)
    engine.record()
    engine.push(lambda: go.wait(10), [], [tag], name=name)
    picture = engine.picture()
    go.set()
    engine.wait_all()
    root = xml.etree.ElementTree.fromstring(picture)
    assert any("a\ufffdb\ufffd<\ufffd" in (text.text or "") for text in root.iter())
    assert "a\\u0000b" in engine.trace()
