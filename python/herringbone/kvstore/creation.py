"""Stores by MXNet's names of their types."""

from __future__ import annotations

import itertools
import os

from .. import _herringbone
from ..communicator import Communicator
from ..dependency import Engine
from ..errors import ArgumentError, ConfigError, UnsupportedError
from ..joining import job, join_launched
from ..needs import needs
from ..options import Options
from ..tables import ParameterServer
from . import ps_lite
from .on_devices import DeviceTrees
from .remote import RemoteKVStore
from .store import KVStore
from .tree_plan import Trees, trees_from

__all__ = ["create"]

ELSEWHERE = {
    "nccl": "'device'",
    "p3": "'dist_sync', whose operations have priorities",
    "byteps": "'dist_sync', and reducers in place of BytePS's servers",
}
"""MXNet's types that are not supported, and replacements."""

_numbers = itertools.count()
"""Numbers of stores: all workers create their stores in the same order."""


def create(
    name: str = "local",
    *,
    communicator: Communicator | None = None,
    engine: Engine | None = None,
    topology: str | os.PathLike[str] | None = None,
    nan: str = "count",
) -> KVStore:
    """A store, by MXNet's name for its type.

    ``local`` and ``device`` belong to this process alone. The other types belong to all workers of a job, and all of them
    create the store: ``dist_sync``, ``dist_device_sync``, ``horovod`` and ``dist_async``. ``horovod`` stores nothing: it has
    only ``pushpull`` and ``broadcast``.

    The values of ``dist_async`` are in tables on servers: the servers of ``HERRINGBONE_TABLES``, or of a job that is started
    with ps-lite's variables. In such a job a process that is a server or the scheduler serves here until the job is over, and
    exits.

    Args:
        name: in upper or lower case.
        communicator: the workers; by default the launcher's job, through the group that :func:`herringbone.init`, ``hvd.init``
            or an earlier store has made, if there is one.
        engine: runs the store's operations; by default an engine of its own.
        topology: a file with the links of the devices, or one topology in it as ``FILE#NAME``. Lists with one array per device
            are added along trees over these links, other lists from left to right. Node k is CUDA device k. Without a file, or on
            fewer devices, CUDA tensors take the trees of ``HERRINGBONE_TOPOLOGY`` in a store of one process, if it has one node per
            device. Otherwise they take trees over the links by which devices reach each other's memory.
        nan: by default all stores accept a push with a NaN into the value, as in MXNet, and ``herringbone status`` shows how
            many came to servers. With ``"refuse"`` a ``dist_async`` store refuses it, and the key's next pull raises
            :class:`TableError`.

    Raises:
        UnsupportedError: the type is not supported.
        ConfigError: ``dist_async`` has no servers.
        ModuleNotFoundError: numpy is missing; servers do not need it.
        SystemExit: this process was a server, and the job is over.
    """
    if not isinstance(name, str):
        raise TypeError(f"create: name is a {type(name).__name__}, not one like 'local' or 'dist_sync'")
    kind = name.lower()
    if kind in ELSEWHERE:
        raise UnsupportedError(f"create: stores of type {name!r} are not supported; use {ELSEWHERE[kind]}")
    if kind != "horovod" and not any(part in kind for part in ("local", "device", "dist")):
        raise ArgumentError(
            f"create: there is no type {name!r} of stores; use 'local', 'device', 'dist_sync', 'dist_device_sync', 'dist_async' or 'horovod'"
        )
    trees = None if topology is None else _trees_of_argument(os.fspath(topology))
    device_trees = DeviceTrees(lambda: trees or _trees_of_environment(kind)) if "device" in kind else None
    place = None
    if "dist" in kind:
        ps_lite.serve()
        place = ps_lite.place()
    needs("herringbone.kvstore", "numpy")
    if communicator is not None and ("async" in kind or not ("dist" in kind or kind == "horovod")):
        why = "is on servers, which need no communicator" if "async" in kind else "belongs to one process"
        raise ArgumentError(f"create: a store of type {name!r} {why}; use 'dist_sync' for a communicator")
    is_remote = "dist" in kind and "async" in kind
    if nan not in ("count", "refuse") or (nan == "refuse" and not is_remote):
        raise ArgumentError(f'create: nan is {nan!r}; it is "count", or "refuse" for a store of type \'dist_async\'')
    if is_remote:
        return _remote(name, place, engine, trees, device_trees, nan)
    if communicator is None and ("dist" in kind or kind == "horovod"):
        communicator = _of_job() if place is None else ps_lite.communicator(place)
    return KVStore(kind, communicator, engine, trees, device_trees)


def _of_job() -> Communicator:
    """The job's group, which stores share with other parts of the program."""
    return job() or join_launched("kvstore.create", Options(), None)


def _remote(
    name: str,
    place: _herringbone.PsLiteWorker | None,
    engine: Engine | None,
    trees: Trees | None,
    device_trees: DeviceTrees | None,
    nan: str,
) -> KVStore:
    if place is None:
        addresses = [each.strip() for each in os.environ.get("HERRINGBONE_TABLES", "").split(",") if each.strip()]
        if not addresses:
            raise ConfigError(
                f"create: {name!r} needs a parameter server: name its servers in HERRINGBONE_TABLES (`herringbone launch --tables 2` "
                f"starts some), or use 'dist_sync'"
            )
        servers = ParameterServer(addresses)
    else:
        addresses = place.servers
        servers = ParameterServer(addresses, rank=place.rank, workers=place.workers)
    store = f"{os.environ.get('HERRINGBONE_JOB') or 'kvstore'} {next(_numbers)}"
    return RemoteKVStore(name.lower(), servers, len(addresses), store, engine, trees, device_trees, nan)


def _trees_of_argument(topology: str) -> Trees:
    try:
        return _trees_of(topology)
    except ValueError as error:
        raise ArgumentError(f"create: the topology {topology}: {error}") from None


def _trees_of_environment(kind: str) -> Trees | None:
    """Those of ``HERRINGBONE_TOPOLOGY`` in a store of one process. In a job of several its nodes are the job's ranks.

    Raises:
        ConfigError: it names no topology.
    """
    topology = os.environ.get("HERRINGBONE_TOPOLOGY", "").strip()
    if "dist" in kind or topology in ("", "measure"):
        return None
    try:
        return _trees_of(topology)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"kvstore: HERRINGBONE_TOPOLOGY is {topology!r}: {error}; name a file that herringbone topo reads"
        ) from None


def _trees_of(topology: str) -> Trees:
    path, _, name = topology.partition("#")
    return trees_from(_herringbone.device_trees(_herringbone.read_user_text(path), name or None))
