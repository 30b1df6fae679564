"""Groups whose ranks add up on their hosts first, for the tensors of one device: who takes part, and the threads that do it.

Two threads of the group serve its calls. One makes the steps of each call in the order of the calls: it waits for nothing where
steps are queued on streams. The other one sees when they are done. Before the steps the whole group is asked whether all ranks make
the same call, as every call of the engine is compared.

**No stream waits without end.** If a step or a rail fails, or a rank of the host dies, the rank gives up all that it has in common
with others: the groups of torch's, its rail, and the engine's group of the host's ranks. So the ranks of its rail and of its host
fail, too, and all ranks learn of it. Each rank of a host listens to the others: a rank that leaves sends them a last message before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from .. import errors
from .._herringbone import Communicator, DeviceGroup, Extras, Pending
from ..closing import close_each, leave_behind, print_errors
from ..kinds import BARRIER, Call, kind_of
from .callbacks import callback_threads
from .devices import Accelerator, StagedHandle
from .lanes import Lane, Point
from .local_groups import LocalGroup
from .local_handles import LocalHandle
from .local_steps import TAKEN, LocalCall, LocalGroups, LocalSteps, RailCall, TakenKind, steps_of
from .rails import LocalPlace
from .tensors import span

__all__ = ["LocalSums"]

QUERY_SECONDS = 5.0
"""How long a rank that has failed asks the others whether one of them is lost."""

LEAVING_SECONDS = 2.0
"""How long a rank that leaves waits for the others of its host."""

LOOK_SECONDS = 0.0002
"""How often a thread looks whether a stream has come to a point, at first."""

SELDOM_SECONDS = 0.002
"""And at last."""

LISTENING_SECONDS = 1e9
"""A rank listens to the others of its host as long as the group lives."""

CAPTURING = (
    "a graph is captured on this stream, and the host takes part in each call of Herringbone; call it outside of the capture"
)

FAREWELL_BYTES = 8
FAREWELL_TAG = 0

logger = logging.getLogger("herringbone")


class Flight:
    """A call on its way through the threads."""

    def __init__(self, call: Call, kind: TakenKind, begin: Point, check: Pending, handle: LocalHandle) -> None:
        self.call, self.kind, self.begin, self.check, self.handle = call, kind, begin, check, handle
        self.rail: StagedHandle | None = None
        self.steps: LocalSteps | None = None


class LocalSums:
    """One group's calls on the tensors of one device, whose ranks add up on their hosts first."""

    def __init__(
        self,
        communicator: Communicator,
        store: Store,
        place: LocalPlace,
        accelerator: Accelerator,
        tensor: torch.Tensor,
        lane: Lane,
        name: str,
    ) -> None:
        """All ranks of the group make it in the same place of their calls.

        Args:
            communicator: the group's.
            store: through which its ranks can meet.
            tensor: one on the device.
            lane: streams for the steps.
            name: of what is made for it; no other one of the job has it.
        """
        self.place = place
        self._communicator, self._store, self._accelerator, self._name = communicator, store, accelerator, name
        self._device = tensor.device
        self._lane = lane
        # In the order of the calls on all ranks, and so beside them when one of the ranks asks.
        self._query = communicator.line()
        self._host = communicator.subgroup(place.host_ranks, f"{name} host {place.host}")
        self._rail = communicator.subgroup(place.rail_ranks, f"{name} rail {place.local}") if place.hosts > 1 else None
        device = accelerator.device(tensor)
        self._on_rail = None if self._rail is None else DeviceGroup(self._rail, device)
        self._groups: LocalGroups | None = None
        self._lock = threading.Lock()
        self._flying: list[Flight] = []
        self._error: BaseException | None = None
        self._broken, self._settled, self._ended = threading.Event(), threading.Event(), False
        self._farewells = self._listen()
        self._to_queue: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._to_await: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=each, name="herringbone-local-sums", daemon=True)
            for each in (self._queue_all, self._await_all)
        ]
        for thread in self._threads:
            thread.start()

    # Calls of the program.

    def takes(self, call: Call) -> bool:
        """Whether a call has steps. The others pass through the host as a whole."""
        return call[0] in TAKEN and call[8] is None

    def submit(self, call: Call, tensor: torch.Tensor) -> LocalHandle:
        """Start a call that it takes, behind what the program has queued on its current stream.

        Raises:
            HerringboneError: an earlier call has failed, or the group has. Nothing is started.
        """
        kind, seconds, priority = TAKEN[call[0]], call[6], call[7]
        if self._accelerator.is_capturing(tensor):
            raise errors.UnsupportedError(f"{kind.collective}: {CAPTURING}")
        mark = zlib.crc32(repr((kind.collective, kind.folded, kind.op, call[1], call[2])).encode())
        compared: Call = (BARRIER, 0, 0, (0, 0), (0, 0), None, seconds, priority, Extras(mark=mark))
        write = tensors_of(call)[1]
        try:
            with self._lock:
                self._raise_if_broken()
                begin, check = self._lane.point(tensor), self._communicator.submit(compared)
                flight = Flight(call, kind, begin, check, LocalHandle(self._lane, tensor, write))
                self._flying.append(flight)
                self._to_queue.put(flight)
        except errors.HerringboneError as error:
            self._fail(error, is_known=True)
            self._raise_if_broken()
            raise
        callback_threads().watch([check], functools.partial(self._compared, check))
        return flight.handle

    def _raise_if_broken(self) -> None:
        if self._broken.is_set():
            self._settled.wait()
            assert self._error is not None
            raise self._error

    def follow(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Have the current stream wait for those running calls that write memory of ``tensors``."""
        with self._lock:
            handles = [flight.handle for flight in self._flying]
        for handle in handles:
            if any(tensor is not None and handle.overlaps(tensor) for tensor in tensors):
                handle.order(None)

    # The first thread: the steps.

    def _queue_all(self) -> None:
        for flight in iter(self._to_queue.get, None):
            with contextlib.suppress(_GivenUp):
                try:
                    self._queue(flight)
                except _GivenUp:
                    raise
                except Exception as error:
                    self._fail(error)
            self._to_await.put(flight)
        self._to_await.put(None)

    def _queue(self, flight: Flight) -> None:
        root, seconds = flight.call[2], flight.call[6]
        read, write = (flat(each, flight.kind) for each in tensors_of(flight.call))
        if self._lane.on_host:
            self._until(flight.begin.done)
        groups = self._formed(seconds or LISTENING_SECONDS)
        if not write.numel():
            flight.handle.queue(flight.begin)
            return
        steps = steps_of(LocalCall(flight.kind, read, write, root), self.place, groups)
        flight.steps = steps
        with torch.no_grad():
            self._take(steps, flight)
        flight.handle.queue(self._lane.end())

    def _take(self, steps: LocalSteps, flight: Flight) -> None:
        handle = None
        with self._lane.summing(flight.begin):
            over_rail = steps.first()
            if over_rail is not None:
                handle = self._pass_on(over_rail, flight)
        with self._lane.giving():
            if handle is not None:
                handle.order(None)
                handle.reach()
            steps.last()

    def _pass_on(self, rail: RailCall, flight: Flight) -> StagedHandle | None:
        """Start the rail's part of a call; on a single host there is no other rank."""
        read, write = rail.read, rail.write
        if self._on_rail is None:
            if read is not write:
                write.copy_(read)
            return None
        seconds, priority = flight.call[6], flight.call[7]
        kind = kind_of(rail.collective, flight.kind.folded, rail.op)
        call = (kind, rail.elements, rail.root, span(read), span(write), (read, write), seconds, priority, None)
        pending = self._on_rail.submit(call, self._accelerator.stream(read))
        self._accelerator.lend([read, write], self._on_rail.streams())
        flight.rail = StagedHandle(pending, self._accelerator, read)
        callback_threads().watch([flight.rail], functools.partial(self._carried, flight.rail))
        return flight.rail

    def _formed(self, seconds: float) -> LocalGroups:
        """The groups of torch's, which the first call makes: their forming may take seconds."""
        if self._groups is None:
            place = self.place

            def group(part: str) -> LocalGroup:
                store = PrefixStore(f"{self._name}/{place.host}/{part}/", self._store)
                return LocalGroup(place.backend, store, place.local, place.size, seconds, self._until)

            self._groups = LocalGroups(group("first"), group("last"))
        return self._groups

    def _until(self, holds: Callable[[], bool]) -> None:
        """Return once this holds; raise if the group has failed before."""
        pause = LOOK_SECONDS
        while not holds():
            if self._broken.wait(pause):
                raise _GivenUp
            pause = min(2 * pause, SELDOM_SECONDS)

    # The second thread: ends.

    def _await_all(self) -> None:
        for flight in iter(self._to_await.get, None):
            with contextlib.suppress(_GivenUp):
                self._await(flight)
                flight.handle.finish()
                with self._lock:
                    self._flying.remove(flight)
            # A call that was given up keeps its memory, which streams may use.

    def _await(self, flight: Flight) -> None:
        self._until(flight.begin.done)
        self._until(flight.check.done)
        deadline = time.monotonic() + (flight.call[6] or LISTENING_SECONDS)
        self._until(functools.partial(self._has_ended, flight, deadline))
        parts: list[Pending | StagedHandle] = [flight.check] if flight.rail is None else [flight.check, flight.rail]
        if any(part.error() is not None for part in parts):
            # It is told to all calls elsewhere.
            self._until(lambda: False)

    def _has_ended(self, flight: Flight, deadline: float) -> bool:
        end = flight.handle.end
        if end is not None and end.done():
            return True
        if time.monotonic() > deadline:
            seconds = flight.call[6]
            self._fail(
                errors.OperationTimeoutError(
                    f"{flight.kind.collective} timed out: the ranks of this host have not added up within {seconds:g} s"
                )
            )
        return False

    # Failures.

    def _compared(self, check: Pending) -> None:
        error = check.error()
        if error is not None:
            self._fail(error, is_known=True)

    def _carried(self, handle: StagedHandle) -> None:
        error = handle.error()
        if error is not None:
            self._fail(error)

    def _listen(self) -> list[Pending]:
        """Receive the last message of each other rank of the host: until it comes, the rank has to live."""
        pending = []
        for other in range(self._host.size):
            if other != self._host.rank:
                room = torch.empty(FAREWELL_BYTES, dtype=torch.uint8)
                message = ("u8", FAREWELL_BYTES, FAREWELL_TAG, span(room), room, LISTENING_SECONDS)
                farewell = self._host.receive(other, message)
                callback_threads().watch([farewell], functools.partial(self._parted, farewell))
                pending.append(farewell)
        return pending

    def _parted(self, farewell: Pending) -> None:
        error = farewell.error()
        if error is not None and not self._ended:
            self._fail(error)

    def _fail(self, error: BaseException, is_known: bool = False) -> None:
        """Give up what this rank has in common with others, and let all calls end by an error.

        Args:
            is_known: all ranks get this error by themselves.
        """
        with self._lock:
            if self._broken.is_set():
                return
            self._broken.set()
            flying = list(self._flying)
        for group in self._groups or ():
            threading.Thread(target=group.abort, name="herringbone-leaving", daemon=True).start()
        for communicator in (self._rail, self._host):
            if communicator is not None:
                leave_behind(communicator)
        self._error = error if is_known else self._cause(error, flying)
        self._settled.set()
        with self._lock:
            flying = list(self._flying)
        for flight in flying:
            flight.handle.finish(self._error)

    def _cause(self, error: BaseException, flying: Sequence[Flight]) -> BaseException:
        """What has failed first, as far as the whole group knows: a rank that gives up seems lost to its rail and its host."""
        barrier: Call = (BARRIER, 0, 0, (0, 0), (0, 0), None, QUERY_SECONDS, 0, None)
        try:
            self._query.run(self._communicator.run, barrier)
        except errors.PeerLostError as lost:
            return lost
        except errors.HerringboneError:
            pass
        for flight in flying:
            compared = flight.check.error()
            if compared is not None:
                return compared
        if isinstance(error, errors.HerringboneError):
            return error
        problem = f"the ranks of this host could not add up first, by {self.place.backend}: {error}"
        return errors.UnsupportedError(f"{problem}; HERRINGBONE_LOCAL_SUMS=off goes without")

    # The end.

    def close(self) -> None:
        """End once all calls are over."""
        with self._lock:
            flying = list(self._flying)
        for flight in flying:
            with contextlib.suppress(errors.HerringboneError):
                flight.handle.wait()
        if not self._broken.is_set():
            self._part()
        self._ended = True
        self._to_queue.put(None)
        owned: list[Any] = [self._on_rail] if self._on_rail is not None else []
        if not self._broken.is_set():
            for thread in self._threads:
                thread.join()
            owned += [each for each in (*(self._groups or ()), self._rail, self._host) if each is not None]
        # What ranks disagree about is the whole group's to tell.
        print_errors(error for error in close_each(owned) if not isinstance(error, errors.HerringboneError))

    def _part(self) -> None:
        """Send the other ranks of the host the last message, and wait a moment for theirs."""
        bytes = torch.zeros(FAREWELL_BYTES, dtype=torch.uint8)
        message = ("u8", FAREWELL_BYTES, FAREWELL_TAG, span(bytes), bytes, LEAVING_SECONDS)
        deadline = time.monotonic() + LEAVING_SECONDS
        others = [other for other in range(self._host.size) if other != self._host.rank]
        with contextlib.suppress(errors.HerringboneError):
            sent = [self._host.send(other, message) for other in others]
            for pending in (*sent, *self._farewells):
                pending.wait(max(0.0, deadline - time.monotonic()))

    def abort(self) -> None:
        """End at once: running calls fail with ``ClosedError``, and on the other ranks with ``PeerLostError``."""
        self._fail(errors.ClosedError("this rank has left the group"), is_known=True)
        self.close()


class _GivenUp(Exception):
    """The group has failed, and calls end by its error."""


def tensors_of(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensors that a call reads and writes. Every call with steps has both, on each rank."""
    read, write = cast("tuple[torch.Tensor, torch.Tensor]", call[5])
    return read, write


def flat(tensor: torch.Tensor, kind: TakenKind) -> torch.Tensor:
    """The elements of a tensor whose values lie in order, as a call sees them."""
    return tensor.detach().view(-1).view(kind.dtype)
