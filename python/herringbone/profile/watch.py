"""Observes a script's training: hooks on the model, its parameters and optimizers pass times to a :class:`Recorder`."""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import finding
from .problems import ProfileError, Stopped
from .steps import Recorder, Step

__all__ = ["Watch"]


class Watch:
    """From :meth:`install` to :meth:`remove` it observes a training, and stops it when it has enough steps.

    The first step of an optimizer shows which parameters are trained. The next forward shows which of the modules with these
    parameters is the model. Until then only optimizers and ``torch.autograd.backward`` are hooked.
    """

    def __init__(self, warm_up: int, steps: int, on_model: Callable[[], None] = lambda: None, sums: bool = True) -> None:
        """``on_model`` is called when the model is found, while the script's process group exists. Without ``sums`` DDP stops
        summing then."""
        self.warm_up, self._most, self._on_model, self._sums = warm_up, steps, on_model, sums
        self.outermost: torch.nn.Module | None = None
        """The model, in its wrappers, once it is found."""
        self.wrapper: DistributedDataParallel | None = None
        """The DistributedDataParallel around the model, if there is one."""
        self.reported: list[list[int]] = []
        """DDP's report about its buckets, as from :func:`finding.reported_buckets`."""
        self.backwards = 0
        """Backward passes so far."""
        self._recorder = Recorder()
        self._search = _Search()
        self._undo: list[Callable[[], None]] = []
        self._depth = 0

    @property
    def model(self) -> torch.nn.Module:
        """The model without its wrappers, once it is found."""
        assert self.outermost is not None
        return finding.inner(self.outermost)

    @property
    def measured(self) -> list[Step]:
        """The steps after the warm-up."""
        return self._recorder.steps[self._skipped :]

    @property
    def seen(self) -> int:
        """Steps so far, including the warm-up."""
        return self._search.rounds + len(self._recorder.steps)

    @property
    def _skipped(self) -> int:
        return max(0, self.warm_up - self._search.rounds)

    def install(self) -> None:
        """Begin to observe, in this process only: a process that the script forks trains as without this."""
        in_child = weakref.WeakMethod(self.remove)
        os.register_at_fork(after_in_child=lambda: (remove := in_child()) and remove())
        before, after = register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)
        self._undo += [before.remove, after.remove, self._wrap_backward()]

    def remove(self) -> None:
        """Stop observing; the script then runs as without this. The last step is completed, if an optimizer has stepped in
        it."""
        self._recorder.finish()
        self._search.close()
        while self._undo:
            self._undo.pop()()

    def _wrap_backward(self) -> Callable[[], None]:
        """Observe ``torch.autograd.backward``, which ``Tensor.backward`` calls; the returned function undoes this."""
        original = torch.autograd.backward

        @functools.wraps(original)
        def heard(*arguments: Any, **options: Any) -> Any:
            self.backwards += 1
            self._recorder.backward_begins(time.perf_counter())
            try:
                return original(*arguments, **options)
            finally:
                self._recorder.backward_ends(time.perf_counter())

        torch.autograd.backward = heard

        def undo() -> None:
            torch.autograd.backward = original

        return undo

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self._recorder.in_backward:
            self._stop(
                f"{type(optimizer).__name__} steps within the backward pass, so their times cannot be separated: for the profile, step it "
                "after backward()"
            )
        self._recorder.optimizer_begins(time.perf_counter())

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        now = time.perf_counter()
        self._recorder.optimizer_ends(now)
        try:
            if self.outermost is None:
                self._search.step(optimizer, self._chosen)
            elif not self._search.closed:
                self._search.close()
                self._recorder.step_begins(time.perf_counter())
            self._search.check(optimizer, self.outermost)
        except ProfileError as problem:
            self._stop(str(problem))

    def _chosen(self, module: torch.nn.Module) -> None:
        """Called when a forward of this module begins: it is the model, or a wrapper of it."""
        if self.outermost is not None or not torch.is_grad_enabled():
            return
        self.outermost = module
        try:
            parameters = finding.outline(self.model)
        except ProfileError as problem:
            self._stop(str(problem))
        self._on_model()
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad:
                tensor: Any = parameter
                hook = tensor.register_post_accumulate_grad_hook(functools.partial(self._ready, index))
                self._undo.append(hook.remove)
        self.wrapper = finding.wrapper_of(module)
        if self.wrapper is not None and not self._sums:
            try:
                finding.leave_sums_out(self.wrapper)
            except ProfileError as problem:
                self._stop(str(problem))
        heard = module if self.wrapper is None or self.wrapper is not module else self.wrapper.module
        self._undo.append(around(heard, self._forward_begins, self._forward_ends))

    def _ready(self, index: int, _: torch.Tensor) -> None:
        self._recorder.gradient_ready(index, time.perf_counter())

    def _forward_begins(self) -> None:
        if torch.is_grad_enabled() and self._recorder.forward_begins(time.perf_counter()):
            self._ask_buckets()
            if len(self.measured) >= self._most:
                self._stop(None)

    def _ask_buckets(self) -> None:
        """Ask DDP for its buckets. It makes them in the second step, and reports them as long as its group exists."""
        if self.wrapper is not None and not self.reported:
            self.reported = finding.reported_buckets(self.wrapper)

    def _forward_ends(self) -> None:
        self._recorder.forward_ends(time.perf_counter())

    def _stop(self, problem: str | None) -> None:
        self.remove()
        raise Stopped(problem)


class _Search:
    """Looks for the model from the first optimizer's step to the first forward of a module that has its parameters."""

    def __init__(self) -> None:
        self.rounds = 0
        """Steps of the first optimizer so far."""
        self.closed = False
        self._first: torch.optim.Optimizer | None = None
        self._checked: set[int] = set()
        self._candidates: list[torch.nn.Module] = []
        self._undo: list[Callable[[], None]] = []

    def step(self, optimizer: torch.optim.Optimizer, chosen: Callable[[torch.nn.Module], None]) -> None:
        """Called when an optimizer has stepped without a forward of any candidate since its last step."""
        if self._first is None:
            self._first = optimizer
            self._candidates = finding.candidates(optimizer)
        elif optimizer is self._first:
            self._release()
            names = ", ".join(type(each).__name__ for each in self._candidates)
            self._candidates = finding.children_of(self._candidates, finding.parameters_of(optimizer))
            if not self._candidates:
                raise ProfileError(
                    f"the script trains {names} without calling it or a module in it that has all its parameters: call the model "
                    "as model(input), so that its forward can be timed"
                )
        else:
            return
        self.rounds += 1
        for module in self._candidates:
            self._undo.append(around(module, functools.partial(chosen, module), lambda: None))

    def check(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
        """Refuse an optimizer for another model."""
        if model is None or id(optimizer) in self._checked:
            return
        self._checked.add(id(optimizer))
        if not finding.parameters_of(optimizer) <= {id(parameter) for parameter in model.parameters()}:
            raise ProfileError(
                f"{type(optimizer).__name__} updates parameters that {type(finding.inner(model)).__name__} does not have, so the script trains several "
                "models. A profile has one: put them into one torch.nn.Module, or profile a script that trains one of them"
            )

    def close(self) -> None:
        """End the search; its last step is included in the steps that were seen."""
        if not self.closed and self._first is not None:
            self.rounds += 1
        self.closed = True
        self._release()

    def _release(self) -> None:
        while self._undo:
            self._undo.pop()()


def around(module: torch.nn.Module, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
    """Call these functions before and after each call of a module; the returned function undoes this.

    If ``module.compile()`` has compiled the module, hooks would be compiled with it, so its call is wrapped instead.
    """
    compiled = module._compiled_call_impl
    if compiled is None:
        handles = [
            module.register_forward_pre_hook(lambda *_: before()),
            module.register_forward_hook(lambda *_: after(), always_call=True),
        ]

        def remove() -> None:
            for handle in handles:
                handle.remove()

        return remove

    listening = True

    @functools.wraps(compiled)
    def heard(*arguments: Any, **options: Any) -> Any:
        if not listening:
            return compiled(*arguments, **options)
        before()
        try:
            return compiled(*arguments, **options)
        finally:
            after()

    module._compiled_call_impl = heard

    def restore() -> None:
        nonlocal listening
        listening = False
        # Another wrapper can be around this one, and continues.
        if module._compiled_call_impl is heard:
            module._compiled_call_impl = compiled

    return restore
