"""Sets of ranks that run their own operations."""

from __future__ import annotations

from collections.abc import Iterable

from ...arguments import whole
from .world import Member, required

__all__ = ["ProcessSet", "check_set", "checked_splits", "global_process_set", "index_in", "member_of"]


class ProcessSet:
    """Ranks that run collective operations together.

    Pass it to ``init(process_sets=[...])`` or ``add_process_set``, which set its number, and then as ``process_set=`` to
    an operation.
    """

    process_set_id: int | None = None
    """``None`` until it takes part."""
    ranks: list[int]

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Make a set of these ranks.

        Raises:
            ValueError: they are not ranks.
        """
        wrong = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"{wrong}; this is a {type(ranks_or_comm).__name__}, and Herringbone has no MPI")
        ranks = list(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(wrong)
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """How many ranks it has; ``None`` until it takes part."""
        return None if self.process_set_id is None else len(member_of(self, "ProcessSet.size").ranks)

    def rank(self) -> int | None:
        """This process's rank in the set; ``None`` until the set takes part.

        Raises:
            ValueError: this process is not in it.
        """
        if self.process_set_id is None:
            return None
        ranks, own = member_of(self, "ProcessSet.rank").ranks, required().rank
        if own not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(own)

    def included(self) -> bool:
        """Whether this process is in it."""
        return required().rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm=None)"


global_process_set = ProcessSet([])
"""All ranks."""
global_process_set.process_set_id = 0


def check_set(process_set: object, call: str, argument: str = "process_set") -> None:
    """Check that an argument is a process set.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(process_set, ProcessSet):
        kind = type(process_set).__name__
        raise TypeError(f"{call}: {argument} is a {kind}, not a ProcessSet; pass hvd.add_process_set(ranks), or leave it out")


def member_of(process_set: ProcessSet, call: str) -> Member:
    """The registered set for a call's argument, as made by ``init`` or ``add_process_set``.

    Raises:
        TypeError: the argument is no process set.
        ValueError: it is not registered.
    """
    check_set(process_set, call)
    world, number = required(), process_set.process_set_id
    member = None if number is None else world.sets.get(number)
    if member is None:
        raise ValueError(f"{call}: Process set provided does not exist, or has not been registered.")
    return member


def index_in(process_set: ProcessSet, root_rank: int, call: str) -> int:
    """The rank within the set of a rank of the job.

    Raises:
        ValueError: the rank is not in it.
    """
    ranks = member_of(process_set, call).ranks
    if root_rank not in ranks:
        raise ValueError(f"{call}: root_rank {root_rank} is not one of the process set's ranks {list(ranks)}")
    return ranks.index(root_rank)


def checked_splits(process_set: ProcessSet, splits: Iterable[int] | None, rows: int) -> list[int]:
    """How many of an alltoall's rows go to each rank of the set; equal parts if ``splits`` is left out.

    Raises:
        ValueError: they do not fit the rows or the ranks.
    """
    ranks = len(member_of(process_set, "alltoall").ranks)
    if splits is not None and not isinstance(splits, Iterable):
        raise TypeError(f"alltoall: splits is a {type(splits).__name__}, not a number of rows for each rank")
    lengths = [whole("alltoall", "one of splits", length, "a number of rows") for length in (() if splits is None else splits)]
    if not lengths:
        if rows % ranks:
            text = "splits not provided, but first dimension of tensor is not an even multiple of the number of workers."
            raise ValueError(f"alltoall: {text} It has {rows} rows for {ranks} workers.")
        return [rows // ranks] * ranks
    if len(lengths) != ranks:
        raise ValueError(f"alltoall: Number of entries in splits does not equal number of workers: {len(lengths)}, {ranks}.")
    if any(length < 0 for length in lengths):
        raise ValueError(f"alltoall: splits are {lengths}; no length is below 0")
    if sum(lengths) > rows:
        text = "Sum of splits entries is greater than the first dimension of tensor"
        raise ValueError(f"alltoall: {text}: {sum(lengths)}, {rows}.")
    return lengths
