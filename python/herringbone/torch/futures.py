"""Futures of Herringbone's works: calls made by their callbacks match between ranks, whenever the callbacks run.

A callback runs when its future is complete: on a thread of :mod:`.callbacks`, or at once in ``then`` if it is complete by
then, which differs between ranks. So each callback gets a turn when the program passes it, and its calls have that turn's
place, apart from the program's own calls (:meth:`herringbone._herringbone.Communicator.turn`).

A call waits until the earlier turns are over. torch can run a callback inside another one, so a callback whose turn is not next
runs on its own thread. Otherwise it could wait for one that runs after it on the same thread.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from .._herringbone import Communicator, Turn
from .callbacks import callback_threads
from .streams import on_streams, streams_here

__all__ = ["in_turn", "run_in", "take_turns"]

Future = torch.futures.Future[Any]
Callback = Callable[[Future], Any]


class _Place(threading.local):
    """Where this thread's calls belong."""

    turns = 0
    """How many turns it is in."""


_place = _Place()


def in_turn() -> bool:
    """Whether this thread's calls are not in the line of the program's: other ranks may make them earlier or later than these."""
    return _place.turns > 0


def run_in(turn: Turn, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function``, whose calls have the turn's place."""
    _place.turns += 1
    try:
        return turn.run(function, *arguments)
    finally:
        _place.turns -= 1


class Line(NamedTuple):
    """The line in which a future's callbacks take turns."""

    group: Communicator

    apart: bool
    """Whether the future waits for more than collectives, such as messages: callbacks of collectives do not wait for it."""

    devices: tuple[torch.device, ...] = ()
    """Those of CUDA that have its work's tensors."""


_lines: WeakKeyDictionary[Future, Line] = WeakKeyDictionary()
"""The line of each future whose callbacks take turns."""


def take_turns(future: Future, group: Communicator, apart: bool, devices: tuple[torch.device, ...] = ()) -> None:
    """Let the callbacks of ``future``, from a work of ``group``, and of all futures derived from it take turns.

    ``apart``: the work does not consist only of collectives. Callbacks compute on the streams of ``devices`` that are current when
    the program passes them.
    """
    _patch_futures()
    _lines[future] = Line(group, apart, devices)


@functools.cache
def _patch_futures() -> None:
    """Let torch's methods take turns for the futures in :data:`_lines`, and leave all other futures as they are.

    torch makes futures of its own class in C++, so a subclass cannot do this.
    """
    native: Any = torch._C
    kind = native.Future
    then, add_done_callback, collect_all = kind.then, kind.add_done_callback, native._collect_all

    @functools.wraps(then)
    def then_in_turn(self: Future, callback: Callback) -> Future:
        line = _lines.get(self)
        if line is None or not callable(callback):
            plain: Future = then(self, callback)
            return plain
        turn = _Turn(line, callback)
        # Futures that torch completes through `then` also fail for C++ waiters.
        chained: Future = then(turn.over, turn.outcome)
        _lines[chained] = line
        add_done_callback(self, turn.begin)
        return chained

    @functools.wraps(add_done_callback)
    def add_in_turn(self: Future, callback: Callback) -> None:
        line = _lines.get(self)
        if line is None or not callable(callback):
            add_done_callback(self, callback)
            return
        turn = _Turn(line, callback)
        # torch logs exceptions of callbacks.
        add_done_callback(turn.over, turn.outcome)
        add_done_callback(self, turn.begin)

    @functools.wraps(collect_all)
    def collected(futures: list[Future]) -> Future:
        all_of_them: Future = collect_all(futures)
        lines = [_lines.get(future) for future in futures]
        known = [line for line in lines if line is not None]
        if known:
            # A future that belongs to no work is completed by the program itself.
            apart = len(known) < len(lines) or any(line.apart for line in known)
            devices = dict.fromkeys(device for line in known for device in line.devices)
            _lines[all_of_them] = known[0]._replace(apart=apart, devices=tuple(devices))
        return all_of_them

    kind.then, kind.add_done_callback = then_in_turn, add_in_turn
    native._collect_all = collected


class _Turn:
    """A callback that has taken the next turn of its future's line."""

    __slots__ = ("_callback", "_line", "_outcome", "_streams", "_turn", "over")

    def __init__(self, line: Line, callback: Callback) -> None:
        self._line, self._callback, self._turn = line, callback, line.group.turn(line.apart)
        self._streams = streams_here(line.devices)
        self._outcome: tuple[Any, BaseException | None] = None, None
        # It has no value: torch pickles a future's value if that is a Python object.
        self.over: torch.futures.Future[None] = torch.futures.Future()

    def begin(self, complete: Future) -> None:
        """Run the callback because the future is complete: here, or on a thread where it can wait for its turn."""
        if self._turn.is_next():
            self._run(complete)
        else:
            callback_threads().run(functools.partial(self._run, complete))

    def _run(self, complete: Future) -> None:
        _lines.setdefault(complete, self._line)  # it may be torch's second object for the future
        try:
            with on_streams(self._streams):
                self._outcome = run_in(self._turn, self._callback, complete), None
        except BaseException as error:
            self._outcome = None, error
        finally:
            self._turn.end()
        self.over.set_result(None)

    def outcome(self, _: Future) -> Any:
        """The result or the exception of the callback."""
        (value, error), self._outcome = self._outcome, (None, None)
        try:
            if error is not None:
                raise error
        finally:
            # Otherwise the error keeps this frame and the frame keeps the error, so the callback's objects would not be freed.
            del error
        return value
