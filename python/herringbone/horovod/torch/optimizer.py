"""An optimizer that uses the gradients of all ranks."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import torch

from ...arguments import whole
from ...compression import Residuals
from ...torch.corrector import Corrector
from ...torch.tensors import Lacking, contiguous, or_lacking
from ..common.basics import size
from ..common.handles import synchronize
from ..common.operations import Adasum, Average, ReduceOp, Sum, predivisor
from ..common.process_sets import ProcessSet, check_set, global_process_set
from ..common.util import split_list
from ..common.world import required
from .compression import Compression, Compressor, coded
from .functions import broadcast_object, load_in_place
from .passes import Groups, Passes, gradient_of, unnamed
from .reductions import allreduce_async_, grouped_allreduce_async_, sparse_allreduce_async

__all__ = ["DistributedOptimizer"]

ZEROED_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)
SYNCHRONIZED_TWICE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). "
    "This can cause training slowdown. You may want to consider using optimizer.skip_synchronize() context "
    "if you use optimizer.synchronize() in your code."
)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Passes:
    """Make ``optimizer`` step with all ranks' gradients. Each gradient is reduced as soon as ``backward()`` has computed it.

    The result's class inherits the optimizer's, and shares its parameters, options and state.

    Args:
        named_parameters: usually ``model.named_parameters()``; ranks match gradients by these names.
        compression: how gradients are compressed before they are sent.
        backward_passes_per_step: how many ``backward()`` calls come before each ``step()``.
        op: how gradients are reduced.
        gradient_predivide_factor: with ``Average``, gradients are divided by it before the sum, and by the rest after it.
        num_groups: the older name of ``groups``.
        groups: the number of groups of gradients that are reduced together, or a list of such groups of parameters.
        sparse_as_dense: whether sparse gradients are sent as dense ones.
        process_set: the ranks that take part.

    Raises:
        ValueError: names are missing or not unique, or arguments do not fit each other.
        TypeError: ``optimizer`` is not one of torch's, or is a DistributedOptimizer already.
        NotImplementedError: Adasum does not support these ranks.
    """
    check_set(process_set, "DistributedOptimizer")
    _check_optimizer(optimizer)
    gradient_predivide_factor = predivisor(gradient_predivide_factor)
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if whole("DistributedOptimizer", "backward_passes_per_step", backward_passes_per_step, "a whole number") <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    kind: type[Passes] = _Reducing
    if op == Adasum and size() > 1:
        if process_set.process_set_id != 0:
            raise NotImplementedError("Adasum does not support non-global process sets yet.")
        kind = _MergingSteps
    made: Any = type(type(optimizer).__name__, (kind, type(optimizer)), {"__module__": __name__})
    wrapped: Passes = made.__new__(made)
    # A learning rate's schedule has put its own `step` into the optimizer, which would bypass this one.
    vars(wrapped).update({name: value for name, value in vars(optimizer).items() if name != "step"})
    wrapped._parameter_names = _named(optimizer, named_parameters)
    wrapped._compression = compression
    wrapped._residuals = Residuals()
    wrapped._corrector = _corrector_of(compression, optimizer, op)
    wrapped._steps = 0
    wrapped._process_set = process_set
    wrapped._op = ReduceOp(op)
    wrapped._predivide = gradient_predivide_factor
    wrapped._sparse_as_dense = sparse_as_dense
    wrapped._begin(backward_passes_per_step, _checked(groups))
    return wrapped


class _Reducing(Passes):
    """Reduces the gradients, and then lets the optimizer make its step."""

    def _begin(self, passes: int, groups: Groups | None) -> None:
        super()._begin(passes, groups)
        self._handles: dict[Any, tuple[Any, Any]] = {}
        """For each parameter, or tuple of parameters: its running operation, and the context for decompressing it."""
        self._synchronized = False
        self._should_synchronize = True
        self._begun = False
        """Whether the codec of this step is chosen."""
        self._step_compression = self._compression
        self._group_of: dict[torch.Tensor, tuple[torch.Tensor, ...]] = {}
        self._here: dict[tuple[torch.Tensor, ...], int] = {}
        world = required()
        # A correction also applies with one rank, because the optimizer has no momentum of its own then.
        if self._process_set.included() and (world.size > 1 or world.settings.elastic or self._corrector is not None):
            if groups:
                self._form(groups)
            self._watch()

    def _form(self, groups: Groups) -> None:
        """The parameters whose gradients are reduced together: on all ranks in rank 0's order."""
        parameters = [each for group in self.param_groups for each in group["params"] if each.requires_grad]
        first = self._process_set.ranks[0]
        order = broadcast_object([self._parameter_names[each] for each in parameters], first, process_set=self._process_set)
        place = {name: at for at, name in enumerate(order)}
        parameters.sort(key=lambda each: place[self._parameter_names[each]])
        formed: list[list[torch.Tensor]]
        if isinstance(groups, int):
            formed = split_list(parameters, groups)
        else:
            known, given = set(parameters), {each for group in groups for each in group}
            formed = [[each for each in group if each in known] for group in groups]
            formed += [[each] for each in parameters if each not in given]
        for members in map(tuple, filter(None, formed)):
            self._here[members] = 0
            self._group_of.update(dict.fromkeys(members, members))

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        super()._gradient_is_there(parameter)
        if self._left[parameter] > 0:
            self._handles.setdefault(parameter, (None, None))
            return
        members = self._group_of.get(parameter)
        if members is None:
            self._handles[parameter] = self._reduce(parameter)
            return
        self._here[members] += 1
        self._handles[parameter] = (None, None)
        if self._here[members] == len(members):
            self._reduce_group(members)

    def _reduce(self, parameter: torch.Tensor) -> tuple[Any, Any]:
        tensor, name = gradient_of(parameter), self._parameter_names[parameter]
        if tensor.is_sparse and not self._sparse_as_dense:
            if self._corrector is not None:
                raise ValueError(
                    f"DistributedOptimizer: the gradient of {name} is sparse, but Compression.corrected is for dense ones; pass "
                    "sparse_as_dense=True, or the codec alone"
                )
            return sparse_allreduce_async(tensor, name, self._op, self._process_set), None
        narrow, context = self._compressed(parameter, tensor)
        return allreduce_async_(narrow, name=name, **self._how()), context

    def _reduce_group(self, members: tuple[torch.Tensor, ...]) -> None:
        for each in members:
            self._handles.pop(each, None)
        narrow = [self._compressed(each, gradient_of(each)) for each in members]
        name = self._parameter_names[members[0]]
        handle = grouped_allreduce_async_([tensor for tensor, _ in narrow], name=name, **self._how())
        self._handles[members] = (handle, [context for _, context in narrow])
        self._here[members] = 0

    def _compressed(self, parameter: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, Any]:
        dense = or_lacking(gradient.to_dense, gradient, gradient.dtype) if gradient.is_sparse else gradient
        dense = contiguous(dense)
        if self._corrector is not None:
            self._corrector.correct(self._parameter_names[parameter], dense)
        return self._compression.compress(dense)

    def _how(self) -> dict[str, Any]:
        """The common arguments of all reductions; only averages are divided before and multiplied after."""
        divisor = self._predivide if self._op == Average else 1.0
        if self._corrector is not None and not self._begun:
            self._step_compression = coded(self._corrector.begin(self._steps, self._residuals, self))
            self._begun = True
        return {
            "op": self._op,
            "prescale_factor": 1.0 / divisor,
            "postscale_factor": divisor,
            "process_set": self._process_set,
            "compression": self._compression if self._corrector is None else self._step_compression,
            "residuals": self._residuals,
        }

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, for instance to clip them before the step."""
        if self._process_set.included():
            try:
                self._reduce_what_is_left()
                self._take_all()
                self._steps += self._begun
            finally:
                # Gradients that could not be reduced must not stay, and neither must their step: the next step has other gradients.
                self._handles = {}
                self._here = dict.fromkeys(self._here, 0)
                self._begun = False
                self._begin_passes()
        self._synchronized = True

    def _reduce_what_is_left(self) -> None:
        """Also reduce parameters that had no gradient here, because other ranks wait for them."""
        self._watch_new()
        begun = {each for key in self._handles for each in (key if isinstance(key, tuple) else (key,))}
        late = [each for each in self._watched if each not in begun]
        late += [key for key, (handle, _) in self._handles.items() if handle is None]
        for members in dict.fromkeys(self._group_of[each] for each in late if each in self._group_of):
            self._reduce_group(members)
        for parameter in late:
            if parameter not in self._group_of:
                self._handles[parameter] = self._reduce(parameter)

    def _take_all(self) -> None:
        """Wait for all reductions, even if one fails, because the next step's have the same names."""
        waiting = deque(self._handles.items())
        try:
            while waiting:
                parameter, (handle, context) = waiting.popleft()
                self._take(parameter, handle, context)
                self._mask(parameter)
        except Exception:
            for _, (handle, _) in waiting:
                with suppress(Exception):  # the first failure counts
                    handle() if callable(handle) else synchronize(handle)
            raise

    def _take(self, parameter: Any, handle: Any, context: Any) -> None:
        """Wait for a reduction, and make its result the gradient."""
        if isinstance(parameter, tuple):
            for each, reduced, its in zip(parameter, synchronize(handle), context, strict=True):
                self._set_gradient(each, self._compression.decompress(reduced, its))
        elif callable(handle):
            parameter.grad = handle()
        else:
            self._set_gradient(parameter, self._compression.decompress(synchronize(handle), context))

    def _mask(self, parameter: Any) -> None:
        """Mask the velocities of the elements that a reduction has sent, by the names of its residuals."""
        if self._corrector is None or not self._corrector.masks:
            return
        members = parameter if isinstance(parameter, tuple) else (parameter,)
        call = "grouped_allreduce" if isinstance(parameter, tuple) else "allreduce"
        base = f"{call}.{self._parameter_names[members[0]]}"
        for number, each in enumerate(members, 1):
            name = f"{base}_{number}of{len(members)}" if isinstance(parameter, tuple) else base
            self._corrector.mask([self._parameter_names[each]], self._residuals._left(name))

    def _set_gradient(self, parameter: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            parameter.grad = reduced.to_sparse(gradient.sparse_dim())
        elif gradient.data_ptr() != reduced.data_ptr():
            with torch.no_grad():
                gradient.copy_(reduced)

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside this block ``step()`` does not synchronize, because the program has."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait until all gradients are reduced, and make the step."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(SYNCHRONIZED_TWICE, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return super().step(closure)

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Forget the gradients.

        Raises:
            AssertionError: they are being reduced.
        """
        if self._handles:
            raise AssertionError(ZEROED_TOO_EARLY)
        super().zero_grad(*arguments, **named)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a state, and forget the running operations and their step. The number of steps of corrections stays."""
        self._handles.clear()
        self._here = dict.fromkeys(self._here, 0)
        self._begun = False
        self._synchronized, self._should_synchronize = False, True
        self._begin_passes()
        load_in_place(self, state_dict)


class _MergingSteps(Passes):
    """Adasum: each rank makes its own step, and the steps are merged."""

    def _begin(self, passes: int, groups: Groups | None) -> None:
        super()._begin(passes, groups)
        self._stepped = True
        self._watch()

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        super()._gradient_is_there(parameter)
        self._stepped = False

    def synchronize(self) -> None:
        """Do nothing, because only the step has something to wait for."""

    def skip_synchronize(self) -> NoReturn:
        """Not supported with Adasum.

        Raises:
            AssertionError: always.
        """
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make this rank's step, and replace it by the merged one."""
        loss = closure() if closure is not None else None
        self._watch_new()
        starts = [_start_of(each) for each in self._watched]
        super().step()
        handles = []
        for each, start in zip(self._watched, starts, strict=True):
            narrow, context = self._compression.compress(_moved(each.detach(), start))
            handles.append((allreduce_async_(contiguous(narrow), None, self._parameter_names[each], Adasum), context))
        with torch.no_grad():
            for each, start, (handle, context) in zip(self._watched, starts, handles, strict=True):
                each.copy_(start + self._compression.decompress(synchronize(handle), context))
        self._begin_passes()
        self._stepped = True
        return loss

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """Forget the gradients.

        Raises:
            AssertionError: no step was made with them, although all backward passes for it are done.
        """
        if not self._stepped and any(left == 0 for left in self._left.values()):
            raise AssertionError(ZEROED_TOO_EARLY)
        super().zero_grad(*arguments, **named)


def _start_of(parameter: torch.Tensor) -> torch.Tensor:
    """The values at the begin of a step for a parameter with a gradient; a placeholder if memory for them is lacking."""
    gradient = gradient_of(parameter)
    return gradient if isinstance(gradient, Lacking) else or_lacking(parameter.detach().clone, parameter, parameter.dtype)


def _moved(parameter: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """How far a step has moved a parameter."""
    return start if isinstance(start, Lacking) else or_lacking(lambda: parameter - start, parameter, parameter.dtype)


def _check_optimizer(optimizer: Any) -> None:
    """Check that an optimizer can be made distributed.

    Raises:
        TypeError: as in :func:`DistributedOptimizer`.
    """
    if isinstance(optimizer, Passes):
        raise TypeError(
            "DistributedOptimizer: the optimizer is a DistributedOptimizer already, so its gradients would be reduced twice; pass the "
            "optimizer that it was made from"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"DistributedOptimizer: optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")


def _corrector_of(compression: type[Compressor], optimizer: torch.optim.Optimizer, op: int) -> Corrector | None:
    """The correction of gradients before the codec, if any.

    Raises:
        ValueError: it does not fit the operation.
        ConfigError: the optimizer has momentum, too.
    """
    correction = getattr(compression, "correction", None)
    if correction is None:
        return None
    if op not in (Average, Sum):
        raise ValueError(
            "DistributedOptimizer: Compression.corrected is for op=Average and op=Sum; other operations are not compressed"
        )
    corrector = Corrector("DistributedOptimizer", str(compression.codec), **correction)
    corrector.check_momentum(optimizer)
    return corrector


def _named(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, torch.Tensor]] | None
) -> dict[torch.Tensor, str]:
    """The name of each parameter.

    Raises:
        ValueError: names are missing or not unique.
    """
    if named_parameters is None:
        named = [
            (unnamed(at, number), parameter)
            for at, group in enumerate(optimizer.param_groups)
            for number, parameter in enumerate(group["params"])
        ]
    else:
        named = list(named_parameters)
    if any(not isinstance(each, tuple) for each in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters()."
        )
    twice = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    known = {id(parameter) for _, parameter in named}
    missing = [id(each) for group in optimizer.param_groups for each in group["params"] if id(each) not in known]
    if missing:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            f"Python object ids: {', '.join(map(str, missing))}"
        )
    return {parameter: name for name, parameter in named}


def _checked(groups: Groups | None) -> Groups | None:
    """``groups``, after a check.

    Raises:
        ValueError: they are invalid.
    """
    if groups is None:
        return None
    if not isinstance(groups, list):
        if not isinstance(groups, int) or groups < 0:
            raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
        return groups
    members: Sequence[torch.Tensor] = [each for group in groups for each in group]
    if any(not isinstance(each, torch.Tensor) for each in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(each) for each in members}) < len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return groups
