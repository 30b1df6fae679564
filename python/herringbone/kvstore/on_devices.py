"""Values in the memory of accelerators: their sums over trees of devices, and results on their way to all of them.

The plans come from :mod:`.tree_plan`. The store's side streams begin after what the program has queued on its current streams. These
wait until the program's values have been read, and its results written. So a call can return before the devices have done anything.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .. import _herringbone
from ..errors import UnsupportedError
from ..unlike import unlike_its_memory
from .streams import Streams, run, streams_of
from .tree_plan import TREE_BOUND, SideStream, Piece, Plan, Rows, Trees, plan_spread, plan_sum, rows_of, trees_from

__all__ = ["DeviceSum", "DeviceTrees", "Filling", "OnDevice", "on_device", "sum_on_devices"]

FETCHING = SideStream(-1, -1)
"""What copies sums to the host, on each device."""


class OnDevice:
    """A tensor in an accelerator's memory, as the store asks for the shape and the type of arrays."""

    __slots__ = ("device", "dtype", "shape", "streams", "tensor")

    def __init__(self, call: str, tensor: Any, streams: Streams) -> None:
        """
        Raises:
            UnsupportedError: its values differ from its memory, numpy lacks its type, or its stream is captured.
        """
        self.device = streams.device_of(tensor)
        problem = unlike_its_memory(tensor) or streams.refusal(self.device)
        if problem is not None:
            raise UnsupportedError(f"{call}: {problem}")
        self.tensor, self.streams = tensor.detach(), streams
        self.shape = tuple(tensor.shape)
        self.dtype = _numpy_type(call, tensor.dtype)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(self.tensor.numel())

    def toarray(self) -> Any:
        """Its values in a numpy array of the host, once the program's stream has written them."""
        streams = self.streams
        stream, host = streams.program(self.device), streams.host_memory(self.shape, self.tensor.dtype)
        streams.copy(stream, host, self.tensor)
        streams.wait_on_host(streams.record(stream))
        return host.numpy()


def on_device(call: str, value: Any) -> OnDevice | None:
    """A value, if it is in the memory of an accelerator whose values stores take."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    streams = streams_of(value)
    return None if streams is None else OnDevice(call, value, streams)


@functools.cache
def _type_of(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError:
        return None


def _numpy_type(call: str, dtype: Any) -> Any:
    known = _type_of(dtype)
    if known is None:
        name = str(dtype).removeprefix("torch.")
        raise UnsupportedError(f"{call}: numpy has no {name}; pass tensor.float()")
    return known


class DeviceTrees:
    """The trees for lists of values: over a topology's links if it has the list's devices, else over the driver's links."""

    def __init__(self, of_topology: Callable[[], Trees | None], bound: int = TREE_BOUND) -> None:
        """
        Args:
            of_topology: the trees of all nodes of a topology, if there is one; it is called when devices come for the first time.
            bound: a value of more elements is cut over all trees.
        """
        self._of_topology = functools.cache(of_topology)
        self._known: dict[tuple[int, ...], Trees] = {}
        self.bound = bound

    def of(self, streams: Streams, devices: Sequence[Any]) -> Trees:
        """Trees whose node i is the device of a list's value i. Node k of a topology is device k, as this process counts them.

        Raises:
            ConfigError: the topology of the environment cannot be read.
        """
        places = tuple(streams.position(device) for device in devices)
        if places not in self._known:
            self._known[places] = self._planned(streams, places)
        return self._known[places]

    def _planned(self, streams: Streams, places: tuple[int, ...]) -> Trees:
        trees = self._of_topology()
        if trees is not None and sorted(places) == list(range(len(trees))):
            numbers = {place: number for number, place in enumerate(places)}
            return tuple(tuple((numbers[parent], numbers[child]) for parent, child in trees[place]) for place in places)
        if len(set(places)) < len(places):  # some share a device: all ways are alike
            direct = [[1] * len(places)] * len(places)
        else:
            reached = streams.links(max(places) + 1)
            direct = [[int(reached[one][other] > 1) for other in places] for one in places]
        ranks = [[0 if one == other else 1 + direct[one][other] for other in range(len(places))] for one in range(len(places))]
        p2p = [[int(one != other) * direct[one][other] for other in range(len(places))] for one in range(len(places))]
        return trees_from(_herringbone.device_trees(json.dumps({"matrix": ranks, "p2p": p2p})))


class DeviceSum:
    """A sum on devices: each part of its rows at the root of a tree, once an event is over."""

    def __init__(self, streams: Streams, rows: Sequence[Rows], pieces: Sequence[Any], events: Sequence[Any], shape: Any) -> None:
        """For :func:`sum_on_devices`."""
        self.streams, self.rows, self.pieces, self.events, self.shape = streams, rows, pieces, events, shape
        self.devices = [streams.device_of(piece) for piece in pieces]
        """Where each part is."""
        self.type = pieces[0].dtype
        self._lock = threading.Lock()
        self._on_host: Any = None

    def fetched(self) -> tuple[Any, Callable[[], None]]:
        """A new numpy array that gets the sum, and a function that returns once it is there."""
        streams, host, events = self.streams, self.streams.host_memory(self.shape, self.type), []
        for part, rows in enumerate(self.rows):
            stream = streams.side(self.devices[part], FETCHING)
            streams.wait(stream, self.events[part])
            streams.lend(self.pieces[part], stream)
            streams.copy(stream, host[rows], self.pieces[part])
            events.append(streams.record(stream))

        def arrive() -> None:
            for event in events:
                streams.wait_on_host(event)

        return host.numpy(), arrive

    def toarray(self) -> Any:
        """The sum as a numpy array, which nobody writes; the host waits for it the first time."""
        with self._lock:
            if self._on_host is None:
                array, arrive = self.fetched()
                arrive()
                self._on_host = array
            return self._on_host


def sum_on_devices(values: Sequence[OnDevice], trees: Trees, bound: int = TREE_BOUND) -> DeviceSum:
    """Queue the sum of values that are alike, one for each node of the trees.

    The current streams of their devices wait until the values have been read, and not for the sum.

    Raises:
        MemoryError: a device has none for what arrives; nothing has been queued.
    """
    streams, first = values[0].streams, values[0]
    rows = rows_of(first.shape, first.size, len(values), bound)
    plan, devices = plan_sum(trees, len(rows)), [value.device for value in values]
    programs = [streams.program(device) for device in devices]
    given = {Piece("given", at, part): value.tensor[index] for at, value in enumerate(values) for part, index in enumerate(rows)}
    # The program's streams may use new memory at once, and the side streams after the events that are recorded then.
    arrived = {
        step.target: streams.empty(devices[step.target.device], first.tensor[rows[step.target.part]].shape, first.tensor.dtype)
        for step in plan.steps
        if step.act == "copy"
    }
    outside = {("begin", at): streams.record(stream) for at, stream in enumerate(programs)}
    events = run(plan, streams, devices, (given | arrived).__getitem__, outside)
    for at, numbers in plan.ends.items():
        for number in numbers:
            streams.wait(programs[at], events[number])
    return DeviceSum(
        streams, rows, [arrived[piece] for piece in plan.results], [events[number] for number in plan.ready], first.shape
    )


class Filling:
    """Arrays of the host and tensors of devices that get a value, and from when on the program allows it."""

    def __init__(self, targets: Sequence[Any], trees: DeviceTrees | None) -> None:
        """What the program has queued so far comes before. Without ``trees`` all targets are arrays of the host."""
        self._arrays = [target for target in targets if not isinstance(target, OnDevice)]
        self._trees = trees
        self._groups: dict[Any, list[OnDevice]] = {}
        """Tensors of one type: on its way to one of them a value must not take another one's type."""
        self._programs: dict[Any, tuple[Any, Any]] = {}
        """By device the program's stream, and its event."""
        for target in targets:
            if isinstance(target, OnDevice):
                self._groups.setdefault(target.dtype, []).append(target)
                if target.device not in self._programs:
                    stream = target.streams.program(target.device)
                    self._programs[target.device] = (stream, target.streams.record(stream))

    @property
    def is_empty(self) -> bool:
        """Whether nothing gets the value."""
        return not self._arrays and not self._groups

    def fill(self, source: Any, is_later: bool = False) -> None:
        """Queue copies of a value, an array or a :class:`DeviceSum`, to the devices, and copy it to arrays of the host.

        Args:
            is_later: the host waits until the value is there. Else the program's streams wait, and the host only where it copies.
        """
        if self._arrays:
            array = source.toarray() if isinstance(source, DeviceSum) else source
            for target in self._arrays:
                target[...] = array
        for targets in self._groups.values():
            self._spread(source, targets, is_later)

    def _spread(self, source: Any, targets: list[OnDevice], is_later: bool) -> None:
        assert self._trees is not None, "a store that takes tensors of devices has trees for them"
        streams, devices = targets[0].streams, [target.device for target in targets]
        trees = self._trees.of(streams, devices)
        is_near = isinstance(source, DeviceSum) and source.type == targets[0].tensor.dtype and set(source.devices) <= set(devices)
        if is_near:
            rows, roots = source.rows, tuple(devices.index(device) for device in source.devices)
            held, ready = list(source.pieces), list(source.events)
        else:
            array = source.toarray() if isinstance(source, DeviceSum) else source
            rows = rows_of(array.shape, array.size, len(devices), self._trees.bound)
            roots = tuple(range(len(rows)))
            host = sys.modules["torch"].from_numpy(array)
            held, ready = [host[index] for index in rows], [None] * len(rows)
        plan = plan_spread(tuple(trees[root] for root in roots), roots, len(devices), not is_near)
        memory = {
            Piece("out", at, part): target.tensor[index] for at, target in enumerate(targets) for part, index in enumerate(rows)
        }
        memory.update(zip(plan.results, held))
        outside = {("begin", at): self._programs[device][1] for at, device in enumerate(devices)}
        outside.update({("ready", part): event for part, event in enumerate(ready)})
        self._end(plan, streams, devices, run(plan, streams, devices, memory.__getitem__, outside), not is_near, is_later)

    def _end(
        self, plan: Plan, streams: Streams, devices: list[Any], events: list[Any], is_from_host: bool, is_later: bool
    ) -> None:
        """Have the program's streams, or the host, wait for what they need."""
        waited = [number for number, step in enumerate(plan.steps) if is_from_host and step.source in plan.results]
        for at, numbers in plan.ends.items():
            for number in numbers:
                if is_later:
                    waited.append(number)
                else:
                    streams.wait(self._programs[devices[at]][0], events[number])
        # Nobody may write the host's memory before it has been read.
        for number in waited:
            streams.wait_on_host(events[number])
