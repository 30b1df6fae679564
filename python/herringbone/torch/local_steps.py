"""The steps of a collective whose ranks sum on their hosts first: before the network, over a rail, and after it.

Bytes that a rank sends between hosts, where ``K`` is the buffer, ``L`` the ranks of a host and ``H`` the hosts:

============== ================================================ ==============================
call           on the host                                      over the rail
============== ================================================ ==============================
all_reduce     reduce-scatter, then all-gather                  all-reduce of K / L
reduce         reduce-scatter, then all-gather on root's host   reduce of K / L
broadcast      broadcast on root's host, else all-gather        broadcast of K / L
all_gather     all-gather                                       all-gather of one rank's input
reduce_scatter reduce-scatter                                   reduce-scatter of K / L
============== ================================================ ==============================

Tensors that do not divide by ``L`` have a tail, which is padded apart: the rest is not copied for that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..arrays import FOLDED
from ..kinds import kind_of
from .local_groups import LocalGroup
from .rails import LocalCut, LocalOps, LocalPlace, cut_for, ops_of

__all__ = ["TAKEN", "LocalCall", "LocalGroups", "LocalSteps", "RailCall", "TakenKind", "steps_of"]

FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
INTEGERS = {"i8": torch.int8, "u8": torch.uint8, "i32": torch.int32, "i64": torch.int64}
"""The types that both backends fold."""


class TakenKind(NamedTuple):
    """What is done with a call's elements."""

    collective: str
    dtype: torch.dtype
    """As which torch's backends and the engine see the elements: bytes, if they are only moved."""
    folded: str
    """The engine's name of the type."""
    op: str
    given: str
    """The engine's name of the type that the elements have, which ranks compare."""


def _taken() -> dict[object, TakenKind]:
    kinds: dict[object, TakenKind] = {}
    for collective in ("all_reduce", "reduce", "reduce_scatter"):
        for op in ("sum", "average", "product", "min", "max"):
            # The average of integers needs the sum of all in a wider type.
            for folded, dtype in (FLOATS if op == "average" else FLOATS | INTEGERS).items():
                kinds[kind_of(collective, folded, op)] = TakenKind(collective, dtype, folded, op, folded)
    for collective in ("broadcast", "all_gather"):
        for folded in FOLDED.values():
            kinds[kind_of(collective, folded)] = TakenKind(collective, torch.uint8, "u8", "sum", folded)
    return kinds


TAKEN = _taken()
"""The calls that have such steps, by their kind."""


class LocalCall(NamedTuple):
    """A call as its steps see it."""

    kind: TakenKind
    read: torch.Tensor
    """The input, flat."""
    write: torch.Tensor
    """The output, flat: the input's memory where the call is in place."""
    root: int


class RailCall(NamedTuple):
    """What goes over a rail."""

    collective: str
    op: str
    elements: int
    root: int
    """Which rank of the rail is on the root's host."""
    read: torch.Tensor
    write: torch.Tensor


class LocalGroups(NamedTuple):
    """The ranks of a host, twice: calls of one group follow each other, and a first step is not to wait for a last one."""

    first: LocalGroup
    last: LocalGroup


class LocalSteps:
    """The steps of one call on this rank. They keep the memory that they use."""

    def __init__(self, call: LocalCall, place: LocalPlace, groups: LocalGroups) -> None:
        self.call, self.place, self.groups = call, place, groups
        self.ops: LocalOps = ops_of(call.kind.op, place)
        self.cut: LocalCut = cut_for(call.read.numel(), place.size, call.read.element_size())
        self._kept: list[torch.Tensor] = []

    def first(self) -> RailCall | None:
        """Make the steps before the network; what goes over the rail, if anything does."""
        raise NotImplementedError

    def last(self) -> None:
        """Make the steps after the network."""
        raise NotImplementedError

    def room(self, length: int) -> torch.Tensor:
        """Memory for ``length`` elements."""
        tensor = self.call.read.new_empty(length)
        self._kept.append(tensor)
        return tensor

    def padded(self) -> torch.Tensor:
        """The tail of the input, and zeros."""
        tail = self.room(self.cut.rest * self.place.size)
        tail[self.cut.tail :].zero_()
        tail[: self.cut.tail].copy_(self.call.read[self.cut.head :])
        return tail

    def sums(self) -> torch.Tensor:
        """This rank's part of the fold over the host."""
        cut, group = self.cut, self.groups.first
        shard = self.room(cut.length)
        if cut.part:
            group.reduce_scatter(shard[: cut.part], self.call.read[: cut.head], self.ops.local)
        if cut.rest:
            group.reduce_scatter(shard[cut.part :], self.padded(), self.ops.local)
        return shard

    def spread(self, shard: torch.Tensor, output: torch.Tensor) -> None:
        """Fill ``output`` with the parts of the ranks of the host."""
        cut, group = self.cut, self.groups.last
        if cut.part:
            group.all_gather(output[: cut.head], shard[: cut.part])
        if cut.rest:
            tail = self.room(cut.rest * self.place.size)
            group.all_gather(tail, shard[cut.part :])
            output[cut.head :].copy_(tail[: cut.tail])

    def divide(self, tensor: torch.Tensor) -> None:
        """The last step of an average whose sums were no averages."""
        if self.ops.divisor > 1:
            tensor.div_(self.ops.divisor)


class AllReduceSteps(LocalSteps):
    """Fold parts, and give everybody all of them."""

    def first(self) -> RailCall | None:
        """On a single host the backend does it all."""
        if self.place.hosts == 1:
            read, write = self.call.read, self.call.write
            if write.data_ptr() != read.data_ptr():
                write.copy_(read)
            self.groups.first.all_reduce(write, self.ops.local)
            self.divide(write)
            return None
        self._shard = self.sums()
        return RailCall("all_reduce", self.ops.rail, self.cut.length, 0, self._shard, self._shard)

    def last(self) -> None:
        """The rail's sums go to all ranks of the host."""
        if self.place.hosts > 1:
            self.divide(self._shard)
            self.spread(self._shard, self.call.write)


class ReduceSteps(LocalSteps):
    """Fold parts to the root's host, and give the root all of them."""

    def first(self) -> RailCall | None:
        """Each rank of the root's host gets the fold of its part."""
        self._root_host, self._root_local = self.place.of(self.call.root)
        self._shard = self.sums()
        root = self.place.on_rail(self._root_host)
        return RailCall("reduce", self.ops.rail, self.cut.length, root, self._shard, self._shard)

    def last(self) -> None:
        """Gather on the root's host; the other ranks' tensors keep their values."""
        if self.place.host != self._root_host:
            return
        self.divide(self._shard)
        is_root = self.place.local == self._root_local
        self.spread(self._shard, self.call.write if is_root else self.room(self.call.read.numel()))


class BroadcastSteps(LocalSteps):
    """Bring a part over each rail, and put the parts together on the hosts."""

    def first(self) -> RailCall | None:
        """On the root's host all ranks get everything, and each gives its part to its rail."""
        self._root_host, root_local = self.place.of(self.call.root)
        cut, local, tensor = self.cut, self.place.local, self.call.write
        self._shard = self.room(cut.length)
        if self.place.host == self._root_host:
            self.groups.first.broadcast(tensor, root_local)
            self._shard[: cut.part].copy_(tensor[local * cut.part : (local + 1) * cut.part])
            if cut.rest:
                self._shard[cut.part :].copy_(self.padded()[local * cut.rest : (local + 1) * cut.rest])
        return RailCall("broadcast", "sum", cut.length, self.place.on_rail(self._root_host), self._shard, self._shard)

    def last(self) -> None:
        """The other hosts put the parts together."""
        if self.place.host != self._root_host:
            self.spread(self._shard, self.call.write)


class AllGatherSteps(LocalSteps):
    """Gather over each rail, then among the rails of a host."""

    def first(self) -> RailCall | None:
        """The inputs of a rail come to each of its ranks."""
        count = self.call.read.numel()
        self._rail = self.room(count * self.place.hosts)
        return RailCall("all_gather", "sum", count, 0, self.call.read, self._rail)

    def last(self) -> None:
        """Put what the rails have gathered in the order of the ranks."""
        order, count, output = self.place.by_rails, self.call.read.numel(), self.call.write
        if order == sorted(order):
            self.groups.last.all_gather(output, self._rail)
            return
        whole = self.room(count * len(order))
        self.groups.last.all_gather(whole, self._rail)
        for part, rank in zip(torch.split(whole, count), order):
            output[rank * count : (rank + 1) * count].copy_(part)


class ReduceScatterSteps(LocalSteps):
    """Fold on each host what a rail gets, then scatter over the rail."""

    def first(self) -> RailCall | None:
        """Each rank of a host gets the sums for its rail."""
        order, count = self.place.by_rails, self.call.write.numel()
        given = self.call.read
        if order != sorted(order):
            parts = torch.split(given, count)
            given = torch.cat([parts[rank] for rank in order])
            self._kept.append(given)
        sums = self.room(count * self.place.hosts)
        self.groups.first.reduce_scatter(sums, given, self.ops.local)
        return RailCall("reduce_scatter", self.ops.rail, count, 0, sums, self.call.write)

    def last(self) -> None:
        """Averages are divided where the sums were none."""
        self.divide(self.call.write)


STEPS: dict[str, type[LocalSteps]] = {
    "all_reduce": AllReduceSteps,
    "reduce": ReduceSteps,
    "broadcast": BroadcastSteps,
    "all_gather": AllGatherSteps,
    "reduce_scatter": ReduceScatterSteps,
}


def steps_of(call: LocalCall, place: LocalPlace, groups: LocalGroups) -> LocalSteps:
    """The steps of a call."""
    return STEPS[call.kind.collective](call, place, groups)
