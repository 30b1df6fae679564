"""Groups whose ranks add up on their hosts first, for the tensors of one device: who takes part, and the threads that do it.

Three threads of the group serve its calls, each all of them in their order. The first makes the steps before the network, the second
waits for the rail and makes the steps after it, and the third sees when they are done. So the first steps of a call do not wait for
the call before. They begin once all ranks have said that they make the same call and have memory for it. The question is one of the
group's staged calls: it comes in their order, and knows which of them have failed.

**No stream waits without end.** If a step or a rail fails, or a rank of the host dies, the rank leaves all that it shares with
others: torch's groups, its rail, and the engine's group of the host. So the ranks of its rail and of its host
fail, too, and all ranks learn of it. Each rank of a host listens to the others: a rank that leaves sends them a last message before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
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
from ..kinds import BARRIER, Call, Span, kind_of
from .callbacks import callback_threads
from .devices import Accelerator, StagedHandle
from .lanes import Lane
from .local_flights import Beside, Flight, Stage, overlap
from .local_groups import LocalGroup
from .local_handles import LocalHandle
from .local_steps import TAKEN, LocalCall, LocalGroups, RailCall, TakenKind, steps_of
from .rails import LocalPlace
from .tensors import span

__all__ = ["LocalSums"]

QUERY_SECONDS = 5.0
"""How long a rank that has failed asks the others whether one of them is lost."""

LEAVING_SECONDS = 2.0
"""How long a rank that leaves waits for the others of its host."""

LOOK_SECONDS = 0.00005
"""How often a thread looks whether a stream has come to a point, at first."""

SELDOM_SECONDS = 0.0005
"""And at last."""

LISTENING_SECONDS = 1e9
"""A rank listens to the others of its host as long as the group lives."""

CAPTURING = (
    "a graph is captured on this stream, and the host takes part in each call of Herringbone; call it outside of the capture"
)

NOTHING = (0, 0)
"""No memory."""

OPERATION = re.compile(r"\(operation (\d+)\)")
"""In errors, the number of the call that has failed; behind it that of the call that has ended it, if another one has. A rank's error
about its own memory has none."""

LEAVING_BYTES = 8
LEAVING_TAG = 0

logger = logging.getLogger("herringbone")


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
        self._lane = lane
        # In the order of the calls on all ranks, and so beside them when one of the ranks asks.
        self._query = communicator.line()
        self._host = communicator.subgroup(place.host_ranks, f"{name} host {place.host}")
        self._rail = communicator.subgroup(place.rail_ranks, f"{name} rail {place.local}") if place.hosts > 1 else None
        device = accelerator.device(tensor)
        self._on_rail = None if self._rail is None else DeviceGroup(self._rail, device)
        self._groups: LocalGroups | None = None
        self._order, self._lock = threading.Lock(), threading.Lock()
        self._flying: list[Flight] = []
        self._refused: list[LocalHandle] = []
        self._plain: dict[int, Beside] = {}
        self._error: BaseException | None = None
        self._broken, self._settled, self._ended = threading.Event(), threading.Event(), False
        self._last_messages = self._listen()
        self._sent: list[Pending] = []
        self._last = Stage(functools.partial(self._guarded, self._end), None)
        giving = Stage(functools.partial(self._guarded, self._give), self._last)
        self._first = Stage(functools.partial(self._guarded, self._sum), giving)

    # Calls of the program.

    def takes(self, call: Call) -> bool:
        """Whether a call has steps. The others pass through the host as a whole."""
        return call[0] in TAKEN and call[8] is None

    def submit(self, call: Call, tensor: torch.Tensor, staged: DeviceGroup) -> LocalHandle:
        """Start a call that it takes, behind what the program has queued on its current stream.

        Args:
            tensor: one on the device.
            staged: the group's calls that pass through the host as a whole, and the question to all ranks.

        Raises:
            HerringboneError: the group has failed. Nothing is started.
        """
        kind = TAKEN[call[0]]
        if self._accelerator.is_capturing(tensor):
            raise errors.UnsupportedError(f"{kind.collective}: {CAPTURING}")
        called = f"{kind.collective} of {call[1]} {kind.given}, {kind.op}, root {call[2]}"
        read = lacking(call[3])
        write = NOTHING if call[4] == call[3] else lacking(call[4])
        extras = Extras(mark=zlib.crc32(called.encode()))
        question: Call = (BARRIER, 0, 0, read, write, None, call[6], call[7], extras)
        try:
            # In one go: the threads make the steps in the order of the questions.
            with self._order:
                self._raise_if_broken()
                begin = self._lane.point(tensor)
                pending = staged.submit(question, self._accelerator.stream(tensor))
                check = StagedHandle(pending, self._accelerator, tensor, self.unasked())
                handle = LocalHandle(self._lane, tensor, check.earlier())
                self._begin(Flight(call, kind, begin, check, handle))
        except errors.HerringboneError as error:
            self._fail(error, is_known=True)
            self._raise_if_broken()
            raise
        callback_threads().watch([check], functools.partial(self._compared, check, called))
        self._settle_if_lacking(check, call)
        return handle

    def _begin(self, flight: Flight) -> None:
        """Give a call to the first thread, behind those that use its memory."""
        tensors = tensors_of(flight.call)
        flight.beside = [plain.handle for plain in list(self._plain.values()) if overlap(plain.tensors, tensors)]
        with self._lock:
            self._raise_if_broken()
            flight.behind = [each.handle for each in self._flying if overlap(tensors_of(each.call), tensors)]
            self._flying.append(flight)
            self._first.put(flight)

    def _raise_if_broken(self) -> None:
        if self._broken.is_set():
            self._settled.wait()
            assert self._error is not None
            raise self._error

    def follow(self, tensors: Sequence[torch.Tensor | None]) -> None:
        """Have the current stream wait for those running calls that use memory of ``tensors``: a call that has no steps uses it next."""
        with self._lock:
            handles = [flight.handle for flight in self._flying if overlap(tensors_of(flight.call), tensors)]
        for handle in handles:
            handle.follow()

    def unasked(self) -> BaseException | None:
        """Why the group has failed, or an earlier call whose end the program has not asked for. It is told then."""
        if self._broken.is_set():
            self._settled.wait()
            return self._error
        with self._lock:
            for flight in self._flying:
                flight.check.error()  # its call tells of it, and not the next one that passes through the host as a whole
            refused, self._refused = self._refused, []
        return next((error for handle in refused if (error := handle.unasked()) is not None), None)

    def note(self, handle: StagedHandle, call: Call, tensors: Sequence[torch.Tensor | None]) -> None:
        """A call that has no steps uses memory of ``tensors`` from now on."""
        self._plain[id(handle)] = Beside(handle, tensors)
        callback_threads().watch([handle], functools.partial(self._forget, id(handle)))
        self._settle_if_lacking(handle, call)

    def _settle_if_lacking(self, handle: StagedHandle, call: Call) -> None:
        """Return once a call for which this rank lacks memory has failed.

        Its failure ends other calls. This rank answers no further question before, so none is over on some ranks alone, which would
        begin steps that the others give up.
        """
        if lacking(call[3]) != NOTHING or lacking(call[4]) != NOTHING:
            with contextlib.suppress(_GivenUp):
                self._until(handle.done)

    def _forget(self, number: int) -> None:
        del self._plain[number]

    # The threads: the steps before the network, those after it, and the end.

    def _guarded(self, act: Callable[[Flight], None], flight: Flight) -> None:
        if self._broken.is_set():
            return  # it has ended by the group's error
        try:
            act(flight)
        except _GivenUp:
            pass
        except Exception as error:
            self._fail(error)

    def _agreed(self, flight: Flight) -> bool:
        """Whether all ranks make a call and have memory for it. If one lacks memory, only this call fails."""
        self._until(flight.check.done)
        error = flight.check.error()
        if error is None:
            return True
        if not fails_everywhere(error):
            self._until(lambda: False)  # it is told to all calls elsewhere
        # The question is a barrier to the engine.
        text, *values = error.args
        flight.handle.finish(type(error)(text.replace("barrier", flight.kind.collective, 1), *values))
        with self._lock:
            self._refused.append(flight.handle)
        return False

    def _sum(self, flight: Flight) -> None:
        if not self._agreed(flight):
            return
        read, write = (flat(each, flight.kind) for each in tensors_of(flight.call))
        root, seconds = flight.call[2], flight.call[6]
        after = [flight.begin]
        for earlier in flight.behind:
            self._until(earlier.is_queued)
            after += [] if earlier.end is None else [earlier.end]
        for point in after if self._lane.on_host else ():
            self._until(point.done)
        for plain in flight.beside:
            self._until(plain.done)
        groups = self._formed(seconds or LISTENING_SECONDS)
        if not write.numel():
            return
        flight.steps = steps_of(LocalCall(flight.kind, read, write, root), self.place, groups)
        with torch.no_grad(), self._lane.summing(after):
            over_rail = flight.steps.first()
            if over_rail is not None:
                self._pass_on(over_rail, flight)
            flight.summed = self._lane.summed()

    def _give(self, flight: Flight) -> None:
        steps, rail, summed = flight.steps, flight.rail, flight.summed
        if steps is None or summed is None:
            flight.handle.queue(flight.begin)
            return
        with torch.no_grad(), self._lane.giving(summed):
            if rail is not None:
                rail.order(None)
                rail.reach()
            steps.last()
        flight.handle.queue(self._lane.end())

    def _pass_on(self, rail: RailCall, flight: Flight) -> None:
        """Start the rail's part of a call. On a single host no other rank has a part in it."""
        read, write = rail.read, rail.write
        if self._on_rail is None:
            if read is not write:
                write.copy_(read)
            return
        seconds, priority = flight.call[6], flight.call[7]
        kind = kind_of(rail.collective, flight.kind.folded, rail.op)
        call = (kind, rail.elements, rail.root, span(read), span(write), (read, write), seconds, priority, None)
        pending = self._on_rail.submit(call, self._accelerator.stream(read))
        self._accelerator.lend([read, write], self._on_rail.streams())
        flight.rail = StagedHandle(pending, self._accelerator, read)
        callback_threads().watch([flight.rail], functools.partial(self._carried, flight.rail))

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

    def _end(self, flight: Flight) -> None:
        if not flight.handle.done():
            self._until(flight.begin.done)
            deadline = time.monotonic() + (flight.call[6] or LISTENING_SECONDS)
            self._until(functools.partial(self._has_ended, flight, deadline))
            if flight.rail is not None and flight.rail.error() is not None:
                # It is told to all calls elsewhere. A call that is given up keeps its memory, which streams may use.
                self._until(lambda: False)
            flight.handle.finish()
        with self._lock:
            self._flying.remove(flight)

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

    def _compared(self, check: StagedHandle, called: str) -> None:
        error = check.error()
        if error is not None and fails_everywhere(error):
            return  # the call alone has failed
        if isinstance(error, errors.OutOfMemoryError):
            # Other ranks may have begun the steps of this call.
            self._fail(error)
            return
        if isinstance(error, errors.MismatchError):
            # The question knows the call by a number.
            text, *values = error.args
            error = errors.MismatchError(f"{text}; the call of this rank is {called}", *values)
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
                room = torch.empty(LEAVING_BYTES, dtype=torch.uint8, device="cpu")
                message = ("u8", LEAVING_BYTES, LEAVING_TAG, span(room), room, LISTENING_SECONDS)
                last_message = self._host.receive(other, message)
                callback_threads().watch([last_message], functools.partial(self._parted, last_message))
                pending.append(last_message)
        return pending

    def _parted(self, last_message: Pending) -> None:
        error = last_message.error()
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
            self.send_last_message()
            self._wait_for_last_messages()
        self._ended = True
        self._first.put(None)
        owned: list[Any] = [self._on_rail] if self._on_rail is not None else []
        if not self._broken.is_set():
            self._last.join()
            owned += [each for each in (*(self._groups or ()), self._rail, self._host) if each is not None]
        # What ranks disagree about is the whole group's to tell.
        print_errors(error for error in close_each(owned) if not isinstance(error, errors.HerringboneError))

    def send_last_message(self) -> None:
        """Send it to the other ranks of the host, which listen for it as long as they are in the group; only if no call runs."""
        with self._lock:
            runs = not all(flight.handle.done() for flight in self._flying)
            if runs or self._sent or self._broken.is_set():
                return
        bytes = torch.zeros(LEAVING_BYTES, dtype=torch.uint8, device="cpu")
        message = ("u8", LEAVING_BYTES, LEAVING_TAG, span(bytes), bytes, LEAVING_SECONDS)
        others = [other for other in range(self._host.size) if other != self._host.rank]
        with contextlib.suppress(errors.HerringboneError):
            self._sent = [self._host.send(other, message) for other in others]

    def _wait_for_last_messages(self) -> None:
        """Wait a moment until they are exchanged."""
        deadline = time.monotonic() + LEAVING_SECONDS
        with contextlib.suppress(errors.HerringboneError):
            for pending in (*self._sent, *self._last_messages):
                pending.wait(max(0.0, deadline - time.monotonic()))

    def abort(self) -> None:
        """End at once: running calls fail with ``ClosedError``, and on the other ranks with ``PeerLostError``."""
        self._fail(errors.ClosedError("this rank has closed the communicator while the call was running"), is_known=True)
        self.close()


class _GivenUp(Exception):
    """The group has failed, and calls end by its error."""


def tensors_of(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensors that a call reads and writes. Every call with steps has both, on each rank."""
    read, write = cast("tuple[torch.Tensor, torch.Tensor]", call[5])
    return read, write


def fails_everywhere(error: BaseException) -> bool:
    """Whether a question has failed on all ranks, and nothing else has.

    One rank lacks memory for its call or for an earlier one. If that is a later one the question can have ended well elsewhere.
    """
    numbers = [int(number) for number in OPERATION.findall(str(error))]
    return isinstance(error, errors.OutOfMemoryError) and (not numbers or numbers[-1] <= numbers[0])


def lacking(memory: Span) -> Span:
    """The memory of a call, if it is lacking."""
    return NOTHING if memory[0] else memory


def flat(tensor: torch.Tensor, kind: TakenKind) -> torch.Tensor:
    """The elements of a tensor whose values lie in order, as a call sees them."""
    return tensor.detach().view(-1).view(kind.dtype)
