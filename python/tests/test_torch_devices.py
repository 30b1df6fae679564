"""Tensors in an accelerator's memory, on one that is simulated: real processes, and streams that move when they like."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from conftest import WORKERS, Group, Run, cases_of, collect
from ports import free_port
from staged_corpus import cases_on_devices

import herringbone
from herringbone._herringbone import Completions, Device
from herringbone.torch import member
from herringbone.torch.callbacks import CallbackThreads
from herringbone.torch.devices import Cuda, located
from herringbone.torch.local_sums import LocalSums, fails_everywhere
from herringbone.torch.member import Member, Unformed
from herringbone.torch.mixing import others_in
from herringbone.torch.streams import cuda_devices
from herringbone.torch.tensors import Lacking, stand_in
from herringbone.torch.work import StagedWork, Work


FULL = pytest.mark.full
"""Each job costs seconds, so `make test` has one of each kind, as programs run."""


@pytest.fixture(
    scope="module",
    params=["hosts that wait", pytest.param("two ranks", marks=FULL), pytest.param("three ranks", marks=FULL)],
)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The worker's cases where streams cannot wait for values, and where they can with 2 and 3 ranks."""
    size = 3 if request.param == "three ranks" else 2
    folder = tmp_path_factory.mktemp("staged")
    arguments = ["blocking"] if request.param == "hosts that wait" else []
    with Group() as group:
        group.torchrun(str(WORKERS / "staged.py"), size, *arguments, RESULTS=str(folder))
        group.finish(together=True)
    return collect(size, folder, "".join(group.lines))


@pytest.mark.parametrize("case", cases_of("staged.py"))
def test_staged(staged: Run, case: str) -> None:
    staged.check(case)


def built_driver(folder: Path, *defined: str) -> Path:
    """The folder of the tests' driver, which is to be found as NVIDIA's."""
    command = ["cc", "-O1", "-shared", "-fPIC", *defined, "-o", str(folder / "libcuda.so.1"), str(WORKERS / "cuda_driver.c")]
    subprocess.run([*command, "-lpthread"], check=True)
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module", params=["no values", pytest.param("values", marks=FULL)])
def driven(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same and more over CUDA's interface, with a driver of the tests, which can wait for values or not."""
    folder = tmp_path_factory.mktemp("driven")
    built_driver(folder, *(["-DNO_VALUES"] if request.param == "no values" else []))
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LD_LIBRARY_PATH": str(folder)}
    with Group() as group:
        group.start_ranks("staged.py", 2, "cuda", forked=False, RESULTS=str(folder), **place)
        outputs = [output for _, output in group.finish()]
    return collect(2, folder, "".join(outputs))


@pytest.mark.parametrize("case", cases_of("staged.py"))
def test_cudas_interface(driven: Run, case: str) -> None:
    driven.check(case)


@pytest.mark.parametrize("case", cases_of("staged_lacking.py"))
def test_a_rank_without_memory_of_its_device_fails_the_call_on_all(driven: Run, case: str) -> None:
    driven.check(case)


def on_a_stand_in(script: str, size: int, folder: Path, *arguments: str, **settings: str) -> Run:
    """The cases of a worker with this many ranks."""
    with Group() as group:
        group.torchrun(str(WORKERS / script), size, *arguments, RESULTS=str(folder), **settings)
        group.finish(together=True)
    return collect(size, folder, "".join(group.lines))


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=FULL)])
def beside_the_host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on_a_stand_in("staged_calls.py", request.param, tmp_path_factory.mktemp("calls"))


@pytest.mark.parametrize("case", cases_of("staged_calls.py"))
def test_calls_beside_those_of_the_host(beside_the_host: Run, case: str) -> None:
    beside_the_host.check(case)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return on_a_stand_in("staged_corpus.py", 2, tmp_path_factory.mktemp("training"), "training.py", "values")


@FULL
@pytest.mark.parametrize("case", cases_on_devices("training.py"))
def test_trainings_of_ddp_and_fsdp(trained: Run, case: str) -> None:
    trained.check(case)


@FULL
@pytest.mark.parametrize(
    "script", ["collectives.py", "folds.py", "mistakes.py", "endings.py", "dispatching.py", "compressed_ddp.py"]
)
def test_what_holds_for_the_hosts_tensors(script: str, tmp_path: Path) -> None:
    run = on_a_stand_in("staged_corpus.py", 2, tmp_path, script)
    for case in cases_on_devices(script):
        run.check(case)


@FULL
def test_exchanges_leave_nothing_behind(driver: Path, tmp_path: Path) -> None:
    """Over CUDA's interface: the simulated accelerator's log of accesses grows with each one."""
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "LD_LIBRARY_PATH": str(driver)}
    with Group() as group:
        group.start_ranks("staged_corpus.py", 2, "exchanges.py", "cuda", forked=False, RESULTS=str(tmp_path), **settings)
        outputs = [output for _, output in group.finish()]
    run = collect(2, tmp_path, "".join(outputs))
    for case in cases_on_devices("exchanges.py"):
        run.check(case)


@pytest.fixture(scope="module")
def replaced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    settings = {"HERRINGBONE_REPLACE": "gloo", "HERRINGBONE_LOG": "off"}
    return on_a_stand_in("staged_replaced.py", 2, tmp_path_factory.mktemp("replaced"), **settings)


@FULL
@pytest.mark.parametrize("case", cases_of("staged_replaced.py"))
def test_in_gloos_place(replaced: Run, case: str) -> None:
    replaced.check(case)


@pytest.fixture(scope="module", params=["herringbone", "gloo"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Over a torch that is made as those before 2.14 are, by the backend's own name and in Gloo's place."""
    folder = tmp_path_factory.mktemp("mixed")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "BACKEND": request.param, "HERRINGBONE_LOG": "off"}
    with Group() as group:
        group.start_ranks("mixed.py", 2, forked=False, RESULTS=str(folder), **place)
        outputs = [output for _, output in group.finish()]
    return collect(2, folder, "".join(outputs))


@FULL
@pytest.mark.parametrize("case", cases_of("mixed.py"))
def test_groups_with_other_backends_over_older_torch(mixed: Run, case: str) -> None:
    mixed.check(case)


@pytest.fixture(scope="module")
def lost() -> list[tuple[int, str]]:
    """Of each rank of a job whose last one is killed the status and the output."""
    with Group() as group:
        group.start_ranks("staged_killed.py", 3, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        return group.finish()


def test_a_stream_that_waits_goes_on_when_a_rank_is_killed(lost: list[tuple[int, str]]) -> None:
    status, output = lost[0]
    assert status == 42, output
    assert "next call: " in output and "rank 2 is lost" in output, output


def test_a_failure_that_nobody_asks_for_is_told_by_a_later_call(lost: list[tuple[int, str]]) -> None:
    status, output = lost[1]
    assert status == 43, output
    assert "next call: " in output and "an earlier call has failed, all_reduce" in output, output
    assert "rank 2 is lost" in output, output


def test_a_machine_without_a_driver_says_what_to_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a driver of NVIDIA's, so there is no error to see")
    with pytest.raises(herringbone.UnsupportedError, match=r"cuda:0.*pass CPU tensors, or install the driver"):
        Cuda().device(torch.empty(0, device="meta").as_subclass(OnCuda))


class OnCuda(torch.Tensor):
    """A tensor that says that it lies on the first device of CUDA."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def get_device(self) -> int:
        return 0


def test_what_comes_of_a_tensor_without_memory_lacks_it_on_the_same_device() -> None:
    lacking = stand_in((4, 6), torch.float32, torch.ones(1))
    for made in (lacking[1], lacking.view(-1), lacking.t().detach(), *torch.split(lacking, 2)):
        assert isinstance(made, Lacking) and made.beside is lacking.beside
    assert located(lacking[1]) is lacking.beside and lacking.beside.is_cpu


@pytest.mark.parametrize(
    "is_everywhere, problem",
    [
        (True, "on rank 1: barrier: rank 1 lacks 320 bytes of memory for its part"),
        (True, "on rank 0: barrier (operation 9): rank 1 lacks 320 bytes of memory for its part"),
        (
            True,
            "on rank 0: barrier (operation 9): rank 1 lacks 8 bytes for its part of barrier (operation 8), whose failure has ended this one",
        ),
        (
            False,
            "on rank 0: barrier (operation 9): rank 1 lacks 8 bytes for its part of barrier (operation 10), whose failure has ended this one",
        ),
    ],
)
def test_a_question_that_a_later_call_has_ended_can_have_ended_well_elsewhere(is_everywhere: bool, problem: str) -> None:
    assert fails_everywhere(herringbone.OutOfMemoryError(problem, 1)) is is_everywhere
    assert not fails_everywhere(herringbone.ClosedError(problem))


class Closing(LocalSums):
    """Calls that are listed as running, and what was sent to the other rank of the host."""

    def __init__(self, *are_over: bool) -> None:
        self.sent_to: list[int] = []
        flights: list[Any] = [
            SimpleNamespace(handle=SimpleNamespace(done=lambda is_over=is_over: is_over)) for is_over in are_over
        ]
        self._lock, self._broken, self._sent, self._flying = threading.Lock(), threading.Event(), [], flights
        host: Any = SimpleNamespace(rank=0, size=2, send=lambda other, message: self.sent_to.append(other))
        self._host = host


def test_the_last_message_is_sent_once_when_all_calls_are_over_though_they_are_still_listed() -> None:
    for are_over, sent_to in (((True, False), []), ((True, True), [1]), ((), [1])):
        closing = Closing(*are_over)
        closing.send_last_message()
        closing.send_last_message()
        assert closing.sent_to == sent_to, are_over


class Lasting(LocalSums):
    """Calls on a device that end when the test says so."""

    def __init__(self) -> None:
        self.may_end, self.has_ended = threading.Event(), threading.Event()

    def close(self) -> None:
        assert self.may_end.wait(60)
        self.has_ended.set()

    abort = close


@pytest.mark.parametrize("calls", ["_on_devices", "_sums"])
def test_an_abort_does_not_wait_for_calls_on_devices_that_last(calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "ABORT_SECONDS", 0.01)
    aborted = Member(Unformed(0, 1, "it is of a test"), timedelta(seconds=1), torch.distributed.HashStore())
    lasting = Lasting()
    getattr(aborted, calls)[Device.fake()] = lasting
    aborted.abort()
    assert not lasting.has_ended.is_set()
    lasting.may_end.set()
    assert lasting.has_ended.wait(60)


class Later:
    """A handle whose operation is over when the test says so, and a turn that is next."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.ordered_on: list[str] = []

    def done(self) -> bool:
        return self.over.is_set()

    def notify(self, completions: Completions, token: int) -> None:
        threading.Thread(target=lambda: self.over.wait() and completions.put(token)).start()

    def order(self, timeout: float | None) -> bool:
        self.ordered_on.append(Here.stream)
        return True

    def reach(self) -> None:
        pass

    error = is_next = end = lambda self: None

    def turn(self, apart: bool) -> Later:
        return self

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class Streams(threading.local):
    """The current stream of each thread."""

    stream = "the default one"


Here = Streams()


@contextlib.contextmanager
def on_stream(stream: str) -> Iterator[None]:
    before, Here.stream = Here.stream, stream
    yield
    Here.stream = before


def test_callbacks_compute_on_the_stream_where_the_program_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Here.stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    tensor, later, settled, threads = torch.empty(0, device="meta").as_subclass(OnCuda), Later(), [], CallbackThreads()
    handle: Any = later
    work = Work([handle], ["all_reduce"], [tensor], [lambda: settled.append(Here.stream)], threads)
    work.group = handle
    with on_stream("one"):
        future = work.get_future()
    with on_stream("another"):
        chained = future.then(lambda _: Here.stream)
        both = torch.futures.collect_all([future, torch.futures.Future()])
        assert cuda_devices([tensor, torch.ones(1), tensor]) == (tensor.device,)
    assert not chained.done() and not both.done()
    later.over.set()
    assert chained.wait() == "another"
    assert later.ordered_on == settled == ["one"]
    threads.close()


class Recorded:
    """An event that notes its streams."""

    said: list[str] = []

    def record(self, stream: str) -> None:
        self.said.append(f"behind {stream}")

    def wait(self, stream: str) -> None:
        self.said.append(f"{stream} waits")


def test_every_stream_that_waits_comes_behind_the_further_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Here.stream)
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "Event", Recorded)
    monkeypatch.setattr(Recorded, "said", said := [])
    tensor, later, steps, threads = torch.empty(0, device="meta").as_subclass(OnCuda), Later(), list[str](), CallbackThreads()
    later.over.set()
    handles: list[Any] = [later]
    work = Work(handles, ["all_reduce"], [tensor], [lambda: steps.append(Here.stream)], threads)
    for stream in ("one", "another", "one"):
        with on_stream(stream):
            work.wait()
    assert steps == ["one"] and said == ["behind one", "another waits", "one waits"]
    with on_stream("a third"):
        dropped = StagedWork(handles, ["all_reduce"], [tensor], [lambda: steps.append(Here.stream)], threads)
    del dropped
    assert steps == ["one", "a third"]
    threads.close()


@pytest.mark.parametrize(
    ("backend", "others"),
    [
        ("herringbone", {}),
        ("cpu:herringbone,cuda:nccl", {"cuda": "nccl"}),
        ("cuda:NCCL,cpu:Herringbone", {"cuda": "nccl"}),
        ("cpu:herringbone,cuda:herringbone", {}),
        (None, {}),
    ],
)
def test_what_a_group_has_for_other_devices(backend: object, others: dict[str, str]) -> None:
    assert others_in(backend, frozenset({"herringbone"})) == others
