"""Sums over trees of devices: the plans by themselves, and stores of type ``device`` on devices that are simulated."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from tree_devices import Devices, values_of

from herringbone import _herringbone, kvstore
from herringbone.kvstore import streams
from herringbone.kvstore.tree_plan import Piece, Trees, interpret, plan_spread, plan_sum, rows_of, trees_from

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
        assert all(plan.steps[wait].lane != step.lane for step in plan.steps for wait in step.waits)
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
