"""Sums over trees of devices, as steps on streams: which device copies what to which other one, who adds it, and what waits for what.

MXNet's ``CommDeviceTree`` takes sums in this way: one tree for what is small, and for large arrays a tree for each device, with a
slice of the rows on each. Nothing here touches a device. :mod:`.streams` runs a plan on streams, and :func:`interpret` with numpy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "TREE_BOUND",
    "Piece",
    "Plan",
    "Rows",
    "SideStream",
    "Step",
    "Trees",
    "interpret",
    "plan_spread",
    "plan_sum",
    "rows_of",
    "trees_from",
]

Tree = tuple[tuple[int, int], ...]
"""Its edges, from parents to children: a parent's own edge before those to its children."""

Trees = tuple[Tree, ...]
"""For each device the tree with this device as its root."""

Rows = Any
"""An index of an array: a slice of rows, or ``...`` for the whole array."""

TREE_BOUND = 10_000_000
"""An array of more elements goes along all trees (MXNet's ``MXNET_KVSTORE_TREE_ARRAY_BOUND``)."""


@dataclass(frozen=True)
class Piece:
    """The rows of one part in one memory of a device."""

    role: str
    """``given``: the device's own values, which nothing writes. ``arrived``: what a child has sent, and sums in its place. ``out``: results."""
    device: int
    """The number of the device, as in the trees."""
    part: int
    child: int = -1
    """Of what has arrived: the device that has sent it."""


@dataclass(frozen=True)
class SideStream:
    """A stream of a device, not of the program. Its steps run one after the other; steps of different streams wait as they state."""

    device: int
    part: int
    to: int = -1
    """The device to which results go down on it; -1 for the part's sums."""


@dataclass(frozen=True)
class Step:
    """What a side stream does next, once the steps that it waits for are over."""

    act: str
    """``copy``: the target becomes the source. ``add``: the source is added to the target. ``begin``: from now on the plan may use a
    device, at which everything that its program has queued before is done. ``ready``: the result of a part is there."""
    side: SideStream | None
    """``None`` for ``begin`` and ``ready``, which are events from outside."""
    target: Piece
    source: Piece | None
    waits: tuple[int, ...]
    """The numbers of steps of other side streams. None is missing, and none is needless, because it follows from another one."""


@dataclass(frozen=True)
class Plan:
    """Steps in an order in which they may be issued, and what their end means."""

    steps: tuple[Step, ...]
    results: tuple[Piece, ...]
    """Where the result of each part is: at the root of its tree."""
    ready: tuple[int, ...]
    """For each part the step after which its result is there."""
    ends: Mapping[int, tuple[int, ...]]
    """For each device the steps after which its program may write what it gave, and read its results."""
    awaited: frozenset[int]
    """The steps that something waits for; the others need no event."""


@dataclass
class _Builder:
    """Finds out what each step has to wait for, from the memory that it uses."""

    steps: list[Step] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    """For each step all that is over once it is, as bits of their numbers."""
    of_sides: dict[SideStream, int] = field(default_factory=dict)
    """What is over, as bits, before the next step of a side stream begins."""
    writers: dict[Piece, int] = field(default_factory=dict)
    readers: dict[Piece, list[int]] = field(default_factory=dict)

    def event(self, act: str, pieces: Sequence[Piece]) -> None:
        """Something from outside, after which these pieces may be used."""
        number = len(self.steps)
        self.steps.append(Step(act, None, pieces[0], None, ()))
        self.known.append(1 << number)
        self.writers.update((piece, number) for piece in pieces)

    def step(self, act: str, side: SideStream, target: Piece, source: Piece) -> None:
        number = len(self.steps)
        needed = [self.writers[source], self.writers[target], *self.readers.get(target, ())]
        before = self.of_sides.get(side, 0)
        waits = self.without_known(needed, before)
        self.steps.append(Step(act, side, target, source, waits))
        for one in waits:
            before |= self.known[one]
        self.known.append(before | 1 << number)
        self.of_sides[side] = self.known[number]
        self.readers.setdefault(source, []).append(number)
        self.writers[target], self.readers[target] = number, []

    def without_known(self, needed: Sequence[int], known: int) -> tuple[int, ...]:
        """Of these steps those that neither ``known`` nor another one of them implies."""
        waits = list[int]()
        # A step knows only of earlier ones.
        for number in sorted(set(needed), reverse=True):
            if not known >> number & 1:
                waits.append(number)
                known |= self.known[number]
        return tuple(reversed(waits))

    def plan(self, results: Sequence[Piece], ends: Mapping[int, Sequence[int]]) -> Plan:
        lasting = {device: self.without_known(numbers, 0) for device, numbers in ends.items()}
        ready = tuple(self.writers[piece] for piece in results)
        awaited = {*ready, *(each for numbers in lasting.values() for each in numbers)}
        awaited.update(number for step in self.steps for number in step.waits)
        return Plan(tuple(self.steps), tuple(results), ready, lasting, frozenset(awaited))


def trees_from(lists: Sequence[Sequence[Sequence[int]]]) -> Trees:
    """The trees that the native module gives as lists."""
    return tuple(tuple((parent, child) for parent, child in tree) for tree in lists)


def rows_of(shape: Sequence[int], size: int, devices: int, bound: int = TREE_BOUND) -> tuple[Rows, ...]:
    """The rows that go along each tree, by MXNet's rule: all of them along the first one, or a slice along that of each device.

    An array is cut if it has more than ``bound`` elements and at least two rows for each device. The last slice takes the rest.
    """
    if size <= bound or devices == 1 or not shape or shape[0] < 2 * devices:
        return (...,)
    height = shape[0] // devices
    ends = [height * (part + 1) for part in range(devices - 1)] + [shape[0]]
    return tuple(slice(first, end) for first, end in zip([0, *ends], ends))


@functools.lru_cache(maxsize=64)
def plan_sum(trees: Trees, parts: int) -> Plan:
    """The sum of what all devices have, part i at the root of tree i, in memory that the plan has for itself.

    A device sends what it has summed to its parent once all its children's has arrived. The parent adds what arrives in the order of
    ``trees``, last edge first: sums have the same bits however they are run. Parts take turns, so that all trees begin at once.
    """
    devices = len(trees)
    build = _Builder()
    given = [[Piece("given", device, part) for part in range(parts)] for device in range(devices)]
    edges = [tuple(reversed(trees[part])) or ((0, 0),) for part in range(parts)]
    for device in range(devices):
        arriving = [
            Piece("arrived", device, part, child) for part in range(parts) for parent, child in edges[part] if parent == device
        ]
        build.event("begin", [*given[device], *arriving])
    holders = {(device, part): given[device][part] for device in range(devices) for part in range(parts)}
    for turn in range(max(map(len, edges))):
        for part in range(parts):
            parent, child = edges[part][turn]
            arrived, held = Piece("arrived", parent, part, child), holders[parent, part]
            build.step("copy", SideStream(child, part), arrived, holders[child, part])
            if parent == child:  # a device by itself: its result is a copy
                holders[parent, part] = arrived
            elif held.role == "given":
                build.step("add", SideStream(parent, part), arrived, held)
                holders[parent, part] = arrived
            else:
                build.step("add", SideStream(parent, part), held, arrived)
    ends = {device: [each for piece in given[device] for each in build.readers.get(piece, ())] for device in range(devices)}
    return build.plan([holders[edges[part][-1][0], part] for part in range(parts)], ends)


@functools.lru_cache(maxsize=64)
def plan_spread(trees: tuple[Tree, ...], roots: tuple[int, ...], devices: int, is_from_host: bool) -> Plan:
    """The result of each part to the root of its tree, and from there to all devices.

    Args:
        trees: one for each part.
        roots: each tree's.
        is_from_host: the results are in the host's memory, which is read once only; else they are on the roots' devices.
    """
    build = _Builder()
    parts = range(len(trees))
    results = [Piece("arrived", roots[part], part) for part in parts]
    for device in range(devices):
        build.event("begin", [Piece("out", device, part) for part in parts])
    for part in parts:
        build.event("ready", [results[part]])
        build.step("copy", SideStream(roots[part], part), Piece("out", roots[part], part), results[part])
    for turn in range(max(map(len, trees))):
        for part in parts:
            parent, child = trees[part][turn]
            # The root's copy for itself need not be there before its children's.
            is_first = parent == roots[part] and not is_from_host
            source = results[part] if is_first else Piece("out", parent, part)
            build.step("copy", SideStream(parent, part, child), Piece("out", child, part), source)
    written = {device: [build.writers[Piece("out", device, part)] for part in parts] for device in range(devices)}
    sent = {
        device: [each for part in parts for each in build.readers.get(Piece("out", device, part), ())]
        for device in range(devices)
    }
    return build.plan(results, {device: [*written[device], *sent[device]] for device in range(devices)})


def interpret(plan: Plan, rows: Sequence[Rows], values: Sequence[Any]) -> list[Any]:
    """What a plan of :func:`plan_sum` computes of numpy arrays, one for each device: the sum of each part, in new arrays."""
    import numpy as np

    pieces = dict[Piece, Any]()

    def memory(piece: Piece) -> Any:
        return values[piece.device][rows[piece.part]] if piece.role == "given" else pieces[piece]

    for step in plan.steps:
        if step.source is None:
            continue
        source = memory(step.source)
        if step.act == "copy":
            pieces[step.target] = np.array(source, copy=True, order="C")
        else:
            memory(step.target)[...] += source
    return [pieces[piece] for piece in plan.results]
