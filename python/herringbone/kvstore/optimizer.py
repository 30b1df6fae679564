"""Optimizers by name, which a store applies to pushed gradients. They are plain numbers and arrays, and nothing is
unpickled."""

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
"""Sent instead of a length: rank 0 has no bytes to send."""
OWN = "own"
"""The placeholder for a program's own scheduler, which cannot be sent."""


@dataclass
class _Settings:
    """The settings of an optimizer that programs can change while it is in use. Stores read them at each push."""

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
    """An optimizer and its state for each key; :func:`create_optimizer` makes one.

    ``params`` has its numbers. Changes here, or by the setters, apply from the next push of each key. In a store of several
    workers all of them make the same change. The optimizer's state, such as a momentum, stays.
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
        """MXNet's name for it."""
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
        """Computes the learning rate from the number of updates; without one it is ``params["learning_rate"]``."""
        return self._settings.lr_scheduler

    @property
    def multi_precision(self) -> bool:
        """Whether weights of float16 are also kept in float32."""
        return self._settings.multi_precision

    @property
    def num_update(self) -> int:
        """The largest number of updates of any key."""
        return self._settings.num_update

    @property
    def learning_rate(self) -> float:
        """The learning rate after the updates so far, without any key's multiplier."""
        schedule = self.lr_scheduler
        return float(self.params["learning_rate"] if schedule is None else schedule(self.num_update))

    def set_learning_rate(self, lr: float) -> None:
        """Use another learning rate from the next push on.

        Raises:
            ArgumentError: a scheduler determines it.
        """
        if self.lr_scheduler is not None:
            raise ArgumentError("set_learning_rate: the optimizer has an lr_scheduler, which gives the rate; change its base_lr")
        self.params["learning_rate"] = number("learning_rate", lr)

    @property
    def lr_mult(self) -> dict[Any, float]:
        """Factors of the learning rate, by key or by a key's name in ``param_idx2name``; 1 for all others."""
        return self._settings.lr_mult

    @property
    def wd_mult(self) -> dict[Any, float]:
        """Like :attr:`lr_mult`, for the weight decay."""
        return self._settings.wd_mult

    def set_lr_mult(self, args_lr_mult: Mapping[Any, float]) -> None:
        """Replace :attr:`lr_mult`."""
        self._settings.lr_mult = _multipliers("set_lr_mult", args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Mapping[Any, float]) -> None:
        """Replace :attr:`wd_mult`."""
        self._settings.wd_mult = _multipliers("set_wd_mult", args_wd_mult)

    def check(self, call: str, key: Any, weight: Any) -> None:
        """Refuse a weight whose type has no fractions."""
        if weight.dtype.name not in FRACTIONS:
            raise ArgumentError(
                f"{call}: key {key!r} is {weight.dtype}, but the optimizer {self.name} needs a type with fractions, like float32"
            )

    def update(self, key: Any, gradient: Any, weight: Any) -> None:
        """Change ``weight``, a numpy array, by a gradient, with the state of ``key``.

        A step that fails has changed neither weight nor state.
        """
        self.check("update", key, weight)
        self._step(key, self._next_numbers("update", key), gradient, weight)

    def _next_numbers(self, call: str, key: Any, workers: int = 1) -> Parameters:
        """The numbers for the next update of a key. This counts the update.

        Args:
            workers: how many workers update the key each time that this one does.

        Raises:
            ArgumentError: one of the numbers is invalid for the optimizer.
        """
        settings, numbers = self._settings, self._numbers_of(call, key, workers)
        self._counts[key] = self._count_after(key, workers)
        settings.num_update = max(settings.num_update, self._counts[key])
        return numbers

    def _count_after(self, key: Any, workers: int) -> int:
        """How many updates a key has had after the next one."""
        return self._counts.get(key, self._settings.begin_num_update) + workers

    def _check_next(self, call: str, keys: Iterable[Any], workers: int) -> None:
        """Refuse a series of updates of keys if any has a number that is invalid for the optimizer.

        This counts no update. Arguments and errors are as in :meth:`_next_numbers`.
        """
        most = self._settings.num_update
        for key in keys:
            most = max(most, self._count_after(key, workers))
            self._numbers_of(call, key, workers, most)

    def _begin_at(self, key: Any, updates: int) -> None:
        """Continue the count of a key's updates from an earlier process of this worker."""
        settings = self._settings
        self._counts[key] = settings.begin_num_update + updates
        settings.num_update = max(settings.num_update, self._counts[key])

    def _take_back(self, key: Any) -> None:
        """Take back the count of an update of a key that did not happen."""
        settings, counted = self._settings, self._counts.get(key, 0)
        if counted <= settings.begin_num_update:  # a program has given it other states since
            return
        self._counts[key] = counted - 1
        if settings.num_update == counted:
            settings.num_update = max(settings.begin_num_update, *self._counts.values())

    def _numbers_of(self, call: str, key: Any, workers: int = 1, most: int = 0) -> Parameters:
        """The numbers for the next update of a key, with the key's multipliers, without counting it.

        Args:
            most: the number of earlier updates, if it is larger than the count.

        Raises:
            ArgumentError: one of the numbers is invalid for the optimizer.
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
        """Change ``weight`` like :meth:`update`, with the result of :meth:`_next_numbers`."""
        import numpy as np

        held = self._held.get(key)
        if held is None:
            # MXNet corrects the bias by the number of the update, which continues from there.
            before = self._restored.get(key, {"step": self._settings.begin_num_update})
            held = Held(self.name, numbers, weight, self.multi_precision, before)
        if held.fits != (weight.shape, weight.dtype):
            raise ArgumentError(
                f"update: key {key!r} had shape {held.fits[0]} and type {held.fits[1]} before; pass the same, or another key"
            )
        gradients = np.ascontiguousarray(np.broadcast_to(np.asarray(gradient), weight.shape), held.dtype)
        held.step(numbers, weight, gradients)
        self._held[key] = held
        self._restored.pop(key, None)

    @property
    def states(self) -> dict[Any, dict[str, Any]]:
        """The state of each key: ``"step"``, the number of its last update, and arrays by their names."""
        return {**self._restored, **{key: held.state() for key, held in self._held.items()}}

    @states.setter
    def states(self, states: dict[Any, dict[str, Any]]) -> None:
        self._held, self._restored = {}, dict(states)
        begin = self._settings.begin_num_update
        steps = {key: int(state["step"]) for key, state in states.items()}
        # States with fewer steps come from an optimizer that began at 0.
        self._counts = {key: step if step >= begin else begin + step for key, step in steps.items()}
        self._settings.num_update = max([begin, *self._counts.values()])

    def _twin(self) -> Optimizer:
        """An optimizer that shares this one's settings from now on, and has its own, empty states."""
        return Optimizer(self._settings)

    def _of_user(self, store: Any) -> Optimizer:
        """This optimizer for the first store that asks for it, and a :meth:`_twin` for other stores as long as that one uses
        it."""
        user = self._user()
        used: Optimizer | None = None if user is None else user.optimizer
        if user is not store and used is self:
            return self._twin()
        self._user = weakref.ref(store)
        return self

    def _has_settings_of(self, other: Optimizer | None) -> bool:
        """Whether it shares its settings with another optimizer (:meth:`_twin`), or is the same."""
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
    ``learning_rate``, ``wd``, ``rescale_grad`` and ``clip_gradient``; ``sgd``, ``nag`` and ``signum`` take ``momentum``;
    ``adam``, ``adamw`` and ``lamb`` take ``beta1``, ``beta2`` and ``epsilon``, ``adagrad`` takes ``epsilon``, ``rmsprop`` takes
    ``rho`` and ``epsilon``. ``adamw`` takes ``correct_bias``, ``lamb`` takes ``bias_correction``, ``lower_bound`` and
    ``upper_bound``, ``ftrl`` takes ``lamda1`` and ``beta``, ``signum`` takes ``wd_lh``. Defaults are MXNet's. A bound of
    ``None``, or not above 0, has no effect.

    Args:
        lr_scheduler: computes the learning rate from the largest number of updates of any key: a scheduler of
            :mod:`herringbone.kvstore`, or any callable. A ``learning_rate`` that is also given becomes its ``base_lr``.
        multi_precision: also keep weights of float16 in float32, and let the steps change these.
        begin_num_update: the number of earlier updates of each key, at most 4,294,967,294. Schedulers and the corrections of
            ``adam``, ``adamw`` and ``lamb`` continue from there; on servers the corrections use the number of steps there.
        param_idx2name: names of keys, for the multipliers of rates and decays.

    Raises:
        ArgumentError, TypeError: the optimizer is unknown, or one of the numbers is invalid for it.
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
        TypeError: on rank 0, if its optimizer contains something that cannot be sent.
        ArgumentError: on the others in this case; or on a worker without a scheduler if rank 0 has a scheduler of its own.
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
        raise ArgumentError("set_optimizer: rank 0's optimizer contains something that cannot be sent; its own error says what")
    packed = np.resize(packed, int(length[0]))
    communicator.broadcast(packed)
    settle(optimizer, packed)
    return optimizer._twin()


def described(optimizer: Optimizer, with_keys: bool = True) -> Any:
    """Its settings as an array of bytes. A program's own scheduler appears only as a placeholder.

    Args:
        with_keys: include settings for single keys.
    """
    given = {name: value for name, value in vars(optimizer._settings).items() if with_keys or name not in OF_KEYS}
    scheduler = given["lr_scheduler"]
    if scheduler is not None:
        given["lr_scheduler"] = scheduler._described() if _travels(scheduler) else OWN
    return pack("set_optimizer", given)


def settle(optimizer: Optimizer, packed: Any, needs_scheduler: bool = True) -> None:
    """Give an optimizer the settings from :func:`described`. A program's own scheduler stays, and so does a scheduler object of
    the same kind.

    Raises:
        ArgumentError: it needs a scheduler that cannot be sent, and has none.
    """
    given = unpack("set_optimizer", packed)
    scheduler = given.pop("lr_scheduler")
    if scheduler == OWN:
        if needs_scheduler and optimizer.lr_scheduler is None:
            raise ArgumentError(
                "set_optimizer: rank 0's optimizer has an lr_scheduler of its own, which cannot be sent; pass the same optimizer on "
                "all workers, or use a scheduler of herringbone.kvstore"
            )
    else:
        had = optimizer.lr_scheduler
        optimizer._settings.lr_scheduler = None if scheduler is None else scheduler_of(scheduler, had)
    for name, value in given.items():
        setattr(optimizer._settings, name, value)


def of_described(packed: Any, like: Optimizer | None = None) -> Optimizer:
    """A new optimizer with the settings from :func:`described`, which shares nothing with another one.

    Args:
        like: the optimizer whose multipliers and own scheduler it gets; without it, it has none.
    """
    made = create_optimizer("sgd")
    if like is not None:
        for name in OF_KEYS:
            setattr(made._settings, name, dict(getattr(like._settings, name)))
        made._settings.lr_scheduler = None if _travels(like.lr_scheduler) else like.lr_scheduler
    settle(made, packed, needs_scheduler=False)
    return made


def _travels(scheduler: Schedule | None) -> bool:
    """Whether other workers can rebuild it: its class is from this package, and the program has put only plain values into
    it."""
    return isinstance(scheduler, LRScheduler) and scheduler._is_known()
