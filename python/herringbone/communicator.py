"""Collectives on numpy arrays, without torch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _herringbone
from .arguments import check_explained, check_seconds, whole
from .arrays import fold_type, mapped_array, move_type, new_array, same_size
from .closing import at_exit, close_each, tell
from .compression import LOAD, Residuals, compressed
from .errors import ClosedError, ConfigError
from .kinds import BARRIER, kind_of
from .messages import Messages
from .options import Options
from .work import Work

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Communicator", "Work", "empty", "finalize", "init"]


class Communicator(Messages):
    """This process's membership in a group of ranks; :func:`init` makes the first one.

    All ranks of the group call the same collectives in the same order. The results of ``all_reduce``, ``reduce``
    and ``reduce_scatter`` have the same bits whatever the algorithm, transport, number of reducers and timing.
    Every collective takes ``async_op=True`` to return a :class:`Work` at once (the arrays may not be touched until
    it has finished), and ``timeout`` in seconds. Those that move data take ``priority``, the same on all ranks: above 0
    an operation is urgent, so it overtakes ordinary ones that were started before it, and among messages that wait for
    a socket the higher priority goes first. If a rank has no memory for a result that a call makes, the call fails on all ranks
    with ``OutOfMemoryError``, on that one also a ``MemoryError``. A communicator is a context manager that closes itself.
    """

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

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        out: Array | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
        compression: str | None = None,
        tensor: str | None = None,
        residuals: Residuals | None = None,
    ) -> Any:
        """Fold ``array`` over all ranks, element by element, into ``out`` (default: in place) on every rank.

        Args:
            array: any shape, the same number of elements and type on every rank.
            op: ``"sum"``, ``"average"``, ``"product"``, ``"min"``, ``"max"``, or, of integers, ``"bit_and"``, ``"bit_or"``
                or ``"bit_xor"``.
            out: an array of the same type and size; it may be ``array``, or overlap it.
            compression: a codec for sums and averages of float32: ``"bf16"``, ``"fp16"``, ``"int8"``,
                ``"onebit:THRESHOLD"``, ``"twobit:THRESHOLD"``, ``"sign"``, ``"topk:SHARE"``, ``"randomk:SHARE"``,
                ``"threshold:THRESHOLD"`` or ``"exact"``; the same on all ranks. ``"auto"`` takes bf16 or int8 where the plan
                expects less time, and needs ``HERRINGBONE_CALIBRATION``.
            tensor: a name, so that what the codec loses goes with what is sent of this tensor next (error feedback).
            residuals: who keeps what is lost, if the communicator does not: one for each model that has tensors of the same names.

        Returns:
            The result array, or a :class:`Work`.

        Raises:
            UnsupportedError: the engine does not fold this type.
            ValueError: an array is read-only or not C-contiguous, or they do not fit each other, or ``op`` is no name.
            TypeError: something else stands where an array or the name ``op`` belongs.
            HerringboneError: the collective failed; with ``async_op`` mostly where its work is waited for.
        """
        kind = self._folding("all_reduce", array, op)
        if out is None:
            out = array
        else:
            same_size("all_reduce", array, out, array.size)
        coded = compressed("all_reduce", compression, tensor, residuals)
        return self._run(kind, array.size, 0, array, out, async_op, timeout, priority, coded)

    def compression_state_dict(self) -> dict[str, dict[str, Any]]:
        """What compression has left of this rank's tensors that have no other owner: see :meth:`Residuals.state_dict`."""
        return Residuals(self._native.residuals).state_dict()

    def load_compression_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Go on with what was left when :meth:`compression_state_dict` was called, in place of what is left now.

        Raises:
            TypeError, ArgumentError: it is not what that gave, and nothing is changed.
        """
        Residuals(self._native.residuals)._load(LOAD, state)

    def reduce(
        self,
        array: Array,
        root: int = 0,
        op: str = "sum",
        *,
        out: Array | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Like :meth:`all_reduce`, but only ``root`` receives the result; elsewhere ``out`` is left alone."""
        kind = self._folding("reduce", array, op)
        if out is None:
            out = array
        else:
            same_size("reduce", array, out, array.size)
        root = self._root("reduce", root)
        return self._run(kind, array.size, root, array, out, async_op, timeout, priority)

    def broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Replace ``array`` on every rank by ``root``'s; any type."""
        dtype, scale = move_type("broadcast", array)
        count, root = array.size * scale, self._root("broadcast", root)
        return self._run(kind_of("broadcast", dtype), count, root, array, array, async_op, timeout, priority)

    def reduce_scatter(
        self,
        array: Array,
        op: str = "sum",
        *,
        out: Array | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Fold ``array`` over all ranks and give rank ``i`` the ``i``-th of ``size`` equal parts.

        Args:
            array: shape ``(size * n, ...)``.
            out: shape ``(n, ...)``; made if it is not given.
        """
        kind = self._folding("reduce_scatter", array, op)
        if array.ndim == 0 or array.shape[0] % self.size:
            raise ValueError(f"reduce_scatter: the first length of {array.shape} has to be a multiple of the {self.size} ranks")
        if out is None:
            out = new_array((array.shape[0] // self.size, *array.shape[1:]), array.dtype)
        same_size("reduce_scatter", array, out, array.size // self.size)
        return self._run(kind, out.size, 0, array, out, async_op, timeout, priority)

    def barrier(self, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Return once every rank has called it."""
        return self._run(BARRIER, 0, 0, None, None, async_op, timeout, 0)

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
        if name is not None and not isinstance(name, str):
            raise TypeError(f"subgroup: name is a {type(name).__name__}, not a text")
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
        if timeout is not None:
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
        if timeout is not None:
            check_seconds("replace", timeout)
        return self._followed_by(self._native.replace(timeout))

    def regather(self, ranks: Sequence[int], *, timeout: float | None = None) -> Communicator:
        """The job again with some of its first ranks, after :meth:`replace` has failed as new processes did not come.

        All of them call this, with the same ranks in ascending order. The first of them has to be able to listen at the job's
        place to meet. Ranks are numbered anew.

        Raises:
            HerringboneError: not all came in time. This may be called again, with others.
        """
        if timeout is not None:
            check_seconds("regather", timeout)
        ranks = [whole("regather", "one of ranks", rank, "a rank") for rank in ranks]
        return self._followed_by(self._native.regather(ranks, timeout))

    def newcomers(self) -> list[int]:
        """The lost ranks whose new processes wait to join, on rank 0; elsewhere there are none.

        They are numbered as at the job's start. With all lost ones there, :meth:`replace` does not have to wait.
        """
        return self._native.newcomers()

    def _followed_by(self, native: _herringbone.Communicator) -> Communicator:
        """The communicator that takes this one's place."""
        communicator = Communicator(native)
        if self in _made:
            _made[_made.index(self)] = communicator
        return communicator

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

    def explain(
        self, count: int, dtype: npt.DTypeLike = "float32", collective: str = "all_reduce", compression: str | None = None
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
        if self in _made:
            _made.remove(self)
        tell(close_each([self._native]))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<herringbone.Communicator rank {self.rank} of {self.size}>"


_made: list[Communicator] = []
"""What :func:`init` has made in this process and nobody has closed."""


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    store: str | None = None,
    options: Options | None = None,
    timeout: float | None = None,
) -> Communicator:
    """Join the job and return when all its ranks have.

    ``rank``, ``size`` and ``store`` are given together, or come from the environment: from ``HERRINGBONE_RANK``,
    ``HERRINGBONE_WORLD_SIZE`` and ``HERRINGBONE_STORE``, or from what torchrun, mpirun, srun or another launcher sets. Without
    any of these the job is this process alone, which is a warning.

    Args:
        rank: this process's rank, 0 to ``size - 1``.
        size: the number of ranks.
        store: ``"host:port"`` where rank 0 listens for the others to find each other.
        options: settings; see :class:`Options`.
        timeout: seconds for the joining and, by default, for each operation; 30 minutes if it is not given.

    Raises:
        ConfigError: a setting is missing, malformed or impossible.
        HerringboneError: the ranks did not come together.
    """
    options = Options() if options is None else options
    if not isinstance(options, Options):
        raise TypeError(f"init: options is a {type(options).__name__}; pass herringbone.Options(...)")
    if timeout is not None:
        check_seconds("init", timeout)
        if not (timeout > 0 and math.isfinite(timeout)):
            raise ValueError(f"init: timeout is a positive number of seconds, not {timeout}")
    native = _herringbone.Communicator.connect(
        rank=rank,
        size=size,
        store=store,
        token=options.token,
        reducers=options.reducers,
        algorithm=options.algorithm,
        transport=options.transport,
        fold_order=options.fold_order,
        timeout=timeout,
    )
    communicator = Communicator(native)
    _made.append(communicator)
    return communicator


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike = "float32", communicator: Communicator | None = None) -> Array:
    """A zeroed array that all ranks of this host map; see :meth:`Communicator.empty`.

    Args:
        communicator: whose ranks; of those that :func:`init` has made and nobody has closed, the last if it is not given.

    Raises:
        ClosedError: there is none.
    """
    if communicator is None:
        if not _made:
            raise ClosedError("empty: this process has no communicator; call herringbone.init() first, or pass one")
        communicator = _made[-1]
    return communicator.empty(shape, dtype)


def finalize() -> None:
    """Close every communicator that :func:`init` has made. The end of the process does it, too.

    Raises:
        MismatchError: as of :meth:`Communicator.close`, once all are closed. At the end of the process it is only printed.
    """
    tell(_close_made())


def _close_made() -> list[Exception]:
    made = [communicator._native for communicator in reversed(_made)]
    _made.clear()
    return close_each(made)


at_exit(_close_made)
os.register_at_fork(after_in_child=_made.clear)
