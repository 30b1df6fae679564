"""A training loop that continues when workers come and go."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import whole
from .communicator import Communicator
from .errors import ConnectionLostError, PeerLostError, RendezvousError
from .joining import init
from .state import broadcast_state

if TYPE_CHECKING:
    from types import FrameType, TracebackType

__all__ = ["Elastic"]

LOOK_EVERY = 10
"""The default number of steps between two checks for new processes while ranks are missing."""
LOOK_SECONDS = 0.1
"""The pause between two such checks while the ranks wait for new processes."""
COMING_BACK_SECONDS = 10.0
"""The timeout for all ranks to meet again once the new processes are there."""
FLAPPING_SECONDS = 60.0
"""If losses follow each other within this time, the next recovery waits, longer each time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0


class Elastic:
    """A job that continues with the remaining ranks, and takes in new processes for the lost ones::

        job = herringbone.Elastic(save, load, least=2)
        while job.steps < 1000 and not job.leaving:
            with job.step() as group:
                gradient = gradient_of(weights)
                group.all_reduce(gradient, "average")
                weights -= 0.1 * gradient

    If a worker dies, the block of the step ends on every rank without an error. The survivors agree on the remaining ranks, all
    get the state of the furthest one, and the loop repeats the step. So a block must change the state only after its last
    collective. After every change of members ``on_change`` is called, for instance to set the learning rate or to divide the
    data again.

    A restarted process, with the rank, size and meeting address of the lost one, joins at one of the next steps and gets the
    others' state. Ranks have their original numbers again once all are there.

    SIGTERM, which spot machines get before they are stopped, makes ``leaving`` true, so that the loop ends after the step. The
    others continue without this process once it has closed.
    """

    def __init__(
        self,
        save: Callable[[], Any],
        load: Callable[[Any], None],
        *,
        least: int = 1,
        wait: float = 0.0,
        communicator: Communicator | None = None,
        on_change: Callable[[Communicator], None] | None = None,
        events: str | Path | None = None,
        look_every: int = LOOK_EVERY,
    ) -> None:
        """Join the job, or use ``communicator`` if it is given, and give all ranks the same state.

        Args:
            save: returns this rank's state, as :func:`broadcast_state` takes it.
            load: loads such a state of another rank.
            least: the job fails if fewer ranks remain.
            wait: seconds that the survivors wait for new processes before they continue without; later ones join, too.
            communicator: the group of all ranks of the job.
            on_change: called with the new communicator whenever the members have changed.
            events: a file to which events are appended, as lines of JSON.
            look_every: steps between two checks for new processes while ranks are missing; the same on all ranks.

        Raises:
            TypeError: an argument is of another type.
            ValueError: a number makes no sense.
            HerringboneError: the ranks did not come together.
        """
        least = whole("Elastic", "least", least, "a number of ranks")
        if not isinstance(wait, (int, float)):
            raise TypeError(f"Elastic: wait is a {type(wait).__name__}, not a number of seconds")
        if not wait >= 0:
            raise ValueError(f"Elastic: wait is {wait}; it is a number of seconds, 0 or more")
        for name, function in (("save", save), ("load", load), ("on_change", on_change)):
            if not (callable(function) or (name == "on_change" and function is None)):
                raise TypeError(f"Elastic: {name} is a {type(function).__name__}, not a function")
        if communicator is not None and not isinstance(communicator, Communicator):
            raise TypeError(f"Elastic: communicator is a {type(communicator).__name__}; pass what herringbone.init() gives")
        self._save, self._load, self._least, self._wait = save, load, least, wait
        self._look_every = whole("Elastic", "look_every", look_every, "a number of steps")
        if self._look_every < 1:
            raise ValueError(f"Elastic: look_every is {look_every}; pass 1 step or more")
        self._on_change = on_change
        self._events = None if events is None else Path(events)
        self.steps = 0
        """How many steps are done."""
        self._settled_at = 0
        """The step at which the ranks last agreed. Ranks can reach it in different ways, so none checks for newcomers there."""
        self.leaving = False
        """Whether this process is to leave: it was sent SIGTERM."""
        self._losses: deque[float] = deque()
        self.communicator = init() if communicator is None else communicator
        """The present group."""
        self.size = self.communicator.size
        """How many ranks the job had at its start."""
        if not 1 <= least <= self.size:
            raise ValueError(f"Elastic: least is {least}; the job has {self.size} ranks, and one at least is left")
        self._first_rank, self._members = self.communicator.rank, list(range(self.size))
        self._note("began", rank=self.communicator.rank, size=self.size)
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._leave)
        try:
            self._settle(time.monotonic())
        except BaseException:
            self._restore_handler()
            raise

    @contextmanager
    def step(self) -> Iterator[Communicator]:
        """One step of the training. If ranks are lost in it, it ends without an error, and the loop repeats it.

        Raises:
            PeerLostError: the remaining ranks cannot continue.
            HerringboneError: another call in the block failed.
        """
        self._take_in_newcomers()
        try:
            yield self.communicator
        except PeerLostError as lost:
            self._recover(lost, self._wait)
            return
        self.steps += 1

    def close(self) -> None:
        """Leave the job in order. Ranks that have more steps to make continue without this one, without an error here.

        Raises:
            MismatchError: as in :meth:`Communicator.close`.
        """
        with ExitStack() as ends:
            ends.callback(self._restore_handler)
            ends.callback(self._close_communicator)
            self._note("leaves" if self.leaving else "ended", step=self.steps)

    def _close_communicator(self) -> None:
        # Ranks can leave before others, so different numbers of calls are no mistake here.
        with suppress(PeerLostError):
            self.communicator.close()

    def _restore_handler(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def __enter__(self) -> Elastic:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.leaving = True

    def _recover(self, lost: PeerLostError, wait: float) -> None:
        """Continue with the remaining ranks, and with the new processes if they come in time."""
        began = time.monotonic()
        self._shrink(lost)
        self._settle(began + wait)
        self._note_since(began, "goes on")

    def _shrink(self, lost: PeerLostError) -> None:
        self._note("lost", ranks=list(lost.ranks), step=self.steps, text=str(lost))
        self._pause(time.monotonic())
        self.communicator = self.communicator.shrink(self._least)

    def _settle(self, until: float) -> None:
        """Wait for new processes, give all ranks one state, and tell the program; again if ranks are lost meanwhile."""
        while True:
            try:
                if self._newcomers_come(until):
                    self._meet_again()
                self._share_state()
                self._settled_at = self.steps
                if self._on_change is not None:
                    self._on_change(self.communicator)
                return
            except PeerLostError as lost:
                again = lost
            self._shrink(again)

    def _meet_again(self) -> None:
        """Form the whole job again, because the new processes are there; if one is lost meanwhile, only the remaining ranks
        form it."""
        try:
            self.communicator = self.communicator.replace(timeout=COMING_BACK_SECONDS)
        except (RendezvousError, ConnectionLostError) as error:
            self._note("not replaced", step=self.steps, text=str(error))
            self.communicator = self.communicator.regather(self._members, timeout=2 * COMING_BACK_SECONDS)
            # New processes of the ranks that did not come cannot join a job of another size.
            self.size = self.communicator.size

    def _newcomers_come(self, until: float) -> bool:
        """Whether every missing rank gets a new process in time; rank 0 decides."""
        import numpy as np

        while self.communicator.size < self.size:
            back = len(self.communicator.newcomers()) >= self.size - self.communicator.size
            decides = self.communicator.rank == 0
            word = np.array([decides and back, decides and time.monotonic() >= until, self.leaving], np.int32)
            self.communicator.all_reduce(word, "max")
            if word.any():
                return bool(word[0]) and not word[2]
            time.sleep(LOOK_SECONDS)
        return False

    def _take_in_newcomers(self) -> None:
        """Check from time to time while ranks are missing: once there is a new process for each, all ranks meet again."""
        if self.communicator.size == self.size or self.steps % self._look_every or self.steps == self._settled_at:
            return
        began = time.monotonic()
        try:
            if not self._newcomers_come(began):
                return
            self._meet_again()
        except PeerLostError as lost:
            self._recover(lost, self._wait)
            return
        self._settle(began)
        self._note_since(began, "replaced")

    def _share_state(self) -> None:
        """Give all ranks the state of the furthest one, and tell them each other's original ranks."""
        import numpy as np

        members = np.zeros(self.communicator.size, np.int64)
        self.communicator.all_gather(np.array([self._first_rank], np.int64), out=members)
        self._members = members.tolist()
        own = {"steps": self.steps, "state": self._save()}
        given = broadcast_state(self.communicator, own, newest=self.steps)
        if given is not own:
            self._load(given["state"])
            self.steps = given["steps"]

    def _pause(self, now: float) -> None:
        """Wait if ranks are lost again and again, so that processes that cannot start do not keep all others busy."""
        while self._losses and now - self._losses[0] > FLAPPING_SECONDS:
            self._losses.popleft()
        self._losses.append(now)
        if len(self._losses) > 2:
            time.sleep(min(FIRST_PAUSE * 2 ** (len(self._losses) - 3), LONGEST_PAUSE))

    def _note_since(self, began: float, event: str) -> None:
        seconds = round(time.monotonic() - began, 3)
        self._note(event, rank=self.communicator.rank, size=self.communicator.size, step=self.steps, seconds=seconds)

    def _note(self, event: str, **values: Any) -> None:
        if self._events is not None:
            line = json.dumps({"event": event, "time": round(time.time(), 3), **values})
            with self._events.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
