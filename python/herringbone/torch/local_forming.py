"""Whether the ranks of a group add up on their hosts first: each rank says where it is, and all decide the same."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import torch
from torch._C._distributed_c10d import Store

from .. import errors
from .._herringbone import Communicator
from ..hosts import host_key
from ..kinds import kind_of
from .devices import Accelerator
from .local_sums import LocalSums
from .rails import BACKENDS, LocalPlace, LocalReport, disputed, places_among, wanted
from .tensors import span

__all__ = ["VARIABLE", "decided"]

VARIABLE = "HERRINGBONE_LOCAL_SUMS"

NETWORK = Path("/proc/self/ns/net")
"""The network namespace: another one is another host, as for the engine."""

KEY_BYTES = 32

SETTING_BYTES = 64
"""As much of a rank's setting as the others are told."""

logger = logging.getLogger("herringbone")


def decided(
    communicator: Communicator,
    store: Store,
    seconds: float,
    accelerator: Accelerator,
    tensor: torch.Tensor,
    number: int,
    is_formed_anew: bool,
) -> LocalSums | str:
    """The calls of a group for the device of ``tensor`` whose ranks add up on their hosts first, or why they do not.

    All ranks of the group call it in the same place of their calls.

    Args:
        number: how many of them the group has decided about before.
        is_formed_anew: whether its ranks did not meet through a store of torch's.

    Raises:
        ConfigError: the setting of a rank cannot be used, or differs from another's. All ranks get this.
        HerringboneError: the ranks did not come together.
    """
    setting = os.environ.get(VARIABLE) or "auto"
    backend, why = wanted(setting, accelerator.local_backend())
    if is_formed_anew:
        backend, why = "", "the group was re-formed"
    if communicator.size == 1:
        backend, why = "", "there is one rank"
    lane = accelerator.lane(tensor) if backend else None
    if backend and lane is None:
        backend, why = "", "the device has no streams of torch's"
    own = LocalReport(own_host(), accelerator.identity(tensor), backend, why, setting)
    reports = exchanged(communicator, seconds, own) if communicator.size > 1 else [own]
    problem = disputed([report.setting for report in reports])
    if problem is not None:
        raise errors.ConfigError(f"{VARIABLE}: {problem}")
    if communicator.size == 1:
        return why
    place = places_among(reports, communicator.rank)
    if communicator.rank == 0:
        tell(accelerator.device_type, place, setting in BACKENDS)
    if isinstance(place, str) or lane is None:
        return f"no ranks add up on their host first: {place}"
    return LocalSums(communicator, store, place, accelerator, tensor, lane, f"{communicator.name} local {number}")


def tell(device_type: str, place: LocalPlace | str, was_asked_for: bool) -> None:
    """Log what was decided: once for a group and a device."""
    if isinstance(place, LocalPlace):
        logger.info("herringbone: tensors of %s: %s", device_type, place.describe())
        return
    level = logging.WARNING if was_asked_for else logging.INFO
    logger.log(level, "herringbone: tensors of %s: no ranks add up on their host first: %s", device_type, place)


def own_host() -> bytes:
    """What this rank's host is called. NCCL takes ranks with different identities for ranks of different hosts, too."""
    network = str(NETWORK.stat().st_ino) if NETWORK.exists() else ""
    return hashlib.sha256(host_key() + f"{network} {os.environ.get('NCCL_HOSTID', '')}".encode()).digest()


def exchanged(communicator: Communicator, seconds: float, own: LocalReport) -> list[LocalReport]:
    """The reports of all ranks; the others' reasons are this rank's."""
    host = own.host
    assert isinstance(host, bytes)
    device = hashlib.sha256(str(own.device).encode()).digest()
    choice = (BACKENDS.index(own.backend) + 1) if own.backend else 0
    setting = own.setting.encode(errors="replace")[:SETTING_BYTES].ljust(SETTING_BYTES, b"\0")
    given = torch.tensor([*host, *device, *setting, choice], dtype=torch.uint8, device="cpu")
    taken = torch.empty(communicator.size, len(given), dtype=torch.uint8, device="cpu")
    kind = kind_of("all_gather", "u8")
    communicator.run((kind, len(given), 0, span(given), span(taken), (given, taken), seconds, 0, None))
    reports = []
    for row in map(bytes, taken.tolist()):
        host, device, setting = row[:KEY_BYTES], row[KEY_BYTES : 2 * KEY_BYTES], row[2 * KEY_BYTES : -1].rstrip(b"\0")
        known, why = ("", *BACKENDS)[row[-1]], own.why or "another rank has none"
        reports.append(LocalReport(host, device, known, why, setting.decode(errors="replace")))
    return reports
