"""Jobs that are started with ps-lite's variables: one program, which the environment makes a scheduler, a server or a worker.

::

    DMLC_ROLE=worker DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=2 DMLC_PS_ROOT_URI=127.0.0.1 DMLC_PS_ROOT_PORT=9091 python train.py
"""

from __future__ import annotations

import os

from .. import _herringbone
from ..closing import at_exit, close_each
from ..communicator import Communicator, made
from ..options import Options
from ..tables import ParameterServer
from .meeting import TableStore

__all__ = ["communicator", "place", "serve"]

_places: list[_herringbone.PsLiteWorker] = []
"""This process's place, once it has one."""
_communicators: list[Communicator] = []


def serve() -> None:
    """If the environment makes this process a server or the scheduler, serve until the job is over, and exit."""
    if os.environ.get("DMLC_ROLE") in ("server", "scheduler"):
        _herringbone.ps_lite_serve()
        raise SystemExit(0)


def place() -> _herringbone.PsLiteWorker | None:
    """This worker's place; ``None`` if the job has no scheduler: it names no servers, or ``HERRINGBONE_RANK`` overrides the
    variables."""
    settings = os.environ
    if settings.get("DMLC_ROLE") != "worker" or not settings.get("DMLC_NUM_SERVER") or settings.get("HERRINGBONE_RANK"):
        return None
    if not _places:
        _places.append(_herringbone.PsLiteWorker.join())
    return _places[0]


def communicator(place: _herringbone.PsLiteWorker) -> Communicator:
    """The workers' communicator. They find each other through the servers, which are also its reducers."""
    if not _communicators:
        with ParameterServer(place.servers, rank=place.rank, workers=place.workers) as servers:
            options = Options(reducers=None if os.environ.get("HERRINGBONE_REDUCERS") else place.servers)
            native = _herringbone.Communicator.connect(
                rank=place.rank, size=place.workers, store=TableStore(servers), store_host=place.host, **vars(options)
            )
        _communicators.append(Communicator(native))
        made.append(_communicators[0])
    return _communicators[0]


def _goodbye() -> list[Exception]:
    errors = close_each(_places)
    _places.clear()
    return errors


def _in_child() -> None:
    _places.clear()
    _communicators.clear()


at_exit(_goodbye)
os.register_at_fork(after_in_child=_in_child)
