"""Collectives and messages on numpy arrays, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _herringbone
from ._herringbone import Extras, Kind
from .arguments import check_explained, check_seconds, level, message_tag, text, whole
from .arrays import fold_type, mapped_array, move_type, new_array, readable, row, same_size, writable, wrong_op
from .closing import close_each, tell
from .compression import LOAD, Residuals, compressed
from .errors import ConfigError
from .kinds import BARRIER, kind_of
from .work import Work

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np
    import numpy.typing as npt

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Communicator", "before_close", "made"]

made: list[Communicator] = []
"""Those that :func:`init` has made in this process and nobody has closed."""
before_close: list[Callable[[Communicator], object]] = []
"""What is called with a communicator that is about to be closed; none of these raises."""


class Communicator:
    """This process's membership in a group of ranks; :func:`init` makes the first one.

    All ranks of the group call the same collectives in the same order. The results of ``all_reduce``, ``reduce``
    and ``reduce_scatter`` have the same bits whatever the algorithm, transport, number of reducers and timing.
    Every collective takes ``async_op=True`` to return a :class:`Work` at once (the arrays may not be touched until
    it has finished), and ``timeout`` in seconds. Those that move data take ``priority``, the same on all ranks: above 0
    an operation is urgent, so it overtakes ordinary ones that were started before it, and among messages that wait for
    a socket the higher priority goes first. If a rank has no memory for a result that a call makes, the call fails on all ranks
    with ``OutOfMemoryError``, on that one also a ``MemoryError``. A communicator is a context manager that closes itself.
    """

    def __init__(self, native: _herringbone.Communicator) -> None:
        """For :func:`init` and :meth:`subgroup`."""
        self._native = native

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        return self._native.rank

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return self._native.size

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
            out = new_array("reduce_scatter", (array.shape[0] // self.size, *array.shape[1:]), array.dtype)
        same_size("reduce_scatter", array, out, array.size // self.size)
        return self._run(kind, out.size, 0, array, out, async_op, timeout, priority)

    def all_gather(
        self,
        array: Array,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give every rank the arrays of all ranks, one after the other along the first axis; any type.

        Args:
            array: shape ``(n, ...)``, the same on every rank; a scalar counts as ``(1,)``.
            out: shape ``(size * n, ...)``; made if it is not given.
            counts: for arrays that differ in the first length: that of each rank's.

        Raises:
            MismatchError: a rank's array has another length than another rank's ``counts`` say; on all ranks.
        """
        return self._gathered("all_gather", array, None, out, counts, async_op, timeout, priority)

    def gather(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give ``root`` the arrays of all ranks, one after the other along the first axis; any type.

        Args:
            array: shape ``(n, ...)``, the same on every rank; a scalar counts as ``(1,)``.
            root: the rank that gets the result.
            out: on ``root``, shape ``(size * n, ...)``; made if it is not given. The other ranks have none.
            counts: for arrays that differ in the first length: on ``root`` the first length of each rank's, on the
                others an empty sequence.

        Returns:
            The result array, or a :class:`Work`; on the other ranks ``None``, or a work without a result.
        """
        return self._gathered("gather", array, self._root("gather", root), out, counts, async_op, timeout, priority)

    def scatter(
        self,
        array: Array | None,
        root: int = 0,
        *,
        out: Array | None = None,
        counts: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Give rank ``i`` the ``i``-th of ``size`` equal parts of ``root``'s array; any type.

        Args:
            array: on ``root``, shape ``(size * n, ...)``; ``None`` on the other ranks.
            root: the rank whose array it is.
            out: shape ``(n, ...)``. The other ranks need one; ``root``'s is made if it is not given.
            counts: for parts that differ in the first length: on ``root`` the first length of each rank's, on the
                others an empty sequence.
        """
        root = self._root("scatter", root)
        is_root = root == self.rank
        if is_root and array is None:
            raise ValueError(f"scatter on rank {root}: the root has to pass an array with a part for each rank")
        if not is_root and (array is not None or out is None):
            raise ValueError(f"scatter on rank {self.rank}: only rank {root} has an array; pass out= and no array")
        given: list[int] | None = None
        if array is not None:
            given = self._lengths("scatter", array, counts)
            own = array.shape[0] // self.size if given is None else given[self.rank]
            if out is None:
                out = new_array("scatter", (own, *array.shape[1:]), array.dtype)
            same_size("scatter", array, out, own * row(array))
        elif counts is not None:
            given = []
        assert out is not None
        dtype, scale = move_type("scatter", out)
        extras = None
        if given is not None:
            rows = scale * (row(array) if array is not None else 1)
            extras = Extras(parts=([length * rows for length in given], [out.size * scale]))
        count = out.size * scale
        return self._run(kind_of("scatter", dtype), count, root, array, out, async_op, timeout, priority, extras)

    def all_to_all(
        self,
        array: Array,
        *,
        out: Array | None = None,
        sends: Sequence[int] | None = None,
        receives: Sequence[int] | None = None,
        async_op: bool = False,
        timeout: float | None = None,
        priority: int = 0,
    ) -> Any:
        """Send rank ``i`` the ``i``-th part of ``array`` and receive the ``i``-th part of the result from it; any type.

        Args:
            array: shape ``(size * n, ...)``, the same on every rank.
            out: shape ``(size * n, ...)``; made if it is not given. It may be ``array``.
            sends: for parts that differ in the first length: that of the part for each rank.
            receives: that of the part from each rank. Both are given on all ranks, or neither.

        Raises:
            MismatchError: a rank sends another length than its receiver expects; on all ranks.
        """
        if (sends is None) != (receives is None):
            raise ValueError(f"all_to_all on rank {self.rank}: pass both sends and receives, or neither")
        dtype, scale = move_type("all_to_all", array)
        given = self._lengths("all_to_all", array, sends)
        extras, rows = None, row(array)
        taken = None if receives is None else self._counts("all_to_all", "receives", receives)
        total = array.shape[0] if taken is None else sum(taken)
        if out is None:
            out = new_array("all_to_all", (total, *array.shape[1:]), array.dtype)
        same_size("all_to_all", array, out, total * rows)
        if given is not None and taken is not None:
            sent, received = ([length * rows * scale for length in side] for side in (given, taken))
            extras = Extras(parts=(sent, received))
        count = array.size // self.size * scale
        return self._run(kind_of("all_to_all", dtype), count, 0, array, out, async_op, timeout, priority, extras)

    def send(self, array: Array, to: int, tag: int = 0, *, async_op: bool = False, timeout: float | None = None) -> Any:
        """Send ``array`` to rank ``to``, which receives it by :meth:`recv` with the same tag; any type.

        Returns once the receiver has it, or has a place for it and it has left.
        At most 16,384 messages to a rank can be announced to it and unanswered; further ones wait here for their turn.

        Args:
            array: any shape; the receiver's has as many elements of the same type.
            to: a rank of the group. It may be this one, with ``async_op``.
            tag: a whole number of 64 bits, by which the receiver tells messages apart.
            async_op: return a :class:`Work` at once; the array may not be changed until it has finished.
            timeout: seconds that it may take.

        Raises:
            MismatchError: the receiver's array has another length or type; on both ranks.
        """
        dtype, scale = move_type("send", array)
        to, tag = self._root("send", to, "to"), message_tag("send", tag)
        source = readable("send", array)
        check_seconds("send", timeout)
        handle = self._native.send(to, (dtype, array.size * scale, tag, source, array, timeout))
        work = Work("send", handle, array)
        if async_op:
            return work
        work.wait()
        return None

    def recv(
        self,
        array: Array,
        source: int | None = None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """Receive into ``array`` what rank ``source`` sends with this tag, or any rank if it is ``None``.

        Receives of one tag are served in the order of their calls, and messages of one sender and tag in the order in
        which they were sent.

        Returns:
            The rank that has sent it, or a :class:`Work`, whose ``source`` tells.

        Raises:
            MismatchError: the sender's array has another length or type; on both ranks.
        """
        dtype, scale = move_type("recv", array)
        of = None if source is None else self._root("recv", source, "source")
        tag = message_tag("recv", tag)
        target = writable("recv", array)
        check_seconds("recv", timeout)
        handle = self._native.receive(of, (dtype, array.size * scale, tag, target, array, timeout))
        work = Work("recv", handle, array)
        if async_op:
            return work
        work.wait()
        return work.source

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
        for call in before_close:
            call(self)
        if self in made:
            made.remove(self)
        tell(close_each([self._native]))

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<herringbone.Communicator rank {self.rank} of {self.size}>"

    def _gathered(
        self,
        name: str,
        array: Array,
        root: int | None,
        out: Array | None,
        counts: Sequence[int] | None,
        async_op: bool,
        timeout: float | None,
        priority: int,
    ) -> Any:
        """Gather ``array`` to ``root``, or to all."""
        dtype, scale = move_type(name, array)
        shape, rows = array.shape or (1,), row(array)
        takes = root in (None, self.rank)
        taken = self._counts(name, "counts", counts, self.size if takes else 0) if counts is not None else None
        total = shape[0] * self.size if taken is None else sum(taken)
        if not takes and out is not None:
            raise ValueError(f"{name} on rank {self.rank}: only rank {root} has a result; pass out= there only")
        if takes and out is None:
            out = new_array(name, (total, *shape[1:]), array.dtype)
        if out is not None:
            same_size(name, array, out, total * rows)
        extras = None
        if taken is not None:
            extras = Extras(parts=([array.size * scale], [length * rows * scale for length in taken]))
        count = array.size * scale
        return self._run(kind_of(name, dtype), count, root or 0, array, out, async_op, timeout, priority, extras)

    def _lengths(self, name: str, array: Array, counts: Sequence[int] | None) -> list[int] | None:
        """The first lengths of the parts of ``array`` where they are given; refuses what does not make it up."""
        if array.ndim == 0 or (counts is None and array.shape[0] % self.size):
            raise ValueError(f"{name}: the first length of {array.shape} has to be a multiple of the {self.size} ranks")
        if counts is None:
            return None
        lengths = self._counts(name, "the parts", counts)
        if sum(lengths) != array.shape[0]:
            raise ValueError(f"{name}: parts of {lengths} do not make up the first of {array.shape}")
        return lengths

    def _counts(self, name: str, role: str, counts: Sequence[int], number: int | None = None) -> list[int]:
        """One length for each rank."""
        if not isinstance(counts, Iterable):
            raise TypeError(f"{name}: {role} are a {type(counts).__name__}, not a length for each rank")
        lengths = [whole(name, f"one of {role}", length, "a length") for length in counts]
        number = self.size if number is None else number
        if len(lengths) != number or any(length < 0 for length in lengths):
            raise ValueError(f"{name} on rank {self.rank}: {role} are {lengths}; pass {number} lengths of 0 or more")
        return lengths

    def _root(self, name: str, root: int, role: str = "root") -> int:
        root = whole(name, role, root, "a rank")
        if not 0 <= root < self.size:
            raise ValueError(f"{name} on rank {self.rank}: {role} {root} is not a rank of this group of {self.size}")
        return root

    def _folding(self, name: str, array: Array, op: str) -> Kind:
        """The kind of a call that folds ``array``."""
        dtype = fold_type(name, array, op)
        try:
            return kind_of(name, dtype, op)
        except (TypeError, ValueError):
            raise wrong_op(f"{name} on rank {self.rank}", op) from None

    def _run(
        self,
        kind: Kind,
        count: int,
        root: int,
        array: Array | None,
        out: Array | None,
        async_op: bool,
        timeout: float | None,
        priority: int,
        extras: Extras | None = None,
    ) -> Any:
        name = kind.collective
        check_seconds(name, timeout)
        if type(priority) is not int or priority != 0:
            priority = level(name, "priority", priority)
        target = writable(name, out)
        source = target if array is out else readable(name, array)
        call = (kind, count, root, source, target, (array, out), timeout, priority, extras)
        if async_op:
            return Work(name, self._native.submit(call), out)
        self._native.run(call)
        return out

    def _followed_by(self, native: _herringbone.Communicator) -> Communicator:
        """The communicator that takes this one's place."""
        communicator = Communicator(native)
        if self in made:
            made[made.index(self)] = communicator
        return communicator
