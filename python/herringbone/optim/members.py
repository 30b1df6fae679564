"""The ranks that average, fixed or elastic: what becomes of an exchange when some of them are lost."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from ..advice import in_words_of
from ..communicator import Communicator
from ..elastic import Elastic
from ..errors import ArgumentError, ConfigError, HerringboneError, PeerLostError
from ..state import broadcast_state
from .agreement import agree
from .exchange import Exchange

__all__ = ["ElasticMembers", "FixedMembers", "Job", "State"]


class State(Protocol):
    """What all ranks have alike between two rounds, as members give it to each other."""

    call: str
    """What errors name."""
    settings: dict[str, str]
    """What all ranks have alike always, as texts by name."""

    @property
    def rounds(self) -> int:
        """How many exchanges this rank has applied."""

    def save(self) -> dict[str, Any]:
        """The state, as :func:`herringbone.broadcast_state` takes it."""

    def load(self, state: dict[str, Any]) -> bool:
        """Take a state of another rank; whether it replaces this rank's, so that the round under way is void."""


class FixedMembers:
    """The ranks of one group. If one of them is lost, the exchange fails on all, and the program can pass another group."""

    def __init__(self, communicator: Communicator, state: State) -> None:
        """All ranks of ``communicator`` call this. They get the state of the one that is furthest, at first of rank 0.

        Raises:
            ArgumentError: on all ranks: one has other settings.
            HerringboneError: the ranks did not come together.
        """
        self._state = state
        self._is_void = False
        self._communicator = self._meet(communicator)

    @property
    def communicator(self) -> Communicator:
        """The group of the exchanges. It is one of its own, so the program can make other calls meanwhile, in any order."""
        return self._communicator

    leaving = False

    def begin(self) -> None:
        """A round begins."""

    def count(self, rounds: int) -> None:
        """A checkpoint of this many rounds was loaded."""

    def issue(self, exchange: Exchange) -> None:
        """Start an exchange. If that fails, :meth:`settle` says so."""
        with suppress(PeerLostError):
            exchange.issue(self._communicator)

    @in_words_of("averaging")
    def settle(self, exchange: Exchange) -> Any:
        """The averages of an exchange, which starts if it has not.

        Raises:
            HerringboneError: it failed; it can be settled again, over another group.
        """
        exchange.issue(self._communicator)
        return exchange.wait()

    def regroup(self, communicator: Communicator) -> bool:
        """Continue over another group; whether the round under way is void, because this rank was behind the others."""
        before = self._communicator
        self._communicator = self._meet(communicator)
        with suppress(HerringboneError):
            before.close()
        return self._is_void

    def close(self) -> None:
        """Leave the group of the exchanges; the program's own group stays."""
        self._communicator.close()

    @in_words_of("averaging")
    def _meet(self, communicator: Communicator) -> Communicator:
        own = communicator.subgroup(range(communicator.size))
        try:
            agree(self._state.call, own, self._state.settings)
            mine = self._state.save()
            given = broadcast_state(own, mine, newest=self._state.rounds)
            self._is_void = given is not mine and self._state.load(given)
        except BaseException:
            with suppress(HerringboneError):
                own.close()
            raise
        return own


class Job(Elastic):
    """Elastic members that compare their settings whenever some of them have come or gone. Its steps are the rounds."""

    def __init__(self, state: State, load: Callable[[Any], None], **options: Any) -> None:
        """``load`` takes a state that another rank has saved; ``options`` are those of :class:`herringbone.Elastic`.

        Raises:
            ArgumentError: this rank has other settings than those that have made rounds; or, before the first round, any rank has.
                This rank leaves the group then, also if it is the given ``communicator``.
        """
        self._shared = state
        super().__init__(state.save, load, look_every=1, **options)

    def _share_state(self) -> None:
        try:
            differ = agree(self._shared.call, self.communicator, self._shared.settings, self._shared.rounds)
        except ArgumentError:
            # The others wait for this rank until it leaves, and a program whose constructor fails may have nothing to close.
            with suppress(HerringboneError):
                self.communicator.close()
            raise
        if differ:
            text = f"{self._shared.call}: {differ}; that rank gets an error, and the others continue without it"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        super()._share_state()


class ElasticMembers:
    """The ranks that live. An exchange in which some are lost is made again by the others, and new processes join between rounds.

    A :class:`Job` agrees on the members.
    """

    def __init__(self, state: State, communicator: Communicator | None, **options: Any) -> None:
        """``options`` are those of :class:`herringbone.Elastic`. All ranks get the state of the one that is furthest."""
        self._state = state
        self._is_void = False
        self._step: AbstractContextManager[Communicator] | None = None
        self.job = Job(state, self._load, communicator=communicator, **options)
        _say_met()

    @property
    def communicator(self) -> Communicator:
        """The present group; of the job's own calls, too."""
        return self.job.communicator

    @property
    def leaving(self) -> bool:
        """Whether this process is to leave: it was sent SIGTERM."""
        return self.job.leaving

    def begin(self) -> None:
        """A round begins: new processes join here. Nothing happens within a round."""
        if self._step is None:
            self._is_void = False
            step = self.job.step()
            step.__enter__()
            self._step = step

    def count(self, rounds: int) -> None:
        """A checkpoint of this many rounds was loaded."""
        self.job.steps = rounds

    def issue(self, exchange: Exchange) -> None:
        """Start an exchange within a round. If that fails, :meth:`settle` makes it again."""
        with suppress(PeerLostError):
            exchange.issue(self.communicator)

    def settle(self, exchange: Exchange) -> Any:
        """The averages of an exchange over the ranks that live; ``None`` if this rank got the result with another one's state.

        Raises:
            PeerLostError: the remaining ranks cannot continue.
            HerringboneError: something else failed.
        """
        while True:
            self.begin()
            if self._is_void:
                exchange.abandon()
                return None
            try:
                exchange.issue(self.communicator)
                averages = exchange.wait()
            except PeerLostError as lost:
                self._end(lost)
                if self._is_void:
                    return None
                continue
            except BaseException as error:
                self._end(error)
                raise
            self._end(None)
            return averages

    def regroup(self, communicator: Communicator) -> bool:
        """Members find each other by themselves."""
        raise ConfigError("regroup: with elastic=True the ranks that are left form their group themselves; do not call this")

    def close(self) -> None:
        """Leave the job; the others continue without this rank."""
        if self._step is not None:
            # Ends the step without a change of its count: nobody waits here for a rank that is lost.
            step, self._step = self._step, None
            with suppress(GeneratorExit):
                step.__exit__(GeneratorExit, GeneratorExit(), None)
        self.job.close()

    def _end(self, error: BaseException | None) -> None:
        """Leave the step's block: with a lost rank this agrees on the members that are left."""
        step, self._step = self._step, None
        assert step is not None
        if error is None:
            step.__exit__(None, None, None)
        elif not step.__exit__(type(error), error, error.__traceback__):
            raise error

    def _load(self, state: dict[str, Any]) -> None:
        self._is_void = self._state.load(state) or self._is_void


def _say_met() -> None:
    """Note for a launcher that starts ranks again that this one has met the others: it does not wait for them in vain.

    The launcher ends the job if a rank has noted nothing while all others have succeeded with this note. It is made here and
    not at the end of the rounds, which a rank can reach later than others. The file is that of the setting
    HERRINGBONE_PROGRESS_FILE; numbers that the program itself has written there stay.
    """
    path = os.environ.get("HERRINGBONE_PROGRESS_FILE")
    if path and not Path(path).exists():
        with suppress(OSError):  # then a rank that comes too late waits until its timeout
            # By a rename, so that the launcher never reads half of it.
            file = Path(f"{path}.new")
            file.write_text("complete")
            file.replace(path)
