"""The ranks that average, fixed or elastic, and the handling of an exchange when some of them are lost."""

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
    """The values that all ranks have in common between two rounds, as members exchange them."""

    call: str
    """The name in errors."""
    settings: dict[str, str]
    """The settings that are always the same on all ranks, as texts by name."""

    @property
    def rounds(self) -> int:
        """How many exchanges this rank has applied."""

    def save(self) -> dict[str, Any]:
        """The state, as :func:`herringbone.broadcast_state` takes it."""

    def load(self, state: dict[str, Any]) -> bool:
        """Load another rank's state; returns whether it replaces this rank's, so that the current round is void."""


class FixedMembers:
    """The ranks of one group. If one of them is lost, the exchange fails on all, and the program can pass another group."""

    def __init__(self, communicator: Communicator, state: State) -> None:
        """All ranks of ``communicator`` call this. They get the state of the furthest rank, at first of rank 0.

        Raises:
            ArgumentError: on all ranks, if one has other settings.
            HerringboneError: the ranks did not come together.
        """
        self._state = state
        self._is_void = False
        self._communicator = self._meet(communicator)

    @property
    def communicator(self) -> Communicator:
        """The group of the exchanges. It is separate, so the program can make other calls meanwhile, in any order."""
        return self._communicator

    leaving = False

    def begin(self) -> None:
        """Called when a round begins."""

    def count(self, rounds: int) -> None:
        """Called after a checkpoint of this many rounds was loaded."""

    def issue(self, exchange: Exchange) -> None:
        """Start an exchange. If that fails, :meth:`settle` raises the error."""
        with suppress(PeerLostError):
            exchange.issue(self._communicator)

    @in_words_of("averaging")
    def settle(self, exchange: Exchange) -> Any:
        """The averages of an exchange, which is started if necessary.

        Raises:
            HerringboneError: it failed; it can be settled again, over another group.
        """
        exchange.issue(self._communicator)
        return exchange.wait()

    def regroup(self, communicator: Communicator) -> bool:
        """Continue over another group; returns whether the current round is void, because this rank was behind the others."""
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
        """``load`` loads a state that another rank has saved; ``options`` go to :class:`herringbone.Elastic`.

        Raises:
            ArgumentError: this rank's settings differ from the ranks that have made rounds; before the first round, any ranks'
                differ. This rank then leaves the group, even if it is the given ``communicator``.
        """
        self._shared = state
        super().__init__(state.save, load, look_every=1, **options)

    def _share_state(self) -> None:
        try:
            differ = agree(self._shared.call, self.communicator, self._shared.settings, self._shared.rounds)
        except ArgumentError:
            # The others wait for this rank until it leaves, and a program whose constructor fails might have no object to close.
            with suppress(HerringboneError):
                self.communicator.close()
            raise
        if differ:
            text = f"{self._shared.call}: {differ}; that rank gets an error, and the others continue without it"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        super()._share_state()


class ElasticMembers:
    """The surviving ranks. If some are lost in an exchange, the others repeat it, and new processes join between rounds.

    A :class:`Job` agrees on the members.
    """

    def __init__(self, state: State, communicator: Communicator | None, **options: Any) -> None:
        """``options`` go to :class:`herringbone.Elastic`. All ranks get the state of the furthest one."""
        self._state = state
        self._is_void = False
        self._step: AbstractContextManager[Communicator] | None = None
        self.job = Job(state, self._load, communicator=communicator, **options)
        _say_met()

    @property
    def communicator(self) -> Communicator:
        """The present group; the job's own calls use it, too."""
        return self.job.communicator

    @property
    def leaving(self) -> bool:
        """Whether this process has to leave, because it was sent SIGTERM."""
        return self.job.leaving

    def begin(self) -> None:
        """Let new processes join when a round begins; within a round it does nothing."""
        if self._step is None:
            self._is_void = False
            step = self.job.step()
            step.__enter__()
            self._step = step

    def count(self, rounds: int) -> None:
        """Called after a checkpoint of this many rounds was loaded."""
        self.job.steps = rounds

    def issue(self, exchange: Exchange) -> None:
        """Start an exchange within a round. If that fails, :meth:`settle` repeats it."""
        with suppress(PeerLostError):
            exchange.issue(self.communicator)

    def settle(self, exchange: Exchange) -> Any:
        """The averages of an exchange over the surviving ranks; ``None`` if this rank got the result with another rank's state.

        Raises:
            PeerLostError: the remaining ranks cannot continue.
            HerringboneError: another failure.
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
        """Refuse the call, because elastic members form their group themselves."""
        raise ConfigError("regroup: with elastic=True the remaining ranks form their group themselves; do not call this")

    def close(self) -> None:
        """Leave the job; the others continue without this rank."""
        if self._step is not None:
            # Ends the step without changing its count: no rank waits here for a lost one.
            step, self._step = self._step, None
            with suppress(GeneratorExit):
                step.__exit__(GeneratorExit, GeneratorExit(), None)
        self.job.close()

    def _end(self, error: BaseException | None) -> None:
        """Leave the step's block; if a rank is lost, this agrees on the remaining members."""
        step, self._step = self._step, None
        assert step is not None
        if error is None:
            step.__exit__(None, None, None)
        elif not step.__exit__(type(error), error, error.__traceback__):
            raise error

    def _load(self, state: dict[str, Any]) -> None:
        self._is_void = self._state.load(state) or self._is_void


def _say_met() -> None:
    """Note, for a launcher that restarts ranks, that this rank has met the others and does not wait for them in vain.

    The launcher ends the job if a rank has not made this note while all others, which have, have succeeded. The note is made
    here rather than at the end of the rounds, which a rank can reach later than others. The setting HERRINGBONE_PROGRESS_FILE
    names the file; numbers that the program itself has written there stay.
    """
    path = os.environ.get("HERRINGBONE_PROGRESS_FILE")
    if path and not Path(path).exists():
        with suppress(OSError):  # then a rank that comes too late waits until its timeout
            # A rename, so that the launcher never reads half of it.
            file = Path(f"{path}.new")
            file.write_text("complete")
            file.replace(path)
