"""Which ranks of a group add up on their host first, and how a tensor is cut for that. It only decides: nothing here moves values.

The ranks of one host are its *local ranks*, numbered by their order in the group. A *rail* is a group of the ranks with the same
local number, one of each host. A sum has three steps: a reduce-scatter among the ranks of each host, an all-reduce of each part
over its rail, and an all-gather among the ranks of each host. So a host sends each value once, and each of its ranks sends a part.

Source: Fairring (https://github.com/facebookresearch/fairring), which does this with NCCL and TensorPipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "BACKENDS",
    "LocalCut",
    "LocalOps",
    "LocalPlace",
    "LocalReport",
    "cut_for",
    "disputed",
    "ops_of",
    "places_among",
    "wanted",
]

BACKENDS = ("nccl", "gloo")
"""torch's backends that can carry the steps on a host."""

VALUES = ("auto", "off", *BACKENDS)
"""What the setting may be."""

ALIGNED_BYTES = 16
"""Parts of a tensor begin at multiples of this, as NCCL's kernels like it."""


@dataclass(frozen=True)
class LocalReport:
    """What one rank tells the others before they decide."""

    host: Hashable
    """Equal on ranks that share a host."""

    device: Hashable
    """Equal on ranks that share a device."""

    backend: str
    """The backend for the steps on its host, or nothing."""

    why: str = ""
    """Why there is none."""

    setting: str = "auto"
    """The user's, whatever that is."""


@dataclass(frozen=True)
class LocalPlace:
    """Where a rank is among the hosts of its group."""

    backend: str

    hosts: int
    """How many hosts there are."""

    host: int
    """The number of this rank's host: hosts are numbered in the order of their first ranks."""

    ranks: tuple[tuple[int, ...], ...]
    """The ranks of each host, in ascending order. All hosts have the same number of them."""

    local: int
    """This rank's number on its host."""

    @property
    def size(self) -> int:
        """How many ranks each host has."""
        return len(self.ranks[0])

    @property
    def host_ranks(self) -> list[int]:
        """The ranks of this rank's host."""
        return list(self.ranks[self.host])

    def rail(self, local: int) -> list[int]:
        """The ranks with a local number, in ascending order."""
        return sorted(ranks[local] for ranks in self.ranks)

    @property
    def rail_ranks(self) -> list[int]:
        """The ranks of this rank's rail."""
        return self.rail(self.local)

    def on_rail(self, host: int) -> int:
        """Which of the ranks of this rank's rail is on a host."""
        return self.rail_ranks.index(self.ranks[host][self.local])

    def of(self, rank: int) -> tuple[int, int]:
        """The number of a rank's host, and its local number there."""
        host = next(number for number, ranks in enumerate(self.ranks) if rank in ranks)
        return host, self.ranks[host].index(rank)

    @property
    def by_rails(self) -> list[int]:
        """All ranks, rail by rail."""
        return [rank for local in range(self.size) for rank in self.rail(local)]

    def describe(self) -> str:
        """A sentence for people."""
        hosts = "1 host" if self.hosts == 1 else f"{self.hosts} hosts"
        return f"the {self.size} ranks of each of {hosts} add up first, by {self.backend}"


def wanted(setting: str, device_backend: str | None) -> tuple[str, str]:
    """The backend that a rank asks for, or nothing and why.

    Args:
        setting: what the user says, one of :data:`VALUES`.
        device_backend: the backend of torch's that is made for the device's tensors, if this torch has it.
    """
    if setting == "off":
        return "", "it is switched off"
    if setting in BACKENDS:
        return setting, ""
    return (device_backend, "") if device_backend else ("", "this torch has no NCCL")


def disputed(settings: Sequence[str]) -> str | None:
    """What is wrong with the ranks' settings, and what to do about it; ``None`` if they are one value that can be used."""
    for rank, setting in enumerate(settings):
        if setting not in VALUES:
            valid = f"{', '.join(VALUES[:-1])} or {VALUES[-1]}"
            return f"rank {rank} has {setting!r}, which cannot be used; set it to {valid}, the same on all ranks"
    for rank, setting in enumerate(settings):
        if setting != settings[0]:
            return f"rank 0 has {settings[0]!r} and rank {rank} has {setting!r}; set it to the same value on all ranks"
    return None


def places_among(reports: Sequence[LocalReport], rank: int) -> LocalPlace | str:
    """The place of ``rank``, or why the ranks of hosts do not add up first. All ranks get the same answer from the same reports."""
    first = reports[0]
    for other, report in enumerate(reports):
        if report.backend != first.backend:
            mine, theirs = first.backend or "none", report.backend or "none"
            return f"rank 0 has {mine} for it and rank {other} has {theirs}"
    if not first.backend:
        return first.why
    by_host: dict[Hashable, list[int]] = {}
    for other, report in enumerate(reports):
        by_host.setdefault(report.host, []).append(other)
    hosts = list(by_host.values())
    if all(len(ranks) == 1 for ranks in hosts):
        return "no host has several ranks"
    for ranks in hosts:
        if len(ranks) != len(hosts[0]):
            counts = f"that of rank 0 has {len(hosts[0])}, that of rank {ranks[0]} has {len(ranks)}"
            return f"hosts differ in the number of their ranks: {counts}"
    for ranks in hosts:
        device, times = Counter(reports[other].device for other in ranks).most_common(1)[0]
        if times > 1:
            sharing = [other for other in ranks if reports[other].device == device]
            return f"ranks {sharing[0]} and {sharing[1]} share a device"
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    whole = tuple(map(tuple, hosts))
    return LocalPlace(first.backend, len(hosts), host, whole, hosts[host].index(rank))


class LocalCut(NamedTuple):
    """The cut of elements among the ranks of a host: equal parts of the head, and padded parts of the rest."""

    head: int
    """How many elements are in parts without padding."""

    part: int
    """How many of these each rank has."""

    tail: int
    """How many elements are left."""

    rest: int
    """How many of these each rank has, padding included."""

    @property
    def length(self) -> int:
        """How many elements each rank has."""
        return self.part + self.rest


def cut_for(count: int, ranks: int, element_bytes: int) -> LocalCut:
    """The cut of ``count`` elements of ``element_bytes`` each among the ranks of a host.

    Parts of the head begin at multiples of :data:`ALIGNED_BYTES`, so the tail has fewer than that many bytes for each rank.
    """
    unit = max(1, ALIGNED_BYTES // element_bytes)
    part = count // (ranks * unit) * unit
    head = part * ranks
    tail = count - head
    return LocalCut(head, part, tail, -(-tail // ranks))


class LocalOps(NamedTuple):
    """How an op is done in steps."""

    local: str
    """The engine's name of the op among the ranks of a host."""

    rail: str
    """That among hosts."""

    divisor: int
    """By what the result is divided in the end."""


def ops_of(op: str, place: LocalPlace) -> LocalOps:
    """The ops of the steps of one of the engine's ops on floating-point numbers, or on others if it is no average."""
    if op != "average":
        return LocalOps(op, op, 1)
    if place.backend == "nccl":
        return LocalOps(op, op, 1)
    # Not every version of Gloo averages.
    return LocalOps("sum", op, place.size)
