"""The process group and the per-device backend, and how torch creates them."""

from __future__ import annotations

import functools
import inspect
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._distributed_c10d import Store

from .. import errors
from .._herringbone import write_torch_records
from ..arguments import check_explained
from ..closing import close_each, tell
from ..names import Codec, Collective
from ..options import Options
from .calls import hidden, observed
from .collectives import Collectives
from .dispatched import DISPATCHES, Dispatched, mend_shared_groups, note_work, refuse_modes
from .forming import Place, connect_through, forget_world, join, not_formed_yet, own_host, renew
from .member import Member, Unformed
from .memory import tensor_in
from .mixing import foreign_devices
from .monitored import monitored_barrier
from .reconfiguring import get_handle, reconfigure, renumber
from .saving import mend_async_saves
from .tensors import Reduction, folding, seconds_of, timeout_of
from .work import Finished, Work, torch_error

__all__ = ["BackendHerringbone", "ProcessGroupHerringbone", "create"]

NAME = "herringbone"
CPU = torch.device("cpu")
DEVICES = (CPU, torch.device("cuda"))
"""The devices whose tensors a group takes."""


@hidden
class Named:
    """The properties and methods that torch uses on every group and backend."""

    member: Member

    title: str
    """The prefix of the profiler's events: the backend's name with which the program made the group."""

    @property
    def store(self) -> Store:
        """The store through which the group's ranks have met: the part for this life of the group."""
        return self.member.store

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False, *, opts: Any = None) -> None:
        """A barrier whose error on rank 0 names the missing ranks; see :func:`monitored_barrier`.

        torch passes the timeout to a group, but options with it to a backend.
        """
        given = timeout if opts is None else opts
        if given is None or isinstance(given, dist.BarrierOptions):
            given = timedelta(seconds=timeout_of(given, None, self.member.seconds))
        monitored_barrier(self.member, self.store, given, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of operations that start later."""
        self.member.seconds = seconds_of("set_timeout", timeout)

    _set_default_timeout = set_timeout

    def getSequenceNumberForGroup(self) -> int:
        """How many calls the group has had in this process."""
        return self.member.calls

    def setSequenceNumberForGroup(self) -> None:
        """Do nothing: every group counts from its creation."""

    def enableCollectivesTiming(self) -> None:
        """Let the works of later calls measure their time."""
        self.member.timed = True

    # The names in Python; torch's C++ code looks for those above.
    _get_sequence_number_for_group = getSequenceNumberForGroup
    _set_sequence_number_for_group = setSequenceNumberForGroup
    _enable_collectives_timing = enableCollectivesTiming

    def getBackendName(self) -> str:
        """The name under which torch knows the backend."""
        return NAME

    def name(self) -> str:
        """The name under which torch knows the backend."""
        return NAME

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it joined, over all groups: operations, bytes moved, seconds waited."""
        return self.member.communicator.stats()

    def recent(self) -> list[dict[str, Any]]:
        """The last 1,024 operations of this process, as :meth:`herringbone.Communicator.recent` describes them."""
        return self.member.communicator.recent()

    @property
    def address(self) -> str | None:
        """The address ``"host:port"`` at which this process listens, for ``herringbone status``."""
        return self.member.communicator.address

    def describe(self) -> str:
        """This process's membership in one line: ranks, reducers, forced settings, the timeout."""
        return self.member.communicator.describe()

    def explain(
        self,
        count: int,
        dtype: torch.dtype = torch.float32,
        collective: Collective = "all_reduce",
        compression: Codec | None = None,
    ) -> str:
        """The algorithm that a collective uses, and why.

        For collectives that fold, the answer is for a sum. Averages of integers have wider partial sums and can use another
        algorithm.

        Args:
            count: elements per rank, in the smaller buffer if input and output differ.
            dtype: their type, one that can be folded.
            collective: its name, as in :class:`herringbone.Communicator`.
            compression: a codec's name, or ``"auto"``.

        Raises:
            ValueError: no collective or codec has this name.
            UnsupportedError: elements of the type cannot be folded, or the call cannot be compressed.
            TypeError: an argument is not of its type, such as a tensor instead of the count.
        """
        count = check_explained(count, collective, compression)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"explain: dtype is a {type(dtype).__name__}, not one of torch's, like torch.float32")
        kind = folding(torch.empty(0, dtype=dtype, device="cpu"), Reduction("sum")).dtype
        why = self.member.communicator.explain(collective, kind, count, compression)
        return "\n".join([why, *(f"tensors of a device: {said}" for said in self.member.on_hosts())])

    def supports_tensor_alloc(self, device: object) -> bool:
        """Whether :meth:`allocate_tensor` can make tensors on ``device``.

        FSDP asks this after ``set_allocate_memory_from_process_group_for_comm``. torch's C++ code asks with a number. The
        answer to it is no, because it would then call a method whose options have no form in Python.
        """
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A zeroed tensor of ``size`` elements in mapped memory; see :func:`herringbone.torch.empty`."""
        return tensor_in(self.member, size, dtype)

    # Re-forming the group. Rank and size in torch's C++ classes are from the group's creation.

    def getRank(self) -> int:
        """This process's rank in the group."""
        return self.member.communicator.rank

    def getSize(self) -> int:
        """How many ranks the group has."""
        return self.member.communicator.size

    rank, size = getRank, getSize

    def get_reconfigure_handle(self) -> str:
        """The handle that other processes need to re-form the group with this process. It changes with every formation.

        Any process that has it can take part in the next formation, so treat it like a password.
        """
        return get_handle(self.member, functools.partial(own_host, self.member))

    def reconfigure(self, opts: Any) -> Finished:
        """Re-form the group from the processes whose handles are in ``opts``; a list is in the order of ranks.

        It returns once all have come. Running operations fail with ``ClosedError``.

        Raises:
            ArgumentError: the handles are invalid, or lack this process's; the group is unchanged.
            PeerLostError: a member has died; ``ranks`` are its ranks in the new group.
            RendezvousError: members have not come within the timeout; ``ranks`` are their ranks in the new group.
            MismatchError: the members passed different handles.
        """
        options = self.member.options
        work = reconfigure(self.member, opts, functools.partial(connect_through, options))
        renew(self.member, options)
        return work

    def place_of(self, ranks: list[int], name: str, timeout: timedelta | None) -> Place:
        """The place of this process in a subgroup of these ``ranks``."""
        return Place(
            store=self.store,
            group_rank=ranks.index(self.member.communicator.rank),
            group_size=len(ranks),
            timeout=timeout or timedelta(seconds=self.member.seconds),
            group_id=name,
            # A group that was re-formed has its own ranks.
            global_ranks_in_group=[self.member.ranks[part] for part in ranks],
        )

    def shutdown(self) -> None:
        """Leave the group once the others have all data that they need from this rank.

        In both of the following cases this rank has left the group all the same. While another exception is being handled, the
        error is only printed.

        Raises:
            MismatchError: the ranks disagree about the last calls of the group.
            PeerLostError: a rank has left the group without making one of its last calls.
        """
        forget_world(self.member)
        tell(close_each([self.member]))

    def abort(self) -> None:
        """Leave the group at once: running operations fail with ``ClosedError``, on the other ranks with ``PeerLostError``."""
        forget_world(self.member)
        self.member.abort()


@hidden
@observed(note=note_work)
class BackendHerringbone(Named, Collectives, C10DBackend):
    """Herringbone for one device type of a group with several backends (``cpu:herringbone,cuda:nccl``).

    torch wraps the works that these methods return: ``wait``, ``get_future`` and ``is_completed`` are available. The plain
    backend name makes a :class:`ProcessGroupHerringbone`.
    """

    # torch would call itself without end for each of these that a subclass does not define.
    supports_splitting = property(lambda self: True)
    supports_coalescing = property(lambda self: True)
    supports_shrinking = property(lambda self: False)
    # A group with several backends cannot do this: torch forwards the call to only one of them.
    supports_reconfigure = property(lambda self: self._alone)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    # As in every backend in C++; ``describe`` shows how the group was made.
    options = property(lambda self: self._options)

    def getBackendOptions(self) -> object:
        """The same, for torch's C++ code."""
        return self._options

    def __init__(self, member: Member, title: str, alone: bool = False) -> None:
        """``alone``: the group has no other backend than this, so it can be re-formed."""
        C10DBackend.__init__(self, member.communicator.rank, member.communicator.size)
        self.member, self.title, self._alone = member, title, alone
        self._options = C10DBackend.Options(NAME, timedelta(seconds=member.seconds))

    def end_coalescing(self, device: object = None) -> Work:
        """One work for all calls since :meth:`start_coalescing`."""
        work = super().end_coalescing(device)
        note_work(work)
        return work

    def split(self, store: Store, ranks: list[int], opts: Any) -> BackendHerringbone:
        """The backend of a subgroup of these ``ranks``; torch asks for it if a group has several backends.

        Other ranks get one that can do nothing, because torch does not accept ``None`` from Python.
        """
        limit = timedelta(seconds=timeout_of(None, getattr(opts, "_timeout", None), self.member.seconds))
        if self.member.communicator.rank not in ranks:
            outside = Member(Unformed(0, 1, "this process is not in the group"), limit, store)
            outside.close()
            return BackendHerringbone(outside, self.title)
        name = getattr(opts, "group_name", "") or f"split:{'_'.join(map(str, ranks))}"
        place = self.place_of(ranks, name, limit)
        try:
            member = join(place, None, self.member if self.member.apart else None)
        except errors.HerringboneError as error:
            raise torch_error(error) from None
        return BackendHerringbone(member, self.title)


@hidden
@observed(refuse=refuse_modes)
class Undispatched(Collectives):
    """The calls of a group for torch before 2.14, which calls them directly, because it calls no backend in Python."""


Called: Any = Dispatched if DISPATCHES else Undispatched


@hidden
class ProcessGroupHerringbone(Named, Called, dist.ProcessGroup):  # type: ignore[misc]  # torch has overloads
    """The group that ``init_process_group("herringbone")`` and ``new_group`` make."""

    supports_reconfigure = property(lambda self: True)

    def __init__(self, member: Member, title: str) -> None:
        place = member.communicator.rank, member.communicator.size
        try:
            dist.ProcessGroup.__init__(self, member.store, *place)
        except TypeError:
            # torch before 2.14 makes only groups of its own class with a store.
            dist.ProcessGroup.__init__(self, *place)
        self.member, self.title = member, title
        self._group_name = ""
        self._group_desc = ""
        self._backend = self._register()
        if self._backend is not None:
            self._leave_to_torch("getRank", "rank")
            self._leave_to_torch("getGroupName", "group_name")
            self._leave_to_torch("getGroupDesc", "group_desc")

    def _register(self) -> BackendHerringbone | None:
        """Show torch a backend for :data:`DEVICES`, where this version lets Python define one (2.14 and later)."""
        if not DISPATCHES:
            return None
        backend = BackendHerringbone(self.member, self.title, alone=True)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        for device in DEVICES:
            self._register_backend(device, kind, backend)
        return backend

    def _leave_to_torch(self, method: str, question: str) -> None:
        """Let torch's C++ code answer ``question`` itself instead of calling our ``method``; programs still call ours.

        Its flight recorder asks while it holds a lock. There a method in Python can lose the GIL to a thread that waits for
        this lock with the GIL, and both wait forever. pybind11 looks for a method once in each class, and treats a function of
        C as no method.
        """
        self.__dict__[method] = abs
        try:
            answer = inspect.getattr_static(dist.ProcessGroup, question)
            answer.__get__(self) if isinstance(answer, property) else answer(self)
        finally:
            del self.__dict__[method]

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes; torch asks before it saves a checkpoint in the background."""
        mend_async_saves()
        known: list[torch.device] = super()._device_types
        return known or list(DEVICES)

    def _get_backend(self, device: torch.device) -> Any:
        """What serves a device's tensors: the group itself, where this version of torch lets Python define no backend."""
        if self._backend is None and torch.device(device).type in [known.type for known in DEVICES]:
            return self
        return super()._get_backend(device)

    def reconfigure(self, opts: Any) -> Finished:
        work = super().reconfigure(opts)
        renumber(self)
        self._describe()
        return work

    def get_group_store(self) -> Store:
        """The store through which the group's ranks have met."""
        return self.store

    def split_group(
        self,
        ranks: list[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> ProcessGroupHerringbone | None:
        """The subgroup of these ``ranks``, in their order; ``None`` on other ranks."""
        rank = self.member.communicator.rank
        if rank not in ranks:
            return None
        name = group_name or f"{self._group_name}:split:{'_'.join(map(str, ranks))}"
        place = self.place_of(ranks, name, timeout)
        group = create(place, opts, self.title, self.member if self.member.apart else None)
        assert isinstance(group, ProcessGroupHerringbone)
        group.setGroupName(name)
        group.setGroupDesc(group_desc or f"{self._group_desc}:split")
        return group

    def getGroupName(self) -> str:
        """torch's name for this group."""
        return self._group_name

    def setGroupName(self, name: Any) -> None:
        """Remember torch's name for this group."""
        if self._backend is not None:
            super()._set_group_name(name)
        self._group_name = name
        self._describe()

    def getGroupDesc(self) -> str:
        """The description given to ``new_group``."""
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        """Remember the description given to ``new_group``."""
        if self._backend is not None:
            super()._set_group_desc(desc)
        self._group_desc = desc
        self._describe()

    def _describe(self) -> None:
        """Let flight records use the program's name for the group."""
        self.member.communicator.describe_as(self._group_name, self._group_desc)


def create(
    opts: Any, options: Any, title: str = NAME, parent: Member | None = None
) -> ProcessGroupHerringbone | BackendHerringbone:
    """Make the group that torch requests: the default group, or a subgroup that this process is a member of.

    ``title`` is the backend's name in the program's call. A subgroup belongs to ``parent``, or to the default group.

    Raises:
        HerringboneError: the ranks did not come together.
        TypeError: ``pg_options`` is neither :class:`herringbone.Options` nor one of torch's.
    """
    write_torch_records()
    mixed = shares_group(opts)
    seconds_of("new_group" if opts.global_ranks_in_group else "init_process_group", opts.timeout)
    if not isinstance(options, Options):
        # Options of torch's own backends have nothing for this one.
        if options is not None and not mixed and not isinstance(options, C10DBackend.Options):
            raise TypeError(f"pg_options has to be a herringbone.Options, not {type(options).__name__}")
        options = None
    try:
        if getattr(opts, "enable_reconfigure", False) and not mixed:
            member = not_formed_yet(opts, options)
        else:
            member = join(opts, options, parent)
    except errors.HerringboneError as error:
        raise torch_error(error) from None
    member.foreign = foreign_devices()
    if not mixed:
        return ProcessGroupHerringbone(member, title)
    mend_shared_groups()
    return BackendHerringbone(member, title)


def shares_group(opts: Any) -> bool:
    """Whether the group under construction has other backends for other devices.

    torch does not tell directly. In this case it has chosen another device's backend as the default, or registered one before.
    """
    group = getattr(opts, "process_group", None)
    return group is not None and (bool(group._device_types) or group._get_backend_name() != "custom")
