"""Begin and end of a job, and a process's place in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

from ...arguments import several
from ...closing import at_exit, tell
from ...communicator import Communicator
from . import launched
from .handles import forget_all
from .objects import gather_objects
from .process_sets import ProcessSet, check_set, global_process_set
from .settings import Settings, pass_on_log_level, variables_without_effect
from .world import World, current, enter, leave, required

__all__ = [
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

LOGGER = logging.getLogger("herringbone")

_job: Communicator | None = None
"""The ranks that the launcher started. It outlives ``shutdown``, so that ``init`` can follow."""


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job, if this process has not joined it yet.

    Args:
        comm: an ascending list of the ranks that take part, by default all; they are numbered in this order.
        process_sets: sets that exist from the start, the same on all ranks; or ``"dynamic"``, to add some later.

    Raises:
        ValueError: ``comm`` or a set is invalid.
        HerringboneError: the ranks did not come together.
    """
    global _job
    if current() is not None:
        return
    ranks = _ranks_of(comm)
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f'init: process_sets is {process_sets!r}; pass a list of ProcessSet, or "dynamic"')
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        process_sets = None
    sets = several("init", "process_sets", process_sets or ())
    for each in sets:
        check_set(each, "init", "one of process_sets")
    settings = Settings.read()
    if _job is None:
        pass_on_log_level()
        _job = launched.first_job(settings)
        at_exit(_end_world)
    world = World(_job, ranks, settings)
    enter(world)
    try:
        _settle(world, sets)
    except BaseException:
        shutdown()
        raise


def _settle(world: World, process_sets: list[ProcessSet]) -> None:
    """The rest of ``init`` once the ranks have met: process sets, the timeline, the line about variables."""
    global_process_set.ranks = list(range(world.size))
    # From this the launcher knows which processes came too late to take part.
    launched.say("joined")
    _agree("init: process_sets", [each.ranks for each in process_sets])
    for at, process_set in enumerate(process_sets):
        process_set.process_set_id = world.add(process_set.ranks)
        if process_set.process_set_id is None:
            raise ValueError(
                f"Horovod could not be initialized because process_sets entry number {at} is a duplicate: {process_set}"
            )
    idle = variables_without_effect()
    if idle and world.rank == 0:
        LOGGER.warning("herringbone: these variables have no effect: %s", ", ".join(idle))
    if world.settings.timeline:
        start_timeline(world.settings.timeline, world.settings.timeline_marks_cycles)


def _ranks_of(comm: Any) -> list[int] | None:
    if comm is None:
        return None
    if not isinstance(comm, Iterable):
        raise ValueError(
            f"Invalid type of argument comm. Expected list of rank integers; this is a {type(comm).__name__}, "
            f"and Herringbone has no MPI."
        )
    ranks = list(comm)
    if any(not isinstance(each, int) for each in ranks):
        raise ValueError("Invalid type of argument comm. Expected list of rank integers; Herringbone has no MPI.")
    if ranks != sorted(set(ranks)):
        raise ValueError(f"init: comm={ranks} does not ascend; Herringbone numbers ranks in the launcher's order")
    return ranks or None


def shutdown() -> None:
    """End all operations, on every rank. ``init`` can be called again.

    Raises:
        MismatchError: the ranks disagree about the last calls of a process set. All sets are ended all the same.
    """
    tell(_end_world())


def _end_world() -> list[Exception]:
    world = leave()
    errors = [] if world is None else world.end()
    forget_all()
    return errors


def is_initialized() -> bool:
    """Whether ``init`` was called, and not ``shutdown`` since then."""
    return current() is not None


def job() -> Communicator:
    """The remaining ranks of the launcher's job.

    Raises:
        ValueError: ``init`` was not called.
    """
    if _job is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _job


def replace_job(communicator: Communicator) -> None:
    """Let the next ``init`` begin with these ranks."""
    global _job
    _job = communicator


def rank() -> int:
    """This process's rank."""
    return required().rank


def size() -> int:
    """How many processes there are."""
    return required().size


def local_rank() -> int:
    """This process's rank within its host."""
    return required().place.local_rank


def local_size() -> int:
    """How many processes this host has."""
    return required().place.local_size


def cross_rank() -> int:
    """The number of this process's host, among the hosts that have a process with its local rank."""
    return required().place.cross_rank


def cross_size() -> int:
    """How many hosts have a process with this one's local rank."""
    return required().place.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    return required().place.homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Let rank 0 write the events of each tensor to a file, as a Chrome trace.

    Raises:
                ValueError: ``init`` was not called.
    """
    controller = required().sets[0].controller
    assert controller is not None
    if rank() == 0:
        controller.start_timeline(str(file_path), mark_cycles)


def stop_timeline() -> None:
    """End the timeline and close its file.

    Raises:
                ValueError: ``init`` was not called.
    """
    controller = required().sets[0].controller
    assert controller is not None
    if rank() == 0:
        controller.stop_timeline()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Add a set of ranks. All ranks call it, even those outside the set, and in the same order.

    Raises:
        ValueError: ``HOROVOD_DYNAMIC_PROCESS_SETS`` is not 1, a set of these ranks exists, or the ranks pass different sets.
    """
    world = required()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    _check_dynamic(world, "adding")
    _agree("add_process_set", process_set.ranks)
    number = world.add(process_set.ranks)
    if number is None:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set, and return whether it existed. All ranks call it, in the same order."""
    check_set(process_set, "remove_process_set")
    world, number = required(), process_set.process_set_id
    if not number:
        return False
    _check_dynamic(world, "removing")
    _agree("remove_process_set", process_set.ranks)
    process_set.process_set_id = None
    member = world.sets.pop(number, None)
    if member is None:
        return False
    member.close()
    return True


def _check_dynamic(world: World, what: str) -> None:
    if not world.settings.dynamic_process_sets:
        raise ValueError(f"Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow {what} process sets after Horovod initialization.")


def _agree(what: str, own: Any) -> None:
    """Fail on all ranks if they pass different values."""
    everybody = gather_objects(own, what.replace(": ", "."), global_process_set)
    differing = [other for other, said in enumerate(everybody) if said != everybody[0]]
    if differing:
        raise ValueError(f"{what}: rank 0 has {everybody[0]}, and rank {differing[0]} has {everybody[differing[0]]}")


def mpi_threads_supported() -> bool:
    """Whether MPI allows other users in this process; there is no MPI here.

    Raises:
        ValueError: always.
    """
    raise ValueError("Horovod MPI is not enabled; Herringbone moves data by itself.")


def mpi_enabled() -> bool:
    """False, like all of these functions: Herringbone itself moves data, in CPU memory."""
    return False


mpi_built = gloo_enabled = gloo_built = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = mpi_enabled
