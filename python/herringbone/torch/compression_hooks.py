"""Compressed gradients for ``DistributedDataParallel``: a communication hook, and the environment's setting for one."""

import functools
import itertools
import logging
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import _herringbone, errors
from ..arguments import text
from ..compression import Residuals
from ..names import Codec
from .collectives import collectives_of
from .compressed import compression
from .corrector import Corrector, checked_steps
from .rearranged import Averaged, Layout, Pieces, Rearranged, pairs
from .tensors import Lacking, packed

__all__ = ["CompressionHook", "compress_if_asked", "compression_hook", "compression_hook_of"]

VARIABLE = "HERRINGBONE_COMPRESSION"

LOAD = "compression_hook.load_state_dict"

logger = logging.getLogger("herringbone")


# torch compares the annotations of a hook with its own types, so they must not be strings.
class CompressionHook:
    """A communication hook of ``DistributedDataParallel``; :func:`compression_hook` makes it."""

    def __init__(
        self,
        codec: Codec,
        *,
        feedback: bool = True,
        start_after: int = 0,
        exclude: Iterable[str] = (),
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
        name: str = "ddp",
        momentum: float = 0.0,
        nesterov: bool = False,
        warmup_steps: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
        masking: bool = False,
    ) -> None:
        """See :func:`compression_hook`."""
        text("compression_hook", "codec", codec, 'a codec\'s name, such as "int8"')
        if not isinstance(start_after, int) or start_after < 0:
            raise errors.ArgumentError(f"compression_hook: start_after is {start_after!r}; pass a number of steps, 0 or more")
        if isinstance(exclude, str):
            raise TypeError(f"compression_hook: exclude is {exclude!r}; pass a list of parts of names, as [{exclude!r}]")
        self.codec = _herringbone.codec(codec, or_auto=True)
        self.feedback, self.start_after, self.name = feedback, start_after, name
        follows_rate = optimizer is not None
        if follows_rate and not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"compression_hook: optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
        self._corrector = Corrector(
            "compression_hook", self.codec, momentum, nesterov, warmup_steps, follows_rate, masking, feedback
        )
        self._optimizer = optimizer
        if optimizer is not None:
            self._corrector.check_momentum(optimizer)
        self._step_codec = self.codec
        # The hook's name in DDP's own log.
        self.__name__ = self.__qualname__ = f"compression_hook({self.codec})"
        parts, parameters = list(exclude), dict(named_parameters)
        unknown = [part for part in parts if not any(part in known for known in parameters)]
        if unknown:
            raise errors.ConfigError(
                f"compression_hook: no parameter's name contains {unknown[0]!r}; pass named_parameters=model.named_parameters() "
                "and parts of their names"
            )
        self._excluded = {id(parameters[known]) for known in parameters for part in parts if part in known}
        self._steps = 0
        self._group: Any = None
        self._numbers: dict[int, int] = {}
        """The number of each parameter, by its identity, in the order in which DDP's first buckets have them."""
        self._layouts: dict[int, Layout] = {}
        """The parameters of each bucket, by the bucket's index."""
        self._resumed = False
        self._begun = False
        """Whether this process has reduced the gradients of a step."""
        self._direct: set[int] = set()
        """The buckets of this step that match :attr:`_layouts`, up to the first one that does not."""
        self._rearranged: Rearranged | None = None
        self._coded: dict[int, Layout] = {}
        """The parameters of each bucket that was coded in the step, if velocities are masked after it."""
        self._plain_said = False
        self._residuals = Residuals()

    def __call__(self, state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> Averaged:
        """Average a bucket over the ranks of ``state``, a process group; ``None`` is the default one."""
        self._group = dist.group.WORLD if state is None else state
        numbers = tuple(self._numbers.setdefault(id(parameter), len(self._numbers)) for parameter in bucket.parameters())
        suits = self._suits(bucket.buffer())
        if bucket.index() == 0:
            self._begin_step()
        for number, gradient in zip(numbers, bucket.gradients()):
            self._corrector.correct(number, gradient)
        is_plain = self._steps < self.start_after or not suits
        if not self._resumed:
            self._note(bucket.index(), numbers if suits else (), self.feedback and not is_plain)
        try:
            return averaged(bucket.buffer(), self._group) if is_plain else self._compressed(bucket, numbers)
        finally:
            if bucket.is_last():
                self._steps += 1
                self._begun = True

    def _begin_step(self) -> None:
        """Choose the codec of a step, even after a backward pass that failed between its buckets and so made no step."""
        self._direct.clear()
        self._rearranged = None
        self._mask()
        self._step_codec = self._corrector.begin(self._steps - self.start_after, self._residuals, self._optimizer)

    def _mask(self) -> None:
        """Mask the velocities of the elements that the last step has sent. That step's operations are over."""
        coded, self._coded = self._coded, {}
        excluded = {number for parameter, number in self._numbers.items() if parameter in self._excluded}
        for index, numbers in coded.items():
            self._corrector.mask(numbers, self._residuals._left(self._tensor(index)), excluded)

    def _note(self, index: int, numbers: Layout, is_fed: bool) -> None:
        """Remember the parameters of a bucket, and drop the residuals of buckets that no longer exist.

        Codecs work on blocks of a bucket, so a resumed training needs the same buckets, even where they have no residual. DDP
        rebuilds the buckets of its first step, so these are kept only if they have residuals.
        """
        if self._layouts.get(index, ()) == numbers:
            return
        stale = [other for other, layout in self._layouts.items() if other == index or not set(layout).isdisjoint(numbers)]
        for other in stale:
            del self._layouts[other]
            if self.feedback and self._steps > self.start_after:
                self._residuals.forget(self._tensor(other))
                what = "herringbone: the residual of %s for bucket %d is dropped, because DDP has rebuilt its buckets"
                logger.info(what, self.codec, other)
        if numbers and (is_fed or self._begun):
            self._layouts[index] = numbers

    def _compressed(self, bucket: Any, numbers: Layout) -> Averaged:
        """Average a bucket with compressed messages."""
        index = bucket.index()
        if self._resumed and (self._rearranged or self._layouts.get(index) != numbers):
            if self._rearranged is None:
                others = {other: layout for other, layout in self._layouts.items() if other not in self._direct}
                self._rearranged = Rearranged(others, self._reduced)
            return self._rearranged.add(bucket, numbers)
        self._direct.add(index)
        return self._reduced(index, bucket.buffer(), pairs(bucket))

    def _reduced(self, index: int, flat: torch.Tensor, pieces: Pieces) -> Averaged:
        """Average a bucket that contains excluded parameters."""
        if self._corrector.masks:
            self._coded[index] = tuple(self._numbers[id(parameter)] for parameter, _ in pieces)
        kept = [gradient for parameter, gradient in pieces if id(parameter) in self._excluded]
        plain = packed(kept) if kept else None
        for gradient in kept:
            gradient.zero_()
        tensor, owner = (self._tensor(index), self._residuals) if self.feedback else (None, None)
        with compression(self._step_codec, tensor, owner):
            reduced = averaged(flat, self._group)
        if plain is None:
            return reduced

        def put_back(futures: torch.futures.Future[list[Averaged]]) -> torch.Tensor:
            result, others = (future.value() for future in futures.value())
            for gradient, part in zip(kept, torch.split(others, [gradient.numel() for gradient in kept])):
                gradient.copy_(part.view_as(gradient))
            return result

        return torch.futures.collect_all([reduced, averaged(plain, self._group)]).then(put_back)

    def _suits(self, buffer: torch.Tensor) -> bool:
        if buffer.dtype == torch.float32:
            return True
        if not self._plain_said:
            logger.warning(
                "herringbone: gradients of %s are not compressed with %s, which is for float32", buffer.dtype, self.codec
            )
            self._plain_said = True
        return False

    def _tensor(self, index: int) -> str:
        """A bucket's name."""
        return f"{self.name}.bucket{index}"

    def state_dict(self, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
        """The residuals of this hook's buckets on this rank, for a checkpoint of this rank. ``group`` is not used.

        If the hook has momentum, or residuals that follow an optimizer, the state also has velocities and the last learning
        rates.
        """
        self._mask()
        mine = {tensor: kept for tensor, kept in self._residuals.state_dict().items() if kept["left"].size}
        left = {tensor: (kept["steps"], torch.from_numpy(kept["left"])) for tensor, kept in mine.items()}
        codecs = {tensor: kept["codec"] for tensor, kept in mine.items()}
        layouts = dict(self._layouts)
        return {"left": left, "codecs": codecs, "steps": self._steps, "layouts": layouts, **self._corrector.state_dict()}

    def load_state_dict(self, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
        """Load the result of :meth:`state_dict`, on the same rank.

        The resumed training equals an uninterrupted one, to the bit: gradients are grouped as before, whichever buckets DDP
        builds at first. The only exception is a state from before the second step, which does not have the later buckets.

        A state does not contain its rank or the number of ranks, so nothing checks them. With another rank's state, or another
        number of ranks, training continues but with other results. If the state belongs to another codec, its residuals are
        dropped, with one warning.

        Raises:
            TypeError, ArgumentError: the state is not from that method.
        """
        if not isinstance(state, Mapping) or not {"left", "steps", "layouts"} <= state.keys():
            raise TypeError(f"{LOAD}: the state lacks left, steps or layouts; pass the result of such a hook's state_dict")
        steps = checked_steps(LOAD, state["steps"])
        codecs = state.get("codecs", {})
        for part, held in (("left", state["left"]), ("layouts", state["layouts"]), ("codecs", codecs)):
            if not isinstance(held, Mapping):
                raise TypeError(f"{LOAD}: {part} is a {type(held).__name__}; pass the result of such a hook's state_dict")
        if odd := [tensor for tensor, kept in state["left"].items() if not _is_left(kept)]:
            raise TypeError(f"{LOAD}: the state of {odd[0]!r} is not a pair of steps and a tensor; pass it as it was saved")
        # The hook that saved it can have had another name: the environment's hooks are numbered in the order of their models.
        left = {
            self._tensor(_index_of(tensor)): {
                "steps": steps,
                "left": _array_of(tensor, left),
                "codec": self._corrector.left_by(codecs.get(tensor)),
            }
            for tensor, (steps, left) in state["left"].items()
        }
        layouts = {index: _layout_of(index, layout) for index, layout in state["layouts"].items()}
        kept = self._corrector.checked(LOAD, state)
        self._residuals._load(LOAD, left)
        self._corrector.load(kept)
        self._steps, self._layouts, self._coded = steps, layouts, {}
        self._resumed = bool(self._layouts)


def _is_left(kept: Any) -> bool:
    """Whether this can be the residual of a bucket: steps, and a tensor."""
    return isinstance(kept, (tuple, list)) and len(kept) == 2 and isinstance(kept[1], torch.Tensor)


def _array_of(tensor: str, left: torch.Tensor) -> Any:
    """The residual of a bucket, as an array.

    Raises:
        TypeError: numpy cannot use its memory.
    """
    try:
        return left.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{LOAD}: the residual of {tensor!r} cannot be read ({error}); pass it as it was saved") from None


def _layout_of(index: Any, layout: Any) -> Layout:
    """The numbers of a bucket's parameters, after a check.

    Raises:
        TypeError: they are invalid.
    """
    numbers = (index, *layout) if isinstance(layout, (tuple, list)) else ()
    if len(numbers) < 2 or not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError(
            f"{LOAD}: the layout of bucket {index!r} is {layout!r}, not numbers of parameters; pass it as it was saved"
        )
    return tuple(layout)


def _index_of(tensor: Any) -> int:
    """The number of a bucket, from the name that a hook has given it."""
    number = tensor.rpartition(".bucket")[2] if isinstance(tensor, str) else ""
    if not number.isdecimal():
        raise errors.ArgumentError(f"{LOAD}: {tensor!r} is not a bucket's name; pass the result of such a hook's state_dict")
    return int(number)


def compression_hook(
    codec: Codec,
    *,
    feedback: bool = True,
    start_after: int = 0,
    exclude: Iterable[str] = (),
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] = (),
    name: str = "ddp",
    momentum: float = 0.0,
    nesterov: bool = False,
    warmup_steps: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    masking: bool = False,
) -> CompressionHook:
    """A communication hook that averages gradients with compressed messages.

    Example::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, herringbone.torch.compression_hook("topk:0.01"))

    Args:
        codec: ``"bf16"``, ``"fp16"``, ``"int8"``, ``"onebit:THRESHOLD"``, ``"twobit:THRESHOLD"``, ``"sign"``,
            ``"topk:SHARE"``, ``"randomk:SHARE"``, ``"threshold:THRESHOLD"`` or ``"exact"``; or ``"auto"``, which uses bf16 or
            int8 for buckets where the plan expects less time, and needs ``HERRINGBONE_CALIBRATION``.
        feedback: whether to use error feedback.
        start_after: the number of first steps of each bucket that are not compressed.
        exclude: parts of the names of parameters whose gradients are not compressed.
        named_parameters: ``model.named_parameters()``, if parameters are excluded.
        name: the prefix of the buckets' names in a checkpoint.
        momentum: each rank accumulates its gradients with it before they are coded (momentum correction of Deep Gradient
            Compression), including excluded parameters. The optimizer must be ``torch.optim.SGD`` without momentum, and no
            ``GradScaler`` may scale gradients (bfloat16 needs none): a velocity keeps the scale in which it was accumulated.
        nesterov: Nesterov's momentum, as in BytePS.
        warmup_steps: the number of steps after ``start_after`` in which the share of ``topk`` or ``randomk`` falls from 1/4, in
            four stages.
        optimizer: if its learning rate falls, the residuals grow by the old rate over the new one, as in BytePS, so that their
            effect on the parameters stays the same. All its groups of parameters must have one schedule.
        masking: the velocity of a sent element restarts from zero (momentum factor masking of Deep Gradient Compression); it
            needs ``topk`` or ``randomk``, feedback and momentum.

    Raises:
        ValueError: no codec has this name, or a number makes no sense.
        TypeError: an argument has the wrong type.
        ConfigError: no parameter's name contains an entry of ``exclude``, or both the hook and the optimizer have momentum.
    """
    return CompressionHook(
        codec,
        feedback=feedback,
        start_after=start_after,
        exclude=exclude,
        named_parameters=named_parameters,
        name=name,
        momentum=momentum,
        nesterov=nesterov,
        warmup_steps=warmup_steps,
        optimizer=optimizer,
        masking=masking,
    )


def averaged(tensor: torch.Tensor, group: dist.ProcessGroup) -> Averaged:
    """A future of the tensor, which is averaged over the group in place."""
    if isinstance(tensor, Lacking):
        # torch has no backend for it.
        backend: Any = collectives_of(group)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.AVG
        future: Any = backend.allreduce([tensor], options).get_future()
    else:
        future = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group, async_op=True).get_future()
    reduced: Averaged = future.then(lambda done: done.value()[0])
    return reduced


_hooks: weakref.WeakKeyDictionary[Any, CompressionHook] = weakref.WeakKeyDictionary()
"""The hooks requested by the environment, by their models."""

_numbers = itertools.count(1)
"""The numbers of models with such a hook."""


def compression_hook_of(model: DistributedDataParallel) -> CompressionHook | None:
    """The hook of a model from ``HERRINGBONE_COMPRESSION``, or ``None``. Its state belongs into a checkpoint.

    Raises:
        ConfigError: the variable names no codec.
    """
    found: Any = model
    codec = os.environ.get(VARIABLE, "").strip()
    if found not in _hooks and codec not in ("", "none") and not found._comm_hooks:
        group = found.process_group
        if collectives_of(group) is not None:
            try:
                codec = _herringbone.codec(codec, or_auto=True)
            except ValueError as error:
                raise errors.ConfigError(f"{VARIABLE}: {error}") from None
            number = next(_numbers)
            hook = CompressionHook(codec, name=f"ddp{number}")
            if number == 1 and dist.get_rank() == 0:
                where = "where that is predicted to pay" if codec == "auto" else "from the first step on"
                logger.warning(
                    "herringbone: %s=%s: DDP's gradients are compressed %s, with error feedback", VARIABLE, codec, where
                )
            found.register_comm_hook(group, hook)
            _hooks[found] = hook
    return _hooks.get(found)


def compress_if_asked() -> None:
    """Let DDP over Herringbone's groups compress its gradients if the environment requests it.

    Only buckets of gradients are compressed, and only if the program has not registered its own hook before the first step.
    """
    if os.environ.get(VARIABLE, "").strip() in ("", "none"):
        return
    ddp: Any = DistributedDataParallel
    forward, looked = ddp._pre_forward, weakref.WeakSet[Any]()

    @functools.wraps(forward)
    def hooked(self: Any, *inputs: Any, **named: Any) -> Any:
        if self not in looked:
            compression_hook_of(self)
            looked.add(self)
        return forward(self, *inputs, **named)

    ddp._pre_forward = hooked
