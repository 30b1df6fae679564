"""Training that continues when workers come and go: the committed state, and the loop around the program."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...errors import PeerLostError
from . import basics, launched, membership
from .exceptions import HorovodInternalError, HostsUpdatedInterrupt
from .objects import gather_objects, send_object
from .process_sets import global_process_set

__all__ = ["ObjectState", "State", "run_fn", "source_of_state"]

_lives = 0
"""How many times this process has continued with other workers, and how many times it has begun; a new process has no state."""


def source_of_state() -> int:
    """The rank whose state the others get: among the ranks that have been in the job longest, the lowest."""
    lives = gather_objects(_lives, "elastic.lives", global_process_set)
    return lives.index(max(lives))


class State:
    """The state of the training that a worker keeps in memory; see :class:`ObjectState`."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        """``bcast_object`` gives rank 0's object to all ranks, and ``get_rank`` returns the rank."""
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Register functions to call after each change of workers, for instance to scale the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The workers have changed."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Note that another part of the program reports changed hosts; the next commit ends the round."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state, and take in new workers if some wait.

        Raises:
            HostsUpdatedInterrupt: new workers wait; this ends the round of :func:`run_fn`.
        """
        self.save()
        launched.say("committed")
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Take in new workers if some wait.

        Raises:
            HostsUpdatedInterrupt: new workers wait; raised on all ranks in the same call.
        """
        newest = before = self._last_updated_timestamp
        while not self._host_messages.empty():
            newest = max(newest, self._host_messages.get()[0])
        waiting = basics.is_initialized() and basics.rank() == 0 and membership.change_waits()
        before, self._last_updated_timestamp, waiting = self._bcast_object((before, newest, waiting))
        if waiting or self._last_updated_timestamp > before:
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Save the present state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the last saved state."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks the same state."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called after a change of workers, before they get the same state, for subclasses."""


class ObjectState(State):
    """Plain objects, each an attribute: ``ObjectState(broadcast_object, rank, epoch=0, batch=0)``."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        """``bcast_object`` gives rank 0's object to all ranks, ``get_rank`` returns the rank; the rest are the objects."""
        self._saved_state = kwargs
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        """Save the present objects."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Return to the last saved objects."""
        self._set_attrs()

    def sync(self) -> None:
        """Give all ranks the saved objects of one rank."""
        if self._saved_state:
            self._saved_state = self._from_one(self._saved_state)
            self._set_attrs()

    def _from_one(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Use rank 0's objects, or another rank's if rank 0 is new."""
        source = source_of_state() if basics.is_initialized() and basics.size() > 1 else 0
        if source == 0:
            given: dict[str, Any] = self._bcast_object(saved)
        else:
            given = send_object(saved, source, "elastic.state", global_process_set)
        return given

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Call ``func(state, ...)`` again and again until it returns; after a failure from the last commit."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        global _lives
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                _lives += 1
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                _change_workers(membership.recover, reset)
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                _change_workers(membership.take_in, reset)
                skip_sync = interrupt.skip_sync
            state.on_reset()

    return wrapper


def _change_workers(change: Callable[[], None], reset: Callable[[], None]) -> None:
    """Form the job again, and once more if workers are lost meanwhile.

    Raises:
        HerringboneError: the remaining ranks cannot continue.
    """
    try:
        change()
        reset()
    except (PeerLostError, HorovodInternalError) as again:
        if isinstance(again, membership.TooFewWorkersError):
            raise
        _change_workers(membership.recover, reset)
