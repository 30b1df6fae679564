"""Sums over trees of devices: the plans by themselves, and stores of type ``device`` on devices that are simulated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from conftest import WORKERS, Group
from tree_devices import Devices, values_of

from herringbone import ArgumentError, ConfigError, UnsupportedError, _herringbone, kvstore
from herringbone.kvstore import streams
from herringbone.kvstore.tree_plan import SideStream, Piece, Trees, interpret, plan_spread, plan_sum, rows_of, trees_from
from lab.job import python

DGX1 = Path(__file__).parents[2] / "examples" / "dgx1.txt"


def alike(devices: int) -> Trees:
    """Trees over links that are all alike."""
    return trees_from(
        _herringbone.device_trees(json.dumps([[int(one != other) for other in range(devices)] for one in range(devices)]))
    )


@pytest.mark.parametrize("devices", range(1, 17))
def test_a_plan_computes_the_sum_whatever_the_length_and_the_bound(devices: int) -> None:
    trees, drawn = alike(devices), np.random.default_rng(devices)
    for shape in [(), (0,), (1,), (2 * devices - 1, 3), (2 * devices, 1), (2 * devices + 1, 3), (5 * devices + 3,)]:
        values = [drawn.integers(-99, 99, shape) for _ in range(devices)]
        for bound in (0, values[0].size - 1, values[0].size):
            rows = rows_of(shape, values[0].size, devices, bound)
            is_cut = devices > 1 and values[0].size > bound and len(shape) > 0 and shape[0] >= 2 * devices
            assert len(rows) == (devices if is_cut else 1)
            before = [value.copy() for value in values]
            sums = interpret(plan_sum(trees, len(rows)), rows, values)
            total = sums[0] if len(sums) == 1 else np.concatenate(sums)
            assert np.array_equal(total, sum(values)) and all(map(np.array_equal, values, before))
            assert not any(np.shares_memory(total, value) for value in values)


@pytest.mark.parametrize("devices", range(1, 17))
def test_plans_copy_once_along_each_edge_and_wait_for_little(devices: int) -> None:
    trees = alike(devices)
    for parts in {1, devices}:
        plan = plan_sum(trees, parts)
        copied = [
            (step.target.device, step.source.device, step.target.part)
            for step in plan.steps
            if step.act == "copy" and step.source
        ]
        wanted = [(parent, child, part) for part in range(parts) for parent, child in trees[part] or [(0, 0)]]
        assert sorted(copied) == sorted(wanted)
        assert [result.device for result in plan.results] == list(range(parts))
        assert all(all(wait < number for wait in step.waits) and len(step.waits) <= 2 for number, step in enumerate(plan.steps))
        # What waits does so for another stream.
        assert all(plan.steps[wait].side != step.side for step in plan.steps for wait in step.waits)
        for is_from_host in (False, True):
            spread = plan_spread(trees[:parts], tuple(range(parts)), devices, is_from_host)
            written = [step.target for step in spread.steps if step.act == "copy"]
            assert sorted(written, key=str) == sorted(
                (Piece("out", at, part) for at in range(devices) for part in range(parts)), key=str
            )
            readers = [step for step in spread.steps if step.source in spread.results]
            assert len(readers) == parts if is_from_host else len(readers) >= parts


class Job:
    """A store, and a tensor of each device."""

    def __init__(self, devices: Devices, count: int, shape: tuple[int, ...], kind: str = "device", **settings: Any) -> None:
        self.devices, self.count, self.shape = devices, count, shape
        self.kv = kvstore.create(kind, **settings)
        self.tensors = [devices.tensor(at, torch.full(shape, float("nan"))) for at in range(count)]
        self.kv.init("key", np.zeros(shape, np.float32))

    def write(self, values: list[Any]) -> None:
        for tensor, value in zip(self.tensors, values):
            self.devices.write(tensor, value)

    def read(self) -> list[list[Any]]:
        return [self.devices.read(tensor) for tensor in self.tensors]


@pytest.fixture
def simulated() -> Iterator[Callable[..., Devices]]:
    """Makes devices that stores take."""

    def made(*arguments: Any, **settings: Any) -> Devices:
        devices = Devices(*arguments, **settings)
        streams.let_stand_in(devices)
        return devices

    yield made
    streams.let_stand_in(None)


def expected(values: list[Any], trees: Trees, bound: int) -> Any:
    arrays = [value.numpy() for value in values]
    rows = rows_of(arrays[0].shape, arrays[0].size, len(arrays), bound)
    sums = interpret(plan_sum(trees, len(rows)), rows, arrays)
    return torch.from_numpy(sums[0] if len(sums) == 1 else np.concatenate(sums))


def check(found: list[list[Any]], wanted: Any) -> None:
    for each in found:
        assert torch.equal(each[0], wanted), (each[0], wanted)


def several_steps(devices: Devices, job: Job, bound: int) -> None:
    """Push-pulls in place, into other tensors and by two calls, with writes of the program before and after."""
    trees = alike(job.count)
    assert job.kv._device_trees is not None
    job.kv._device_trees.bound = bound
    outs = [devices.tensor(at, torch.full(job.shape, float("nan"))) for at in range(job.count)]
    for step in range(3):
        values = values_of(job.count, job.shape, step)
        job.write(values)
        if step == 0:
            job.kv.pushpull("key", job.tensors)
        elif step == 1:
            job.kv.pushpull("key", job.tensors, out=outs)
        else:
            job.kv.push("key", job.tensors)
            job.write([torch.zeros(job.shape)] * job.count)
            job.kv.pull("key", out=job.tensors)
        found = [devices.read(out) for out in outs] if step == 1 else job.read()
        job.write([torch.zeros(job.shape)] * job.count)
        for out in outs:
            devices.write(out, torch.zeros(job.shape))
        devices.synchronize()
        if devices.left_out is None:
            check(found, expected(values, trees, bound))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_store_sums_on_streams_with_the_bits_of_the_plan(
    simulated: Callable[..., Devices], count: int, is_cut: bool, seed: int
) -> None:
    devices = simulated(count, seed)
    several_steps(devices, Job(devices, count, (2 * count + 1, 3)), 0 if is_cut else 10**6)
    assert not devices.hazards


@pytest.mark.parametrize("count, is_cut", [(1, False), (2, True), (4, False), (3, True)])
def test_each_wait_that_is_left_out_is_found(simulated: Callable[..., Devices], count: int, is_cut: bool) -> None:
    def run(left_out: int | None) -> Devices:
        devices = simulated(count, 1)
        devices.left_out = left_out
        job = Job(devices, count, (2 * count + 1, 3))
        job.kv._device_trees.bound = 0 if is_cut else 10**6
        for step in range(3):
            # The program uses its tensors between all calls, so that no wait hides that another one is missing.
            job.write(values_of(count, job.shape, step))
            job.kv.push("key", job.tensors)
            job.write([torch.zeros(job.shape)] * count)
            job.kv.pull("key", out=job.tensors)
            job.read()
        return devices

    calls = run(None).calls
    assert calls.count("wait") > 3 * count
    missed = [number for number, kind in enumerate(calls) if kind == "wait" and not run(number).hazards]
    assert not missed, f"{len(missed)} of {calls.count('wait')} waits are needless, or their lack is not found"


def test_memory_that_is_not_lent_to_a_stream_is_found_when_it_is_used_again(simulated: Callable[..., Devices]) -> None:
    def run(left_out: int | None, seed: int) -> Devices:
        devices = simulated(3, seed)
        devices.left_out = left_out
        job = Job(devices, 3, (4,))
        for step in range(6):
            job.write(values_of(3, job.shape, step))
            job.kv.push("key", job.tensors)
            if step % 2:
                job.kv.pull("key", out=job.tensors)
        return devices

    runs = [run(None, seed) for seed in range(4)]
    assert not any(each.hazards for each in runs)
    lends = [number for number, kind in enumerate(runs[0].calls) if kind == "lend"]
    assert lends and any(run(number, 0).hazards for number in lends)


def test_the_host_waits_where_it_reads_and_where_devices_read_its_memory(simulated: Callable[..., Devices]) -> None:
    def run(left_out: int | None, seed: int) -> list[Any]:
        devices = simulated(2, seed)
        devices.left_out = left_out
        job, out = Job(devices, 2, (5,)), np.zeros(5, np.float32)
        job.write(values_of(2, job.shape, 1))
        job.kv.push("key", job.tensors)
        job.kv.pull("key", out=out)
        found = [torch.from_numpy(out.copy())]
        job.kv.push("key", out)
        job.kv.pull("key", out=job.tensors)
        job.kv.push("key", np.zeros(5, np.float32))
        job.kv.wait_all()
        found += job.read()
        devices.synchronize()
        calls.append(devices.calls)
        return [found[0], *(each[0] for each in found[1:])]

    calls: list[list[str]] = []
    wanted = expected(values_of(2, (5,), 1), alike(2), 10**6)
    assert all(torch.equal(each, wanted) for seed in range(4) for each in run(None, seed))
    waits = [number for number, kind in enumerate(calls[0]) if kind == "host"]
    assert len(waits) >= 2
    for number in waits:
        assert not all(torch.equal(each, wanted) for seed in range(8) for each in run(number, seed)), number


def test_results_later_are_there_when_they_have_been_waited_for(simulated: Callable[..., Devices]) -> None:
    devices = simulated(4, 5)
    job = Job(devices, 4, (9,))
    values = values_of(4, job.shape, 4)
    job.write(values)
    job.kv.pushpull("key", job.tensors, async_op=True)
    for tensor in job.tensors:
        job.kv.wait(tensor)
    wanted = expected(values, alike(4), 10**6)
    assert all(torch.equal(tensor, wanted) for tensor in job.tensors) and not devices.hazards


def test_the_host_changes_values_and_devices_get_them(simulated: Callable[..., Devices]) -> None:
    devices = simulated(3, 6)
    job = Job(devices, 3, (6,))
    job.kv.set_optimizer(kvstore.create_optimizer("sgd", learning_rate=0.5))
    job.write([torch.full((6,), float(at + 1)) for at in range(3)])
    job.kv.pushpull("key", job.tensors)
    found = job.read()
    devices.synchronize()
    check(found, torch.full((6,), -3.0))
    job.kv.set_updater(lambda key, received, stored: np.subtract(received, stored, out=stored))
    job.kv.push("key", job.tensors)
    job.kv.pull("key", out=job.tensors[1:])
    found = [devices.read(tensor) for tensor in job.tensors[1:]]
    devices.synchronize()
    check(found, torch.full((6,), -9.0 + 3.0))
    # A value that only devices have had is the host's again.
    job.kv.set_updater(None)
    job.kv.push("key", job.tensors[:1])
    job.kv.set_updater(lambda key, received, stored: np.add(received, stored, out=stored))
    job.kv.push("key", np.full(6, 10, np.float32))
    out = np.zeros(6, np.float32)
    job.kv.pull("key", out=out)
    assert out.tolist() == [7.0] * 6 and not devices.hazards


def test_compressed_pushes_of_devices_are_those_of_arrays(simulated: Callable[..., Devices]) -> None:
    devices, values = simulated(2, 7), values_of(2, (40,), 7)
    job, arrays = Job(devices, 2, (40,)), kvstore.create("device")
    arrays.init("key", np.zeros(40, np.float32))
    outs = [np.zeros(40, np.float32) for _ in range(2)]
    for kv in (job.kv, arrays):
        kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    for _ in range(2):
        job.write(values)
        job.kv.push("key", job.tensors)
        arrays.push("key", [value.numpy() for value in values])
        job.kv.pull("key", out=outs[0])
        arrays.pull("key", out=outs[1])
        assert np.array_equal(*outs) and outs[0].any()


def test_devices_take_the_trees_of_their_links(simulated: Callable[..., Devices], monkeypatch: pytest.MonkeyPatch) -> None:
    trees = trees_from(_herringbone.device_trees(DGX1.read_text()))
    values = values_of(8, (8,), 8)

    def copies(devices: Devices, order: list[int], **settings: Any) -> set[tuple[int, int]]:
        job = Job(devices, 8, (8,), **settings)
        job.write(values)
        job.kv.push("key", [job.tensors[at] for at in order])
        return set(devices.copies)

    backwards = list(range(7, -1, -1))
    up = {(child, parent) for parent, child in trees[0]}
    assert copies(simulated(8, 1), list(range(8)), topology=DGX1) == up
    # The first of the list is device 7, and so is the root.
    assert copies(simulated(8, 1), backwards, topology=DGX1) == {(child, parent) for parent, child in trees[7]}
    monkeypatch.setenv("HERRINGBONE_TOPOLOGY", str(DGX1))
    assert copies(simulated(8, 1), list(range(8))) == up
    monkeypatch.setenv("HERRINGBONE_TOPOLOGY", __file__)
    with pytest.raises(ConfigError, match="HERRINGBONE_TOPOLOGY is .*topo reads"):
        copies(simulated(8, 1), list(range(8)))
    monkeypatch.delenv("HERRINGBONE_TOPOLOGY")
    # Two groups of four that reach each other through devices 0 and 4 only, and of them what a list has.
    reach = [
        [int(one != other) + int(one != other and (one // 4 == other // 4 or one % 4 == other % 4 == 0)) for other in range(8)]
        for one in range(8)
    ]
    crossing = {pair for pair in copies(simulated(8, 1, links=reach), list(range(8))) if pair[0] // 4 != pair[1] // 4}
    assert crossing == {(4, 0)}
    devices = simulated(8, 1, links=reach)
    job = Job(devices, 8, (8,))
    job.kv.push("key", [job.tensors[at] for at in (0, 1, 4, 5)])
    assert {pair for pair in devices.copies if pair[0] // 4 != pair[1] // 4} == {(4, 0)} and len(devices.copies) == 3


def test_lists_of_any_devices_and_types_get_the_sum(simulated: Callable[..., Devices]) -> None:
    devices = simulated(4, 9)
    job = Job(devices, 4, (6,))
    values = [torch.full((6,), 2.0**-12 * (at + 1)) for at in range(4)]
    job.write(values)
    twice = [job.tensors[0], job.tensors[0], job.tensors[2]]
    job.kv.push("key", twice)
    total = torch.full((6,), 5 * 2.0**-12) + 0
    half, double = devices.tensor(3, torch.zeros(6, dtype=torch.float16)), devices.tensor(1, torch.zeros(6, dtype=torch.float64))
    array = np.zeros(6)
    job.kv.pull("key", out=[half, job.tensors[3], double, array, job.tensors[3]])
    found = [devices.read(tensor) for tensor in (half, job.tensors[3], double)]
    devices.synchronize()
    assert [each[0].double().tolist() for each in found] == [total.tolist()] * 3 and array.tolist() == total.tolist()
    scalar = devices.tensor(2, torch.tensor(3.0))
    job.kv.init("scalar", scalar)
    job.kv.push("scalar", [scalar, scalar])
    job.kv.pull("scalar", out=scalar)
    found = [devices.read(scalar)]
    devices.synchronize()
    check(found, torch.tensor(6.0))
    job.kv.init("rows", kvstore.RowSparse(np.ones((1, 2), np.float32), [1], (3, 2)))
    rows = [devices.tensor(at, torch.ones(3, 2)) for at in range(2)]
    job.kv.push("rows", rows)
    some = kvstore.RowSparse.zeros((3, 2))
    job.kv.row_sparse_pull("rows", some, row_ids=[0, 2])
    assert some.indices.tolist() == [0, 2] and some.data.tolist() == [[2, 2], [2, 2]]
    empty = devices.tensor(0, torch.zeros(0, 3))
    job.kv.init("empty", empty)
    job.kv.pushpull("empty", [empty, empty])


def test_what_stores_do_not_take_of_devices_is_refused_at_once(simulated: Callable[..., Devices]) -> None:
    devices = simulated(2, 10)
    job, tensor = Job(devices, 2, (3,)), devices.tensor(0, torch.ones(3))
    with pytest.raises(UnsupportedError, match="a tensor on 0; pass tensors of the CPU, or use a store of type 'device'"):
        kvstore.create("local").init(1, tensor)
    with pytest.raises(ArgumentError, match="tensors of devices and arrays of the CPU"):
        job.kv.push("key", [tensor, np.ones(3, np.float32)])
    with pytest.raises(ArgumentError, match="a value of float64"):
        job.kv.push("key", [tensor, devices.tensor(1, torch.ones(3, dtype=torch.float64))])
    with pytest.raises(ArgumentError, match="has shape"):
        job.kv.pull("key", out=devices.tensor(1, torch.ones(4)))
    for kind, error in ((torch.bfloat16, "numpy has no bfloat16"), (torch.bool, "does not reduce bool")):
        with pytest.raises(UnsupportedError, match=error):
            job.kv.init("other", devices.tensor(1, torch.ones(3, dtype=kind)))
    devices.refused = "a tensor whose stream is captured"
    with pytest.raises(UnsupportedError, match="push: a tensor whose stream is captured"):
        job.kv.push("key", job.tensors)
    assert not devices.copies


def test_a_device_without_memory_fails_the_push_and_changes_nothing(
    simulated: Callable[..., Devices], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = simulated(2, 11)
    job = Job(devices, 2, (3,))
    job.write([torch.ones(3)] * 2)
    job.kv.push("key", job.tensors)

    def full(*arguments: Any) -> None:
        raise MemoryError("the device is full")

    with monkeypatch.context() as patched, pytest.raises(MemoryError, match="the device is full"):
        patched.setattr(devices, "empty", full)
        job.kv.push("key", job.tensors)
    job.kv.pull("key", out=job.tensors)
    found = job.read()
    devices.synchronize()
    check(found, torch.full((3,), 2.0))


@pytest.mark.parametrize("kind", ["dist_device_sync", "dist_device_async"])
def test_workers_sum_what_their_devices_have_summed(group: Group, kind: str) -> None:
    tables = ["--tables", "1"] if kind == "dist_device_async" else []
    script = [python(), str(WORKERS / "kvstore_devices.py"), kind]
    group.start("-m", "herringbone", "launch", "-n", "2", *tables, "--", *script)
    [(status, output)] = group.finish()
    assert status == 0, output


def test_cuda_copies_between_devices_on_streams_that_are_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has the current streams of both devices wait for each other, so neither is the program's."""
    cuda, seen = FakeCuda(), list[dict[str, str]]()
    monkeypatch.setattr(streams, "_torch", lambda: SimpleNamespace(cuda=cuda))
    library = streams.Cuda()

    def tensor(device: str) -> Any:
        copied = lambda source, non_blocking: seen.append(dict(cuda.current)) if non_blocking else None
        return SimpleNamespace(is_cuda=device != "cpu", device=device, copy_=copied)

    side = library.side("cuda:1", SideStream(1, 0))
    assert library.side("cuda:1", SideStream(1, 0)) is side and library.side("cuda:1", SideStream(1, 1)) is not side
    library.copy(side, tensor("cuda:0"), tensor("cuda:1"))
    library.copy(side, tensor("cpu"), tensor("cuda:1"))
    assert cuda.current == {}
    landing = seen[0].pop("cuda:0")
    assert seen == [{"cuda:1": side.name}, {"cuda:1": side.name}] and landing != side.name
    library.copy(side, tensor("cuda:0"), tensor("cuda:1"))
    assert seen[2]["cuda:0"] == landing
    # Torch can copy once more on the stream where it lands, so what follows comes behind that one, too.
    assert side.awaited == [landing, landing]


@dataclass(eq=False)
class FakeStream:
    device: str
    name: str
    awaited: list[str] = field(default_factory=list)

    def record_event(self) -> str:
        return self.name

    def wait_event(self, event: str) -> None:
        self.awaited.append(event)


class FakeCuda:
    """What there is of ``torch.cuda`` that makes streams, and says which are current; the program's are not named."""

    def __init__(self) -> None:
        self.current: dict[str, str] = {}
        self._made = 0

    def Stream(self, device: str) -> Any:
        self._made += 1
        return FakeStream(device, f"{device} {self._made}")

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before = dict(self.current)
        self.current[stream.device] = stream.name
        yield
        self.current = before
