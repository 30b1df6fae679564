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
"""Those that :func:`init` has made in this process and nobody has closed."""
before_close: list[Callable[[Communicator], object]] = []
"""What is called with a communicator that is about to be closed; none of these raises."""


class Communicator(Folds, Moves, Messages):
    """This process's membership in a group of ranks, with the collectives of numpy arrays; :func:`init` makes the first one::

        with herringbone.init() as group:
            total = group.all_reduce(array, "sum")
            work = group.all_reduce(array, "average", async_op=True)

    All ranks of the group call the same collectives in the same order. The results of ``all_reduce``, ``reduce``
    and ``reduce_scatter`` have the same bits whatever the algorithm, transport, number of reducers and timing.
    Every collective takes ``async_op=True`` to return a :class:`Work` at once (the arrays may not be touched until
    it has finished), and ``timeout`` in seconds. Those that move data take ``priority``, the same on all ranks: above 0
    an operation is urgent, so it overtakes ordinary ones that were started before it, and among messages that wait for
    a socket the higher priority goes first. If a rank has no memory for a result that a call makes, the call fails on all ranks
    with ``OutOfMemoryError``, on that one also a ``MemoryError``. A communicator is a context manager that closes itself.
    """

    _maker: str | None = None
    """The call that made it as the group of all ranks of the launcher's job; else ``None``."""

    _over: Communicator | None = None
    """The group of all ranks of the launcher's job over which :func:`init` has made this one: it ends with that; else ``None``."""

    @property
    def completed_before(self) -> int | None:
        """How many collectives of the group before this one all of its ranks have completed, if it came of :meth:`shrink`.

        They are those before the first that the loss ended on any of these ranks, in the order of the calls.
        """
        return self._native.completed_before

    @property
    def address(self) -> str | None:
        """Where this process listens, as ``"host:port"``: what ``herringbone status`` asks."""
        return self._native.address

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32") -> Array:
        """A zeroed array in memory that all ranks of this host map (a *mapped buffer*).

        An ``all_reduce`` in place of such an array, of the same shape on all ranks of a host, needs no copies. Any
        other collective takes it like any other array. The memory is freed with the last array over it, also after
        the communicator was closed. A forked child does not have it and must not touch the array.

        Raises:
            HerringboneError: there is not so much memory, or this process is a forked child.
            UnsupportedError: the type holds Python objects.
        """
        return mapped_array(self._native, shape, dtype)

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Communicator:
        """A group of some of this group's ranks. Only its members call this.

        Args:
            ranks: ascending ranks of this group; this process's is among them.
            name: the same on all members, and not used for these ranks before. If it is left out, each rank's n-th group of
                just these ranks is the same one. Where a call to make it fails on some ranks, the others wait in it for their
                timeout; then all can make it again.
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
        """A group of the ranks that are left, after a :class:`PeerLostError` or for any other reason.

        All ranks that live call this, and all get the same group. Their order is the same, and ranks are numbered anew. This
        group takes no more calls, and its collectives that are under way end. If it is that of :func:`init`, closing the new
        one leaves the job. Sums and averages are over the ranks that are left.

        A process that has ended does not count. A rank that is only silent may live beyond a broken network, so the others go
        on only if they are more than those that are silent: of a job that is cut in two at most one half goes on. Rank 0 of
        the job says who is left. If rank 0 itself is lost, the lowest rank that is left takes its part; then all other groups
        of the job end.

        Args:
            least: with fewer ranks it is an error.
            timeout: seconds to wait for the others that live; the group's if it is left out.

        Raises:
            PeerLostError: those that are left cannot go on, or are fewer than ``least``; the text says why.
            OperationTimeoutError: a rank that lives did not call this in time.
        """
        least = whole("shrink", "least", least, "a number of ranks")
        if not 1 <= least <= self.size:
            raise ValueError(f"shrink: least is {least}; the group has {self.size} ranks, and one at least is left")
        check_seconds("shrink", timeout)
        return self._followed_by(self._native.shrink(least, timeout))

    def replace(self, *, timeout: float | None = None) -> Communicator:
        """The whole job again, with new processes for the ranks that are lost, after a :class:`PeerLostError`.

        All ranks that live call this. The new processes call :func:`init` with the rank, the size and the place to meet of
        those that they replace; a launcher that starts them again does that. All ranks keep their numbers, and all groups of
        the job end, this one too. If rank 0 is replaced, its new process listens where the old one did.

        A new process has none of the others' state: see :func:`broadcast_state`.

        Args:
            timeout: seconds to wait for the new processes and the others; the group's if it is left out.

        Raises:
            HerringboneError: not all came in time; rank 0's error names those that are missing. This may be called again.
            UnsupportedError: ranks that are threads of one process are not replaced.
        """
        check_seconds("replace", timeout)
        return self._followed_by(self._native.replace(timeout))

    def regather(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator:
        """The job again with some of its first ranks, after :meth:`replace` has failed as new processes did not come.

        All of them call this, with the same ranks in ascending order. The first of them has to be able to listen at the job's
        place to meet. Ranks are numbered anew.

        Raises:
            HerringboneError: not all came in time. This may be called again, with others.
        """
        check_seconds("regather", timeout)
        ranks = [whole("regather", "one of ranks", rank, "a rank") for rank in ranks]
        return self._followed_by(self._native.regather(ranks, timeout))

    def newcomers(self) -> list[int]:
        """The lost ranks whose new processes wait to join, on rank 0; elsewhere there are none.

        They are numbered as at the job's start. With all lost ones there, :meth:`replace` does not have to wait.
        """
        return self._native.newcomers()

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it joined, over all groups: operations, bytes moved, seconds waited."""
        return self._native.stats()

    def recent(self) -> list[dict[str, Any]]:
        """The last 1,024 operations that this process issued, oldest first.

        They are those of all groups, since operations of one group wait for links and memory that others use. Each is
        a dictionary: ``group``, ``sequence`` and ``generation`` say which it is; ``collective``, ``root``, ``dtype``,
        ``op``, ``count`` and ``priority`` what was called, the count in elements or ``None`` where parts may differ;
        ``algorithm`` how it runs; ``state`` is "queued", "running", "done" or "failed: " with a kind of error;
        ``issued_s``, ``began_s`` and ``ended_s`` are how many seconds ago that was, up to 10 ms off; ``sent`` and
        ``received`` are bytes; ``text`` is all of it in a line.
        """
        return self._native.recent()

    def start_timeline(self, directory: str | os.PathLike[str]) -> None:
        """Write a timeline of all that this process does from now on, in all groups, into a file of its own in this directory.

        It ends with :meth:`stop_timeline`, or when the process leaves. ``HERRINGBONE_TIMELINE`` does the same from the
        beginning, and ``herringbone trace merge`` makes one file of those of all ranks. An earlier timeline ends.

        Args:
            directory: is made if it is missing.

        Raises:
            HerringboneError: the file cannot be written. If that fails later, a warning says so, and the file ends.
        """
        self._native.start_timeline(os.fspath(directory))

    def stop_timeline(self) -> None:
        """End the timeline, if one is written: then its file is whole."""
        self._native.stop_timeline()

    def mark_step(self) -> None:
        """Say that a step of the program begins, for the timeline, if one is written.

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
        """The algorithm that a collective takes, and why.

        What folds, for a sum: averages of integers, whose partial sums are wider, may take another.

        Args:
            count: elements per rank, of the smaller buffer where they differ.
            dtype: their type, one that can be folded.
            collective: its name, as of the method.
            compression: a codec's name, or ``"auto"``; what is said begins with the codec that is taken, then.

        Raises:
            ValueError: no collective or codec is called that.
            NotImplementedError: elements of the type cannot be folded, or the call cannot be compressed.
            TypeError: something else, like an array, stands where the number or a name belongs.
        """
        import numpy as np

        count = check_explained(count, collective, compression)
        kind = fold_type("explain", np.empty(0, dtype), "sum")
        return self._native.explain(collective, kind, count, compression)

    def describe(self) -> str:
        """How this process takes part, in a line: ranks, reducers, what is forced, the timeout."""
        return self._native.describe()

    def close(self) -> None:
        """Leave the group: operations that are under way end, later calls raise ``ClosedError``.

        The group of all ranks waits for its operations, and those of its subgroups, as long as anything moves in 10
        seconds. What has not ended then, or never can, raises ``ClosedError`` where it is waited for. Rank 0 waits
        until the others have left, for at most 10 seconds: they learn from it which ranks are lost.

        Raises:
            MismatchError: the ranks disagree about the last calls of the group, or of its subgroups if it is that of all ranks.
                It is left all the same. While another exception is under way this is only printed.
            PeerLostError: a rank has left such a group without one of its last calls; as before.
        """
        self._leave()
        tell(close_each([self._native]))

    def _leave(self) -> None:
        """Let go of what is about to be closed: this group, and those that :func:`init` has made over it."""
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
