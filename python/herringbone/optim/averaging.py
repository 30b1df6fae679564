"""The common part of LocalSGD, PostLocalSGD and DiLoCo: hooks of the optimizer, rounds, and the handling of lost and new
ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..advice import in_words_of
from ..communicator import Communicator
from ..compression import Residuals
from ..errors import ClosedError, ConfigError
from ..torch.communicators import communicator_of
from .exchange import Exchange, Wire
from .flat import Array, FlatParameters, parameters_of
from .members import ElasticMembers, FixedMembers
from .rounds import Due, Rounds
from .saved import check_state

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Averaging", "OnChange"]

OnChange = Callable[[Communicator], None]


_LACKS = "which has no averages of this kind"

_RIGID = {"least": 1, "wait": 0.0, "on_change": None}
"""The defaults for members."""


class Averaging:
    """Rounds of inner steps of an optimizer. Each round ends with an exchange between the ranks.

    It hooks into ``optimizer.step()``, so the training loop stays as it is. Subclasses define the values of an exchange and the
    use of its result.
    """

    _call = "Averaging"

    def __init__(
        self,
        fragments: Sequence[Any],
        optimizer: torch.optim.Optimizer,
        rounds: Rounds,
        wire: Wire,
    ) -> None:
        """``fragments`` are modules or lists of parameters. The subclass calls :meth:`_join` when it is ready to save its state."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"{self._call}: the optimizer is a {type(optimizer).__name__}, not one of torch.optim")
        self._fragments = [FlatParameters(self._call, parameters_of(self._call, fragment)) for fragment in fragments]
        seen = [id(parameter) for flat in self._fragments for parameter in flat.parameters]
        if len(set(seen)) != len(seen):
            raise ValueError(f"{self._call}: two fragments have a parameter in common; pass each parameter in one fragment only")
        self._buffers: list[torch.Tensor] = []
        self._optimizer, self._rounds, self._wire = optimizer, rounds, wire
        self._step = 0
        self._is_closed = False
        self._pending: Exchange | None = None
        self.rounds = 0
        """How many exchanges this rank has applied; equal on all ranks between rounds."""

    def _follow_buffers(self, model: Any) -> None:
        """Also give a joining rank the buffers of these modules."""
        modules = [model] if isinstance(model, torch.nn.Module) else model
        self._buffers = [buffer for module in modules if isinstance(module, torch.nn.Module) for buffer in module.buffers()]

    def _join(self, group: Any, elastic: bool, **options: Any) -> None:
        """Meet the other ranks, load the state of the furthest one, and follow the optimizer's steps from here on."""
        self._settings = self._all_settings()
        self._members: ElasticMembers | FixedMembers
        if elastic:
            if group is not None and not isinstance(group, Communicator):
                what = "a process group of torch cannot change its members"
                raise ConfigError(f"{self._call}: {what}; with elastic=True pass what herringbone.init() gives, or no group")
            self._members = ElasticMembers(_Shared(self), group, **options)
        else:
            given = [name for name, value in options.items() if value != _RIGID[name]]
            if given:
                raise ValueError(f"{self._call}: {given[0]} is for elastic members; pass elastic=True, too")
            self._members = FixedMembers(communicator_of(self._call, group, _LACKS), _Shared(self))
        self._hooks = [
            self._optimizer.register_step_pre_hook(lambda _, given, named: self._before_step(*given[1:], **named)),
            self._optimizer.register_step_post_hook(lambda *_: self._after_step()),
        ]
        self._members.begin()

    @property
    def communicator(self) -> Communicator:
        """The group of the exchanges; its ``rank`` and ``size`` refer to the present members."""
        return self._members.communicator

    @property
    def leaving(self) -> bool:
        """Whether this process was sent SIGTERM and has to leave after a round; for elastic members only."""
        return self._members.leaving

    def sync(self) -> None:
        """End the round now, after any number of inner steps. All ranks end the same number of rounds.

        Raises:
            HerringboneError: the exchange failed. The parameters are still this rank's own, and the round can be ended again.
        """
        if self._pending is None:
            self._pending = self._exchange()
        averages = self._members.settle(self._pending)
        self._pending = None
        if averages is not None:
            self._apply(self._rounds.fragment(self.rounds), averages)
            self.rounds += 1
        self._step = 0
        self._members.begin()

    def regroup(self, group: Any = None) -> None:
        """Continue with another group of torch, or communicator, after ranks of the old one were lost. All its ranks call this.

        If the loss ended the exchange on this rank but not on others, it gets their state. A failed exchange is repeated with
        the same values.

        Raises:
            ClosedError: :meth:`close` was called.
            HerringboneError: the ranks did not come together.
        """
        if self._is_closed:
            raise ClosedError(f"{self._call}.regroup: it is closed; make a new {self._call} over the group")
        is_void = self._members.regroup(communicator_of(self._call, group, _LACKS))
        if is_void:
            self._forget_round()
        elif self._is_due():
            self.sync()
        elif self._pending is not None:
            self._members.issue(self._pending)

    def close(self) -> None:
        """Stop following the optimizer, and leave the group of the exchanges. The current round is dropped.

        A second call does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        self._members.close()
        if self._pending is not None:
            self._pending.abandon()
            self._pending = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @in_words_of("averaging")
    def state_dict(self) -> dict[str, Any]:
        """The state for this rank's checkpoint, next to the model's and the inner optimizer's; ``torch.save`` can write it.

        It has the number of the round and of its inner steps so far, and the values that all ranks have in common. It also has
        the state of the outer optimizer, and the residuals. All ranks call it after the same step of a round. It waits for a
        running exchange.

        Raises:
            HerringboneError: the running exchange failed. The next step ends or repeats it.
        """
        averages = None
        if self._pending is not None:
            self._pending.issue(self.communicator)
            averages = FlatParameters.tensors(self._pending.wait())
        return {
            "version": 1,
            "rounds": self.rounds,
            "step": self._step,
            "averages": averages,
            "parameters": [flat.described() for flat in self._fragments],
            "residuals": self._wire.saved_residuals(),
            **self._own_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called, on all ranks. Load the model's and the inner optimizer's states first.

        Raises:
            TypeError, ArgumentError: the state is not from the same class and model. Nothing is changed.
        """
        call = f"{self._call}.load_state_dict"
        check_state(call, state, [flat.described() for flat in self._fragments])
        if state.get("residuals") is not None:
            Residuals().load_state_dict(state["residuals"])  # raises before anything is changed
        averages = None if state["averages"] is None else self._loaded_averages(call, state)
        self._load_own_state(call, state)
        if state.get("residuals") is not None and self._wire.residuals is not None:
            self._wire.residuals.load_state_dict(state["residuals"])
        self.rounds, self._step = state["rounds"], state["step"]
        self._members.count(self.rounds)
        self._pending = None if averages is None else Exchange.over(averages, self._wire, self._name())

    def _loaded_averages(self, call: str, state: Mapping[str, Any]) -> list[Array]:
        """The results of an exchange that had started."""
        return self._fragments[self._rounds.fragment(state["rounds"])].arrays(call, state, "averages")

    def _save(self) -> dict[str, Any]:
        """The state for a joining rank: the values that all ranks have in common, and this rank's buffers and optimizer
        state."""
        return {
            "rounds": self.rounds,
            "common": self._common(),
            "buffers": [buffer.detach() for buffer in self._buffers],
            "optimizer": self._optimizer.state_dict(),
            "more": self._save_more(),
        }

    def _load(self, state: dict[str, Any]) -> bool:
        """Load the state of the furthest rank, if this rank is new or behind; returns whether it was."""
        common = state["common"]
        own = self._common()
        if state["rounds"] == self.rounds and all(map(_equal, own, common)):
            return False
        is_new = state["rounds"] != self.rounds + 1 or self._step == 0
        self._load_common(
            [flat.checked(self._call, "rank's common state", given) for flat, given in zip(self._fragments, common, strict=True)],
            is_new,
        )
        if is_new:
            with torch.no_grad():
                for buffer, given in zip(self._buffers, state["buffers"], strict=True):
                    buffer.copy_(torch.as_tensor(given))
            if state["optimizer"]["state"]:
                self._optimizer.load_state_dict(state["optimizer"])
        self._load_more(state["more"])
        self.rounds = state["rounds"]
        self._step = 0
        return True

    def _before_step(self, closure: Any = None) -> None:
        """Called before a step of the optimizer."""

    def _after_step(self) -> None:
        """Called after an inner step of the optimizer."""
        self._step += 1
        due = self._rounds.due(self._step)
        if due is Due.ISSUE:
            self._pending = self._exchange()
            self._members.issue(self._pending)
        elif due is Due.APPLY:
            self.sync()

    def _is_due(self) -> bool:
        """Whether the round's exchange has to end."""
        return self._rounds.due(self._step) is Due.APPLY

    def _forget_round(self) -> None:
        if self._pending is not None:
            self._pending.abandon()
        self._pending, self._step = None, 0

    def _name(self) -> str:
        """The name of the fragment's residuals."""
        return f"fragment {self._rounds.fragment(self.rounds)}"

    def _exchange(self) -> Exchange:
        """This rank's values for the round's exchange."""
        fragment = self._rounds.fragment(self.rounds)
        return Exchange(self._contribution(fragment), self._wire, self._name())

    def _all_settings(self) -> dict[str, str]:
        """The settings that must be the same on all ranks, as texts by name; learning rates are the initial ones."""
        wire = self._wire
        settings = {"the class": self._call, **self._own_settings(), "fragments": str(len(self._fragments))}
        settings |= {"wire": str(wire.codec), "bucket_bytes": str(wire.bucket_bytes)}
        for fragment, flat in enumerate(self._fragments):
            for number, text in enumerate(flat.described()):
                settings[f"parameter {number} of fragment {fragment}"] = text
        return settings

    def _own_settings(self) -> dict[str, str]:
        """The settings that the class adds."""
        return {}

    def _common(self) -> list[list[Array]]:
        """The values that all ranks have in common between rounds, for each fragment."""
        raise NotImplementedError

    def _load_common(self, common: list[list[Array]], is_new: bool) -> None:
        """Load the values that the others have in common. A rank that is not new keeps its own parameters where they are not
        exchanged."""
        raise NotImplementedError

    def _own_state(self) -> dict[str, Any]:
        """The entries that the class adds to :meth:`state_dict`."""
        raise NotImplementedError

    def _load_own_state(self, call: str, state: Mapping[str, Any]) -> None:
        """The same for :meth:`load_state_dict`; raises before it changes anything."""
        raise NotImplementedError

    def _save_more(self) -> Any:
        return None

    def _load_more(self, more: Any) -> None:
        pass

    def _contribution(self, fragment: int) -> list[Array]:
        raise NotImplementedError

    def _apply(self, fragment: int, averages: list[Array]) -> None:
        raise NotImplementedError


class _Shared:
    """An :class:`Averaging` as the members see it: a :class:`herringbone.optim.members.State`."""

    def __init__(self, owner: Averaging) -> None:
        self._owner = owner
        self.call, self.settings = owner._call, owner._settings

    @property
    def rounds(self) -> int:
        return self._owner.rounds

    def save(self) -> dict[str, Any]:
        return self._owner._save()

    def load(self, state: dict[str, Any]) -> bool:
        return self._owner._load(state)


def _equal(one: Sequence[Array], other: Sequence[Any]) -> bool:
    """Whether two ranks have the same bits."""
    return len(one) == len(other) and all(
        np.array_equal(mine, np.asarray(given), equal_nan=True) for mine, given in zip(one, other)
    )
