"""The process group and the per-device backend, and how torch creates them."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10DBackend
from torch._C._distributed_c10d import PrefixStore, Store

from .. import errors
from .._herringbone import Communicator
from ..arguments import check_explained
from ..options import Options
from .calls import hidden, observed
from .exchanges import Exchanges
from .member import Member
from .memory import tensor_in
from .tensors import fold_type
from .work import torch_error

__all__ = ["BackendHerringbone", "ProcessGroupHerringbone", "create"]

NAME = "herringbone"


@hidden
@observed
class Named(Exchanges):
    """What torch asks every group and backend."""

    title = NAME
    """What the profiler's events begin with: the name under which the program asked for the group."""

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

    def describe(self) -> str:
        """How this process takes part, in a line: ranks, reducers, what is forced, the timeout."""
        return self.member.communicator.describe()

    def explain(self, count: int, dtype: torch.dtype = torch.float32, collective: str = "all_reduce") -> str:
        """The algorithm that a collective takes, and why.

        What folds, for a sum: averages of integers, whose partial sums are wider, may take another.

        Args:
            count: elements per rank, of the smaller buffer where they differ.
            dtype: their type, one that can be folded.
            collective: its name, as :class:`herringbone.Communicator` has it.

        Raises:
            ValueError: no collective is called that.
            UnsupportedError: elements of the type cannot be folded.
            TypeError: something else, like a tensor, stands where the number, the type or the name belongs.
        """
        count = check_explained(count, collective)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"explain: dtype is a {type(dtype).__name__}, not one of torch's, like torch.float32")
        kind = fold_type(torch.empty(0, dtype=dtype), "sum")
        return self.member.communicator.explain(collective, kind, count)

    def shutdown(self) -> None:
        """Leave the group once the others hold what they need from this rank."""
        forget_world(self.member)
        self.member.close()

    def abort(self) -> None:
        """Leave the group at once: running operations fail with ``ClosedError``."""
        forget_world(self.member)
        self.member.abort()


@hidden
class BackendHerringbone(Named, C10DBackend):
    """Herringbone for one device type of a group with several backends (``cpu:herringbone,cuda:nccl``).

    torch wraps what these methods return, so ``is_completed`` is always false there; ``wait`` and
    ``get_future`` work. The plain backend name gives a :class:`ProcessGroupHerringbone`.
    """

    # torch asks for each of these without end where a subclass does not define it.
    supports_splitting = property(lambda self: False)
    supports_coalescing = property(lambda self: True)
    supports_shrinking = property(lambda self: False)
    supports_reconfigure = property(lambda self: False)
    supports_window = property(lambda self: False)
    _supports_time_estimate = property(lambda self: False)

    def supports_tensor_alloc(self, device: object) -> bool:
        """Whether :meth:`allocate_tensor` can make tensors on ``device``.

        FSDP asks, after ``set_allocate_memory_from_process_group_for_comm``. torch's C++ code asks with a number: what
        it would call then takes options that have no form in Python, so the answer is no.
        """
        return isinstance(device, torch.device) and device.type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A zeroed tensor of ``size`` elements in mapped memory; see :func:`herringbone.torch.empty`."""
        return tensor_in(self.member, size, dtype)

    def __init__(self, member: Member) -> None:
        C10DBackend.__init__(self, member.communicator.rank, member.communicator.size)
        self.member = member


@hidden
class ProcessGroupHerringbone(Named, dist.ProcessGroup):  # type: ignore[misc]  # torch has overloads
    """The group that ``init_process_group("herringbone")`` and ``new_group`` make."""

    def __init__(self, member: Member, store: Store) -> None:
        place = member.communicator.rank, member.communicator.size
        try:
            dist.ProcessGroup.__init__(self, store, *place)
        except TypeError:
            # torch before 2.14 makes a group with a store only of its own class.
            dist.ProcessGroup.__init__(self, *place)
        self.member = member
        self._group_name = ""
        self._group_desc = ""
        self._backend = self._register()

    def _register(self) -> BackendHerringbone | None:
        """Show torch a backend for the CPU, where this version lets Python define one (2.14 and later)."""
        try:
            backend = BackendHerringbone(self.member)
        except TypeError:
            return None
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, backend)
        return backend

    def getGroupName(self) -> str:
        """torch's name of this group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Remember torch's name of this group."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """The description given to ``new_group``."""
        return self._group_desc

    def setGroupDesc(self, desc: str) -> None:
        """Remember the description given to ``new_group``."""
        self._group_desc = desc


_world: Member | None = None
"""The default group, if it is Herringbone's."""

_names: Counter[str] = Counter()
"""How often each group name has been used under the present default group."""


def create(opts: Any, options: Any) -> ProcessGroupHerringbone | BackendHerringbone:
    """Make what torch asks for: the default group, or a subgroup that this process is a member of.

    Raises:
        HerringboneError: the ranks did not come together.
        TypeError: ``pg_options`` is something else than :class:`herringbone.Options`.
    """
    mixed = shares_group(opts)
    if not isinstance(options, Options):
        if options is not None and not mixed:
            raise TypeError(f"pg_options has to be a herringbone.Options, not {type(options).__name__}")
        options = None
    try:
        member = join(opts, options)
    except errors.HerringboneError as error:
        raise torch_error(error) from None
    return BackendHerringbone(member) if mixed else ProcessGroupHerringbone(member, opts.store)


def shares_group(opts: Any) -> bool:
    """Whether the group under construction has other backends for other devices.

    torch does not say. It has then chosen another device's backend as the default, or registered one before.
    """
    group = getattr(opts, "process_group", None)
    return group is not None and (bool(group._device_types) or group._get_backend_name() != "custom")


def join(opts: Any, options: Options | None) -> Member:
    """The membership for ``opts``: in the default group's fabric if that is ours, else in a new one."""
    global _world
    is_world = not opts.global_ranks_in_group
    if not is_world and _world is not None:
        if options is not None:
            raise ValueError("a subgroup has its default group's options; pass pg_options to init_process_group")
        if sorted(opts.global_ranks_in_group) != opts.global_ranks_in_group:
            raise errors.UnsupportedError(
                "new_group: herringbone's groups are in ascending order; leave sort_ranks true, or pass "
                'backend="gloo"'
            )
        _names[opts.group_id] += 1
        name = f"{opts.group_id}#{_names[opts.group_id]}"
        return Member(_world.communicator.subgroup(name, opts.global_ranks_in_group), opts.timeout, name)
    member = Member(connect(opts, options or Options()), opts.timeout)
    if is_world:
        _world = member
        _names.clear()
    return member


def forget_world(member: Member | None = None) -> None:
    """There is no default group any more, if it was ``member``'s (or whosever)."""
    global _world
    if member is None or member is _world:
        _world = None


os.register_at_fork(after_in_child=forget_world)


def connect(opts: Any, options: Options) -> Communicator:
    """Meet the other ranks through torch's store."""
    # A store outlives destroy_process_group: each life of the group has its own keys.
    life = (opts.store.add("herringbone/joined", 1) - 1) // opts.group_size
    store = PrefixStore(f"herringbone/{life}/", opts.store)
    return Communicator.connect(
        rank=opts.group_rank,
        size=opts.group_size,
        store=store,
        store_host=host_of(store),
        token=options.token,
        reducers=options.reducers,
        algorithm=options.algorithm,
        transport=options.transport,
        fold_order=options.fold_order,
        timeout=opts.timeout.total_seconds(),
    )


def host_of(store: Store) -> str | None:
    """The host that ``store``'s connection leads to; ``None`` for a store of this machine alone."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return getattr(store, "host", None)
