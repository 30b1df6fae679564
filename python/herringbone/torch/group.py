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
    """What torch asks every group and backend."""

    member: Member

    title: str
    """What the profiler's events begin with: the name under which the program asked for the group."""

    @property
    def store(self) -> Store:
        """Through which the group's ranks have met: the part that belongs to this life of the group."""
        return self.member.store

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False, *, opts: Any = None) -> None:
        """A barrier whose error on rank 0 names the ranks that have not come; see :func:`monitored_barrier`.

        torch gives a group the timeout, and a backend options that have it.
        """
        given = timeout if opts is None else opts
        if given is None or isinstance(given, dist.BarrierOptions):
            given = timedelta(seconds=timeout_of(given, None, self.member.seconds))
        monitored_barrier(self.member, self.store, given, wait_all_ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let operations started from now on take at most ``timeout``."""
        self.member.seconds = seconds_of("set_timeout", timeout)

    _set_default_timeout = set_timeout

    def getSequenceNumberForGroup(self) -> int:
        """How many calls the group has had in this process."""
        return self.member.calls

    def setSequenceNumberForGroup(self) -> None:
        """Every group counts from its creation; there is nothing to agree on."""

    def enableCollectivesTiming(self) -> None:
        """Let the works of later calls measure how long they take."""
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
        """Where this process listens, as ``"host:port"``: what ``herringbone status`` asks."""
        return self.member.communicator.address

    def describe(self) -> str:
        """How this process takes part, in a line: ranks, reducers, what is forced, the timeout."""
        return self.member.communicator.describe()

    def explain(
        self,
        count: int,
        dtype: torch.dtype = torch.float32,
        collective: Collective = "all_reduce",
        compression: Codec | None = None,
    ) -> str:
        """The algorithm that a collective takes, and why.

        What folds, for a sum: averages of integers, whose partial sums are wider, may take another.

        Args:
            count: elements per rank, of the smaller buffer where they differ.
            dtype: their type, one that can be folded.
            collective: its name, as :class:`herringbone.Communicator` has it.
            compression: a codec's name, or ``"auto"``.

        Raises:
            ValueError: no collective or codec is called that.
            UnsupportedError: elements of the type cannot be folded, or the call cannot be compressed.
            TypeError: something else, like a tensor, stands where the number, the type or the name belongs.
        """
        count = check_explained(count, collective, compression)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"explain: dtype is a {type(dtype).__name__}, not one of torch's, like torch.float32")
        kind = folding(torch.empty(0, dtype=dtype), Reduction("sum")).dtype
        return self.member.communicator.explain(collective, kind, count, compression)

    def supports_tensor_alloc(self, device: object) -> bool:
        """Whether :meth:`allocate_tensor` can make tensors on ``device``.

        FSDP asks, after ``set_allocate_memory_from_process_group_for_comm``. torch's C++ code asks with a number: what
        it would call then takes options that have no form in Python, so the answer is no.
        """
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A zeroed tensor of ``size`` elements in mapped memory; see :func:`herringbone.torch.empty`."""
        return tensor_in(self.member, size, dtype)

    # Forming the group anew. What torch's C++ classes say of rank and size is from the group's creation.

    def getRank(self) -> int:
        """This process's rank in the group."""
        return self.member.communicator.rank

    def getSize(self) -> int:
        """How many ranks the group has."""
        return self.member.communicator.size

    rank, size = getRank, getSize

    def get_reconfigure_handle(self) -> str:
        """What other processes need to form the group anew with this process. It changes with every formation.

        Whoever has it can take part in the next formation: hand it on as you would a password.
        """
        return get_handle(self.member, functools.partial(own_host, self.member))

    def reconfigure(self, opts: Any) -> Finished:
        """Form the group anew of the processes whose handles ``opts`` has: a list has them by rank.

        It returns once all have come. What was running fails with ``ClosedError``.

        Raises:
            ArgumentError: the handles are none, or this process's is not among them; the group is as before.
            PeerLostError: a member has died; ``ranks`` are the new group's, as in the next.
            RendezvousError: members have not come within the timeout.
            MismatchError: the members passed different handles.
        """
        options = self.member.options
        work = reconfigure(self.member, opts, functools.partial(connect_through, options))
        renew(self.member, options)
        return work

    def place_of(self, ranks: list[int], name: str, timeout: timedelta | None) -> Place:
        """The place of this process in a group of those ``ranks`` of this group."""
        return Place(
            store=self.store,
            group_rank=ranks.index(self.member.communicator.rank),
            group_size=len(ranks),
            timeout=timeout or timedelta(seconds=self.member.seconds),
            group_id=name,
            # Of a group that was formed anew they are its own.
            global_ranks_in_group=[self.member.ranks[part] for part in ranks],
        )

    def shutdown(self) -> None:
        """Leave the group once the others hold what they need from this rank.

        Raises:
            MismatchError: the ranks disagree about the last calls of the group. It is left all the same. While another
                exception is under way this is only printed.
            PeerLostError: a rank has left the group without one of its last calls; as before.
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

    torch wraps what these methods return: ``wait``, ``get_future`` and ``is_completed`` work. The plain backend name
    gives a :class:`ProcessGroupHerringbone`.
    """

    # torch asks for each of these without end where a subclass does not define it.
    supports_splitting = property(lambda self: True)
    supports_coalescing = property(lambda self: True)
    supports_shrinking = property(lambda self: False)
    # A group with several backends cannot: torch forwards to one of them alone.
    supports_reconfigure = property(lambda self: self._alone)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    # As of every backend in C++; how the group was made is what its ``describe`` says.
    options = property(lambda self: self._options)

    def getBackendOptions(self) -> object:
        """The same, for torch's C++ code."""
        return self._options

    def __init__(self, member: Member, title: str, alone: bool = False) -> None:
        """``alone``: the group that this is the backend of has no other one, so it can be formed anew."""
        C10DBackend.__init__(self, member.communicator.rank, member.communicator.size)
        self.member, self.title, self._alone = member, title, alone
        self._options = C10DBackend.Options(NAME, timedelta(seconds=member.seconds))

    def end_coalescing(self, device: object = None) -> Work:
        """One work for all calls since :meth:`start_coalescing`."""
        work = super().end_coalescing(device)
        note_work(work)
        return work

    def split(self, store: Store, ranks: list[int], opts: Any) -> BackendHerringbone:
        """The backend of a group of those ``ranks`` of this group, as torch asks where a group has several backends.

        A rank that is not among them gets one that can do nothing, because torch takes no ``None`` from Python.
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
    """The calls of a group where torch before 2.14, which calls no backend in Python, calls them directly."""


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
            # torch before 2.14 makes a group with a store only of its own class.
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
        """Let torch's C++ code answer ``question`` itself, where it would call our ``method``; programs still call ours.

        Its flight recorder asks while it holds a lock. A method in Python can lose the GIL there to a thread that waits for
        this lock with the GIL, and both wait for ever. pybind11 looks for a method once in each class, and a function of C
        stands for none.
        """
        self.__dict__[method] = abs
        try:
            answer = inspect.getattr_static(dist.ProcessGroup, question)
            answer.__get__(self) if isinstance(answer, property) else answer(self)
        finally:
            del self.__dict__[method]

    @property
    def _device_types(self) -> list[torch.device]:
        """The devices whose tensors the group takes, as torch asks before it saves a checkpoint behind the training."""
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
        """Through which the group's ranks have met."""
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
        """The group of those ``ranks`` of this group, in their order; ``None`` on a rank that is not among them."""
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
        """torch's name of this group."""
        return self._group_name

    def setGroupName(self, name: Any) -> None:
        """Remember torch's name of this group."""
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
        """Have flight records name the group as the program does."""
        self.member.communicator.describe_as(self._group_name, self._group_desc)


def create(
    opts: Any, options: Any, title: str = NAME, parent: Member | None = None
) -> ProcessGroupHerringbone | BackendHerringbone:
    """Make what torch asks for: the default group, or a subgroup that this process is a member of.

    ``title`` is the name under which the program asks for it. A subgroup is one of ``parent``, or of the default group.

    Raises:
        HerringboneError: the ranks did not come together.
        TypeError: ``pg_options`` is something else than :class:`herringbone.Options` or one of torch's.
    """
    write_torch_records()
    mixed = shares_group(opts)
    seconds_of("new_group" if opts.global_ranks_in_group else "init_process_group", opts.timeout)
    if not isinstance(options, Options):
        # Those of torch's own backends say nothing that concerns this one.
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

    torch does not say. It has then chosen another device's backend as the default, or registered one before.
    """
    group = getattr(opts, "process_group", None)
    return group is not None and (bool(group._device_types) or group._get_backend_name() != "custom")
