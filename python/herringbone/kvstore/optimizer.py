"""Optimizers by name: what a store applies to a pushed gradient. They are plain numbers and arrays, and nothing is unpickled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..communicator import Communicator
from ..errors import ArgumentError
from ..plain import pack, unpack
from .held import Held
from .rules import FRACTIONS, LATEST, NAMES, Parameters, check_numbers, known_numbers, number, rate_of
from .schedulers import LRScheduler, scheduler_of

__all__ = ["Optimizer", "agreed", "chosen_optimizer", "create_optimizer", "described", "of_described", "settle"]

Schedule = Callable[[int], float]
"""A learning rate by the number of updates."""
OF_KEYS = ("lr_mult", "wd_mult", "param_idx2name")
REFUSED = -1
"""In place of a length: rank 0 has no bytes to send."""
OWN = "own"
"""What stands for a program's own scheduler, which does not travel."""


@dataclass
class _Settings:
    """What programs may change of an optimizer while it is in use. The stores that use it look at it at each push."""

    name: str
    params: Parameters
    lr_scheduler: Schedule | None = None
    multi_precision: bool = False
    begin_num_update: int = 0
    num_update: int = 0
    lr_mult: dict[Any, float] = field(default_factory=dict)
    wd_mult: dict[Any, float] = field(default_factory=dict)
    param_idx2name: dict[Any, str] = field(default_factory=dict)


class Optimizer:
    """An optimizer and its state of each key; :func:`create_optimizer` makes one.

    ``params`` has its numbers. What is changed here, or by the setters, holds for the next push of each key, also in a store of
    several workers, if all of them change it; what the optimizer keeps, such as a momentum, stays.
    """

    def __init__(self, settings: _Settings) -> None:
        """For :func:`create_optimizer`."""
        self._settings = settings
        self._counts: dict[Any, int] = {}
        self._held: dict[Any, Held] = {}
        self._restored: dict[Any, dict[str, Any]] = {}
        self._checked: Parameters = {}
        self._user: Callable[[], Any] = lambda: None

    @property
    def name(self) -> str:
        """MXNet's name of it."""
        return self._settings.name

    @property
    def params(self) -> Parameters:
        """Its numbers, by name."""
        return self._settings.params

    @params.setter
    def params(self, params: Mapping[str, Any]) -> None:
        self._settings.params = dict(params)

    @property
    def lr_scheduler(self) -> Schedule | None:
        """What gives the learning rate for a number of updates; ``None``: it is ``params["learning_rate"]``."""
        return self._settings.lr_scheduler

    @property
    def multi_precision(self) -> bool:
        """Whether weights of float16 are kept in float32, too."""
        return self._settings.multi_precision

    @property
    def num_update(self) -> int:
        """How many updates the key has had that has had most."""
        return self._settings.num_update

    @property
    def learning_rate(self) -> float:
        """The learning rate after the updates so far, without any key's multiplier."""
        schedule = self.lr_scheduler
        return float(self.params["learning_rate"] if schedule is None else schedule(self.num_update))

    def set_learning_rate(self, lr: float) -> None:
        """Have another learning rate from the next push on.

        Raises:
            ArgumentError: a scheduler decides about it.
        """
        if self.lr_scheduler is not None:
            raise ArgumentError("set_learning_rate: the optimizer has an lr_scheduler, which gives the rate; change its base_lr")
        self.params["learning_rate"] = number("learning_rate", lr)

    @property
    def lr_mult(self) -> dict[Any, float]:
        """What the learning rate is multiplied by, by key or by a key's name in ``param_idx2name``; 1 for all others."""
        return self._settings.lr_mult

    @property
    def wd_mult(self) -> dict[Any, float]:
        """As :attr:`lr_mult`, of the weight decay."""
        return self._settings.wd_mult

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Replace all of :attr:`lr_mult`."""
        self._settings.lr_mult = _multipliers("set_lr_mult", args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Replace all of :attr:`wd_mult`."""
        self._settings.wd_mult = _multipliers("set_wd_mult", args_wd_mult)

    def check(self, call: str, key: Any, weight: Any) -> None:
        """Refuse a weight that steps of fractions cannot change."""
        if weight.dtype.name not in FRACTIONS:
            raise ArgumentError(
                f"{call}: key {key!r} is {weight.dtype}, and the optimizer {self.name} needs a type with fractions, like float32"
            )

    def update(self, key: Any, gradient: Any, weight: Any) -> None:
        """Change ``weight``, a numpy array, by a gradient; the state of ``key`` goes on.

        A step that fails has changed neither weight nor state.
        """
        self.check("update", key, weight)
        self._step(key, self._next_numbers("update", key), gradient, weight)

    def _next_numbers(self, call: str, key: Any, workers: int = 1) -> Parameters:
        """The numbers of the next update of a key, which they count.

        Args:
            workers: so many workers update the key for each time that this one does.

        Raises:
            ArgumentError: there is one among them that the optimizer cannot have.
        """
        settings, numbers = self._settings, self._numbers_of(call, key, workers)
        self._counts[key] = self._count_after(key, workers)
        settings.num_update = max(settings.num_update, self._counts[key])
        return numbers

    def _count_after(self, key: Any, workers: int) -> int:
        """How many updates a key has had after the next one."""
        return self._counts.get(key, self._settings.begin_num_update) + workers

    def _check_next(self, call: str, keys: Iterable[Any], workers: int) -> None:
        """Refuse updates of keys, one after the other, of which any has a number that the optimizer cannot have.

        It counts none of them. The arguments and errors are those of :meth:`_next_numbers`.
        """
        most = self._settings.num_update
        for key in keys:
            most = max(most, self._count_after(key, workers))
            self._numbers_of(call, key, workers, most)

    def _begin_at(self, key: Any, updates: int) -> None:
        """Have a key count on from updates that an earlier process of this worker has counted."""
        settings = self._settings
        self._counts[key] = settings.begin_num_update + updates
        settings.num_update = max(settings.num_update, self._counts[key])

    def _take_back(self, key: Any) -> None:
        """Do not count an update of a key that there was not."""
        settings, counted = self._settings, self._counts.get(key, 0)
        if counted <= settings.begin_num_update:  # a program has given it other states since
            return
        self._counts[key] = counted - 1
        if settings.num_update == counted:
            settings.num_update = max(settings.begin_num_update, *self._counts.values())

    def _numbers_of(self, call: str, key: Any, workers: int = 1, most: int = 0) -> Parameters:
        """The numbers of the next update of a key, with the key's multipliers. They do not count it.

        Args:
            most: how many updates there have been before, if that is more than those that are counted.

        Raises:
            ArgumentError: there is one among them that the optimizer cannot have.
        """
        settings, given = self._settings, dict(self.params)
        if settings.lr_scheduler is not None:
            updates = max(most, settings.num_update, self._count_after(key, workers))
            rate = settings.lr_scheduler(updates)
            given["learning_rate"] = rate_of(call, f"the rate of the lr_scheduler for update {updates}", rate)
        for name, multipliers in (("learning_rate", settings.lr_mult), ("wd", settings.wd_mult)):
            multiplier = rate_of(
                call,
                f"the multiplier of {name} of key {key!r}",
                multipliers.get(key, multipliers.get(settings.param_idx2name.get(key), 1)),
            )
            if multiplier != 1:
                given[name] = given[name] * multiplier
        if given != self._checked:
            check_numbers(call, self.name, given)
            self._checked = dict(given)
        return given

    def _step(self, key: Any, numbers: Parameters, gradient: Any, weight: Any) -> None:
        """Change ``weight`` as :meth:`update` does, with numbers of :meth:`_next_numbers`."""
        import numpy as np

        held = self._held.get(key)
        if held is None:
            # MXNet corrects the bias by the number of the update, which goes on from there.
            before = self._restored.get(key, {"step": self._settings.begin_num_update})
            held = Held(self.name, numbers, weight, self.multi_precision, before)
        if held.fits != (weight.shape, weight.dtype):
            raise ArgumentError(f"update: key {key!r} was of shape {held.fits[0]} and {held.fits[1]}, and is of another now")
        gradients = np.ascontiguousarray(np.broadcast_to(np.asarray(gradient), weight.shape), held.dtype)
        held.step(numbers, weight, gradients)
        self._held[key] = held
        self._restored.pop(key, None)

    @property
    def states(self) -> dict[Any, dict[str, Any]]:
        """What it keeps of each key: ``"step"``, the number of its last update, and arrays by their names."""
        return {**self._restored, **{key: held.state() for key, held in self._held.items()}}

    @states.setter
    def states(self, states: dict[Any, dict[str, Any]]) -> None:
        self._held, self._restored = {}, dict(states)
        begin = self._settings.begin_num_update
        steps = {key: int(state["step"]) for key, state in states.items()}
        # States with fewer steps are of an optimizer that began at 0.
        self._counts = {key: step if step >= begin else begin + step for key, step in steps.items()}
        self._settings.num_update = max([begin, *self._counts.values()])

    def _twin(self) -> Optimizer:
        """One with the same settings, which both have from now on, and states of its own, of no key."""
        return Optimizer(self._settings)

    def _of_user(self, store: Any) -> Optimizer:
        """This one, for the first store that asks for it, and a :meth:`_twin` for any other while that one uses it."""
        user = self._user()
        used: Optimizer | None = None if user is None else user.optimizer
        if user is not store and used is self:
            return self._twin()
        self._user = weakref.ref(store)
        return self

    def _has_settings_of(self, other: Optimizer | None) -> bool:
        """Whether it is a :meth:`_twin` of another one, or that one."""
        return other is not None and self._settings is other._settings

    def __repr__(self) -> str:
        return f"<Optimizer {self.name} {self.params}>"


def create_optimizer(
    name: str,
    *,
    lr_scheduler: Schedule | None = None,
    multi_precision: bool = False,
    begin_num_update: int = 0,
    param_idx2name: Mapping[Any, str] | None = None,
    **params: Any,
) -> Optimizer:
    """An optimizer by MXNet's name, or ``test``, which adds the gradient.

    The names are ``sgd``, ``nag``, ``adam``, ``adamw``, ``adagrad``, ``rmsprop``, ``lamb``, ``ftrl`` and ``signum``. All take
    ``learning_rate``, ``wd``, ``rescale_grad`` and ``clip_gradient``; ``sgd``, ``nag`` and ``signum`` take ``momentum``; ``adam``,
    ``adamw`` and ``lamb`` take ``beta1``, ``beta2`` and ``epsilon``, ``adagrad`` takes ``epsilon``, ``rmsprop`` takes ``rho`` and
    ``epsilon``. ``adamw`` takes ``correct_bias``, ``lamb`` takes ``bias_correction``, ``lower_bound`` and ``upper_bound``, ``ftrl`` takes
    ``lamda1`` and ``beta``, ``signum`` takes ``wd_lh``. Defaults are MXNet's. A bound of ``None``, or not above 0, binds nothing.

    Args:
        lr_scheduler: the learning rate for a number of updates, which are those of the key that has most: one of
            :mod:`herringbone.kvstore`, or any callable. A ``learning_rate`` that is given, too, becomes its ``base_lr``.
        multi_precision: keep weights of float16 in float32, too, and have the steps change these.
        begin_num_update: how many updates of each key there were before, at most 4,294,967,294. Schedulers and the corrections of
            ``adam``, ``adamw`` and ``lamb`` go on from there; on servers the corrections count the steps there.
        param_idx2name: names of keys, for the multipliers of rates and decays.

    Raises:
        ArgumentError, TypeError: there is no such optimizer, or it cannot have one of the numbers.
    """
    if not isinstance(name, str) or name.lower() not in NAMES:
        raise ArgumentError(f"create_optimizer: no optimizer is called {name!r}; use one of {', '.join(NAMES)}")
    name = name.lower()
    known = known_numbers(name)
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise ArgumentError(f"create_optimizer: {name} takes no {', '.join(unknown)}; it takes {', '.join(known)}")
    if isinstance(begin_num_update, bool) or not isinstance(begin_num_update, int) or not 0 <= begin_num_update < LATEST:
        raise ArgumentError(
            f"create_optimizer: begin_num_update is {begin_num_update!r}; pass a whole number from 0, below {LATEST:,}"
        )
    if lr_scheduler is not None:
        if not callable(lr_scheduler):
            what = type(lr_scheduler).__name__
            raise TypeError(f"create_optimizer: lr_scheduler is a {what}; pass one of herringbone.kvstore, or a function")
        if "learning_rate" in params and isinstance(lr_scheduler, LRScheduler):
            lr_scheduler.base_lr = float(params["learning_rate"])
    settings = _Settings(
        name=name,
        params=known | {given: number(given, value) for given, value in params.items()},
        lr_scheduler=lr_scheduler,
        multi_precision=bool(multi_precision),
        begin_num_update=begin_num_update,
        num_update=begin_num_update,
        param_idx2name=dict(param_idx2name or {}),
    )
    check_numbers("create_optimizer", name, settings.params)
    return Optimizer(settings)


def chosen_optimizer(call: str, optimizer: Any) -> Optimizer:
    """An optimizer that a program passes, or the one of this name."""
    chosen = create_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
    if not isinstance(chosen, Optimizer):
        raise TypeError(f"{call}: optimizer is a {type(chosen).__name__}; make it with create_optimizer(name)")
    return chosen


def _multipliers(call: str, given: Any) -> dict[Any, float]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{call}: pass a dict from keys, or from their names, to numbers; not a {type(given).__name__}")
    return {key: float(number("a multiplier", multiplier)) for key, multiplier in given.items()}  # type: ignore[arg-type]


def agreed(communicator: Communicator, optimizer: Optimizer) -> Optimizer:
    """Rank 0's settings, in an optimizer that shares them with the one that this worker passed.

    Raises:
        TypeError: rank 0's optimizer holds something that does not travel; on rank 0.
        ArgumentError: it does; on the others. Or rank 0 has a scheduler of its own, and this worker none; on this worker.
    """
    import numpy as np

    packed, refused = np.zeros(0, np.uint8), None
    try:
        if communicator.rank == 0:
            packed = described(optimizer)
    except TypeError as error:
        refused = error
    length = np.array([REFUSED if refused else packed.size], np.int64)
    communicator.broadcast(length)
    if refused is not None:
        raise refused
    if length[0] == REFUSED:
        raise ArgumentError("set_optimizer: rank 0's optimizer holds something that does not travel; its own error says what")
    packed = np.resize(packed, int(length[0]))
    communicator.broadcast(packed)
    settle(optimizer, packed)
    return optimizer._twin()


def described(optimizer: Optimizer, with_keys: bool = True) -> Any:
    """Its settings as an array of bytes. Of a scheduler that is a program's own it says only that there is one.

    Args:
        with_keys: what it has for single keys, too.
    """
    given = {name: value for name, value in vars(optimizer._settings).items() if with_keys or name not in OF_KEYS}
    scheduler = given["lr_scheduler"]
    if scheduler is not None:
        given["lr_scheduler"] = scheduler._described() if _travels(scheduler) else OWN
    return pack("set_optimizer", given)


def settle(optimizer: Optimizer, packed: Any, needs_scheduler: bool = True) -> None:
    """Give an optimizer the settings that :func:`described` tells of. A scheduler of the program's own stays, and so does the
    object of one of the same kind.

    Raises:
        ArgumentError: it needs a scheduler that does not travel, and has none.
    """
    given = unpack("set_optimizer", packed)
    scheduler = given.pop("lr_scheduler")
    if scheduler == OWN:
        if needs_scheduler and optimizer.lr_scheduler is None:
            raise ArgumentError(
                "set_optimizer: rank 0's optimizer has an lr_scheduler of its own, which does not travel; pass the same optimizer on "
                "all workers, or use a scheduler of herringbone.kvstore"
            )
    else:
        had = optimizer.lr_scheduler
        optimizer._settings.lr_scheduler = None if scheduler is None else scheduler_of(scheduler, had)
    for name, value in given.items():
        setattr(optimizer._settings, name, value)


def of_described(packed: Any, like: Optimizer | None = None) -> Optimizer:
    """The optimizer that :func:`described` tells of, which shares nothing with another one.

    Args:
        like: whose multipliers and scheduler of a program's own it has; without it, it has none.
    """
    made = create_optimizer("sgd")
    if like is not None:
        for name in OF_KEYS:
            setattr(made._settings, name, dict(getattr(like._settings, name)))
        made._settings.lr_scheduler = None if _travels(like.lr_scheduler) else like.lr_scheduler
    settle(made, packed, needs_scheduler=False)
    return made


def _travels(scheduler: Schedule | None) -> bool:
    """Whether other workers can make it: it is of a kind of this package, and a program has put nothing into it but plain values."""
    return isinstance(scheduler, LRScheduler) and scheduler._is_known()
