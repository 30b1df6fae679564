"""Collectives and messages on numpy arrays, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _herringbone
from .arguments import check_explained, check_seconds, text, whole
from .arrays import fold_type, mapped_array
from .closing import close_each, tell
from .collectives.folds import Folds
from .collectives.messages import Messages
from .collectives.moves import Moves
from .errors import ConfigError

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    from .names import Codec, Collective

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Communicator", "before_close", "made"]

made: list[Communicator] = []
"""The open communicators that :func:`init` has made in this process."""
before_close: list[Callable[[Communicator], object]] = []
"""Functions that are called with a communicator before it is closed; none of them raises."""


class Communicator(Folds, Moves, Messages):
    """This process's membership in a group of ranks, with the collectives of numpy arrays; :func:`init` makes the first one::

        with herringbone.init() as group:
            total = group.all_reduce(array, "sum")
            work = group.all_reduce(array, "average", async_op=True)

    All ranks of the group call the same collectives in the same order. The results of ``all_reduce``, ``reduce``
    and ``reduce_scatter`` have the same bits whatever the algorithm, transport, number of reducers and timing.
    With ``async_op=True`` a collective returns a :class:`Work` at once; do not touch the arrays until it has finished.
    ``timeout`` is in seconds. Collectives that move data take ``priority``, the same on all ranks. Above 0 an operation is
    urgent and passes ordinary ones that were started before it; a socket sends the waiting message of the highest priority
    first. If a rank has no memory for a result that a call makes, the call fails on all ranks with ``OutOfMemoryError``, which
    on that rank is also a ``MemoryError``. A communicator is a context manager that closes itself.
    """

    _maker: str | None = None
    """The call that made it, if it is the group of all ranks of the launcher's job; else ``None``."""

    _over: Communicator | None = None
    """If :func:`init` has made this group over the launcher's job: the job's group, which this one ends with; else ``None``."""

    @property
    def completed_before(self) -> int | None:
        """After :meth:`shrink`: how many collectives of the earlier group all remaining ranks have completed; else ``None``.

        In the order of calls these come before the first collective that the loss ended on any of these ranks.
        """
        return self._native.completed_before

    @property
    def address(self) -> str | None:
        """The address ``"host:port"`` at which this process listens, for ``herringbone status``."""
        return self._native.address

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> Array:
        """A zeroed array in memory that all ranks of this host map (a *mapped buffer*).

        An in-place ``all_reduce`` of such an array, of the same shape on all ranks of a host, needs no copies. Other
        collectives take it like any array. The memory is freed with the last array over it, even after the communicator
        was closed. A forked child does not have the memory and must not touch the array.

        Raises:
            HerringboneError: the memory does not suffice, or this process is a forked child.
            UnsupportedError: the type holds Python objects.
        """
        return mapped_array(self._native, shape, dtype)

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Communicator:
        """A group of some of this group's ranks. Only its members call this.

        Args:
            ranks: ascending ranks of this group; this process's is among them.
            name: the same on all members, and not used for these ranks before. Without it, the n-th group that a member makes
                of exactly these ranks is the same on all members. If this call fails on some ranks, the others wait in it for
                their timeout; then all can make the group again.
        """
        if isinstance(ranks, str) or not isinstance(ranks, Iterable):
            raise TypeError(f"subgroup: ranks is a {type(ranks).__name__}, not a sequence of ranks like [0, 1]")
        ranks = [whole("subgroup", "one of ranks", rank, "a rank") for rank in ranks]
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise ConfigError(f"subgroup on rank {self.rank}: {rank} is no rank of this group of {self.size}")
        if name is not None:
            text("subgroup", "name", name)
        return Communicator(self._native.subgroup(ranks, name))

    def shrink(self, least: int = 1, *, timeout: float | None = None) -> Communicator:
        """A group of the remaining ranks, after a :class:`PeerLostError` or for any other reason.

        All surviving ranks call this, and all get the same group. They keep their order and are renumbered from 0. This group
        takes no more calls, and its running collectives end. If it is the group of :func:`init`, closing the new one leaves the
        job. Later sums and averages are over the remaining ranks.

        A silent rank might still be running on the other side of a network split. So the survivors continue only if they are a
        majority: they must outnumber the silent ranks. Processes that are known to have ended are left out. At most one side
        of a split continues. Rank 0 of the job decides which ranks remain. If rank 0 itself is lost, the lowest surviving rank
        takes over, and all other groups of the job end.

        Args:
            least: it is an error if fewer ranks remain.
            timeout: seconds to wait for the other survivors; by default the group's.

        Raises:
            PeerLostError: the survivors cannot continue, or are fewer than ``least``; the text gives the reason.
            OperationTimeoutError: a surviving rank did not call this in time.
        """
        least = whole("shrink", "least", least, "a number of ranks")
        if not 1 <= least <= self.size:
            raise ValueError(f"shrink: least is {least}; the group has {self.size} ranks, and one at least is left")
        check_seconds("shrink", timeout)
        return self._followed_by(self._native.shrink(least, timeout))

    def replace(self, *, timeout: float | None = None) -> Communicator:
        """The whole job again, with new processes for the lost ranks, after a :class:`PeerLostError`.

        All surviving ranks call this. Each new process calls :func:`init` with the rank, size and meeting address of the
        process that it replaces, as a launcher that restarts it does. All ranks keep their numbers, and all groups of the job
        end, this one too. If rank 0 is replaced, its new process listens where the old one did.

        A new process has none of the others' state: see :func:`broadcast_state`.

        Args:
            timeout: seconds to wait for the new processes and the others; by default the group's.

        Raises:
            HerringboneError: not all came in time; rank 0's error names the missing ranks. You can call this again.
            UnsupportedError: the ranks are threads of one process, which cannot be replaced.
        """
        check_seconds("replace", timeout)
        return self._followed_by(self._native.replace(timeout))

    def regather(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator:
        """The job again with some of its original ranks, after :meth:`replace` has failed because new processes did not come.

        Each of these ranks calls this, with the same ascending list. The first of them has to be able to listen at the job's
        meeting address. Ranks are renumbered from 0.

        Raises:
            HerringboneError: not all came in time. You can call this again, with other ranks.
        """
        check_seconds("regather", timeout)
        ranks = [whole("regather", "one of ranks", rank, "a rank") for rank in ranks]
        return self._followed_by(self._native.regather(ranks, timeout))

    def newcomers(self) -> list[int]:
        """The lost ranks whose new processes wait to join, on rank 0; an empty list on other ranks.

        They have their numbers from the job's start. Once the list has all lost ranks, :meth:`replace` does not wait.
        """
        return self._native.newcomers()

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it joined, over all groups: operations, bytes moved, seconds waited."""
        return self._native.stats()

    def recent(self) -> list[dict[str, Any]]:
        """The last 1,024 operations that this process issued, oldest first.

        The list covers all groups, because operations of one group wait for links and memory that others use. Each entry is
        a dictionary:

        * ``group``, ``sequence``, ``generation``: they identify it.
        * ``collective``, ``root``, ``dtype``, ``op``, ``count``, ``priority``: the call. ``count`` is in elements, ``None``
          where parts can differ.
        * ``algorithm``: how it runs.
        * ``state``: "queued", "running", "done" or "failed: " with a kind of error.
        * ``issued_s``, ``began_s``, ``ended_s``: how many seconds ago that was, up to 10 ms off.
        * ``sent``, ``received``: bytes.
        * ``text``: all of this in one line.
        """
        return self._native.recent()

    def start_timeline(self, directory: str | os.PathLike[str]) -> None:
        """Write a timeline of everything that this process does from now on, in all groups, into its own file in this
        directory.

        It ends with :meth:`stop_timeline`, or when the process leaves the job. ``HERRINGBONE_TIMELINE`` writes one from the
        start of the job. ``herringbone trace merge`` joins the ranks' files into one. An earlier timeline ends.

        Args:
            directory: it is made if it is missing.

        Raises:
            HerringboneError: the file cannot be written. If writing fails later, a warning says so, and the file ends.
        """
        self._native.start_timeline(os.fspath(directory))

    def stop_timeline(self) -> None:
        """End the timeline, if one is being written. Its file is complete then."""
        self._native.stop_timeline()

    def mark_step(self) -> None:
        """Mark the begin of a step of the program in the timeline, if one is being written.

        ``herringbone trace report`` shows what each rank did in each step.
        """
        self._native.mark_step()

    def explain(
        self,
        count: int,
        dtype: npt.DTypeLike = "float32",
        collective: Collective = "all_reduce",
        compression: Codec | None = None,
    ) -> str:
        """The algorithm that a collective uses, and why.

        For collectives that fold, the answer is for a sum. Averages of integers have wider partial sums and can use another
        algorithm.

        Args:
            count: elements per rank, in the smaller buffer if input and output differ.
            dtype: their type, one that can be folded.
            collective: the name of its method.
            compression: a codec's name, or ``"auto"``; the answer then begins with the chosen codec.

        Raises:
            ValueError: no collective or codec has this name.
            NotImplementedError: elements of the type cannot be folded, or the call cannot be compressed.
            TypeError: an argument is not of its type, such as an array instead of the count.
        """
        import numpy as np

        count = check_explained(count, collective, compression)
        kind = fold_type("explain", np.empty(0, dtype), "sum")
        return self._native.explain(collective, kind, count, compression)

    def describe(self) -> str:
        """This process's membership in one line: ranks, reducers, forced settings, the timeout."""
        return self._native.describe()

    def close(self) -> None:
        """Leave the group: running operations end, later calls raise ``ClosedError``.

        The group of all ranks waits for its operations and its subgroups' until nothing has moved for 10 seconds. An operation
        that has not ended by then, or never can, raises ``ClosedError`` where the program waits for it. Rank 0 waits up to 10
        seconds for the others to leave, because they learn from it which ranks are lost.

        In both of the following cases this rank has left the group all the same. While another exception is being handled, the
        error is only printed.

        Raises:
                        MismatchError: the ranks disagree about the last calls of the group; for the group of all ranks, or of
                            its
                subgroups.
            PeerLostError: a rank has left such a group without making one of its last calls.
        """
        self._leave()
        tell(close_each([self._native]))

    def _leave(self) -> None:
        """Forget what is about to be closed: this group, and the groups that :func:`init` has made over it."""
        for communicator in [*(known for known in made if known._over is self), self]:
            for call in before_close:
                call(communicator)
            if communicator in made:
                made.remove(communicator)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<herringbone.Communicator rank {self.rank} of {self.size}>"

    def _followed_by(self, native: _herringbone.Communicator) -> Communicator:
        """The communicator that takes this one's place."""
        communicator = Communicator(native)
        communicator._maker = self._maker
        if self in made:
            made[made.index(self)] = communicator
        return communicator
