"""Which gradients of an optimizer are there: each after as many backward passes as a step takes."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ...compression import LOAD, Residuals
from ...torch.corrector import Corrector, checked_steps
from ...torch.tensors import Lacking, or_lacking
from ..common.operations import ReduceOp
from ..common.process_sets import ProcessSet
from .compression import Compressor

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Groups", "Passes", "gradient_of", "unnamed"]

Groups = int | list[list[torch.Tensor]]

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)


class Passes(torch.optim.Optimizer):
    """What both kinds of optimizers have in common: they count backward passes, and refuse what would lose gradients."""

    _parameter_names: dict[torch.Tensor, str]
    _left: dict[torch.Tensor, int]
    """How many passes each parameter's gradient still gets before it is reduced."""
    _compression: type[Compressor]
    _residuals: Residuals
    _corrector: Corrector | None
    """What is done to gradients before the codec, if anything."""
    _steps: int
    _process_set: ProcessSet
    _op: ReduceOp
    _predivide: float
    _sparse_as_dense: bool

    def _begin(self, passes: int, groups: Groups | None) -> None:
        self.set_backward_passes_per_step(passes)
        self._watched: dict[torch.Tensor, None] = {}
        """The parameters whose gradients are heard of, in the order of the groups; there are none where nothing is reduced."""
        self._watches = False

    def compression_state_dict(self) -> dict[str, Any]:
        """What a codec of the engine has left of this rank's gradients, as tensors: see :meth:`herringbone.Residuals.state_dict`.

        It is no part of ``state_dict()``, because it differs from rank to rank: each rank saves its own. With
        ``Compression.corrected`` these are the ``residuals`` of the state, beside ``steps`` and what else is kept.
        """
        left = self._residuals.state_dict().items()
        residuals = {tensor: {**kept, "left": torch.from_numpy(kept["left"])} for tensor, kept in left}
        if self._corrector is None:
            return residuals
        return {"residuals": residuals, **self._corrections()}

    def _corrections(self) -> dict[str, Any]:
        """The ``steps`` that are made, and what corrections have kept on this rank, without residuals; nothing without corrections."""
        return {} if self._corrector is None else {"steps": self._steps, **self._corrector.state_dict()}

    def _take_corrections(self, kept: Mapping[str, Any]) -> None:
        """Go on from what :meth:`_corrections` gave; what is left out of it starts anew."""
        if self._corrector is not None:
            self._corrector.load({"velocities": {}, "rates": [], **kept})
            self._steps = kept["steps"]

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what was left when :meth:`compression_state_dict` was called on this rank.

        Raises:
            TypeError, ArgumentError: it is not what that gave, and nothing is changed.
        """
        if self._corrector is None:
            self._residuals.load_state_dict(state)
            return
        if not isinstance(state, Mapping) or not {"residuals", "steps"} <= state.keys():
            what = "the state lacks residuals or steps; pass what an optimizer with Compression.corrected saved"
            raise TypeError(f"{LOAD}: {what}")
        steps, residuals = checked_steps(LOAD, state["steps"]), state["residuals"]
        elements = {name: parameter.numel() for parameter, name in self._parameter_names.items()}
        kept = self._corrector.checked(LOAD, state, elements)
        if not isinstance(residuals, Mapping) or not all(isinstance(each, Mapping) for each in residuals.values()):
            raise TypeError(f"{LOAD}: the state's residuals are no dictionaries by tensor; pass what compression_state_dict gave")
        left = {tensor: {**each, "codec": self._corrector.left_by(each.get("codec"))} for tensor, each in residuals.items()}
        self._residuals.load_state_dict(left)
        self._corrector.load(kept)
        self._steps = steps

    if TYPE_CHECKING:  # each kind has its own

        def synchronize(self) -> None:
            """Wait until all gradients are reduced, for instance to clip them before the step."""

        def skip_synchronize(self) -> AbstractContextManager[None]:
            """A block in which ``step()`` does not wait for the gradients: ``synchronize()`` has been called before it."""
            ...

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many ``backward()`` come before each ``step()``, from now on."""
        self.backward_passes_per_step = passes
        self._begin_passes()

    def _watch(self) -> None:
        """Hear of each gradient that is there, as long as this optimizer lives."""
        self._watches = True
        self._watch_new()

    def _watch_new(self) -> None:
        """Hear of parameters, too, that need gradients only now: the program has added their group, or has frozen them before."""
        if not self._watches:
            return
        this = weakref.ref(self)

        def hear(parameter: torch.Tensor) -> None:
            optimizer = this()
            if optimizer is not None:
                optimizer._gradient_is_there(parameter)

        for at, group in enumerate(self.param_groups):
            for number, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._watched:
                    self._parameter_names.setdefault(parameter, unnamed(at, number))
                    self._watched[parameter] = None
                    self._left.setdefault(parameter, 0)
                    hook: Any = parameter.register_post_accumulate_grad_hook(hear)
                    weakref.finalize(self, hook.remove)

    def _gradient_is_there(self, parameter: torch.Tensor) -> None:
        """Count a pass of a parameter."""
        if self._left[parameter] <= 0:
            raise AssertionError(TOO_MANY_PASSES)
        assert parameter.grad is not None and not parameter.grad.requires_grad
        self._left[parameter] -= 1

    def _begin_passes(self) -> None:
        self._left = dict.fromkeys(self._parameter_names, self.backward_passes_per_step)


def unnamed(group: int, number: int) -> str:
    """The name of a parameter that the program has not named, by its place in the optimizer; it is Horovod's."""
    return f"allreduce.noname.{group}.{number}"


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, which is zeros if there is none: another rank's part of the model may have been another one, and given one."""
    if parameter.grad is None:
        zeros = or_lacking(lambda: torch.zeros_like(parameter), parameter, parameter.dtype)
        if isinstance(zeros, Lacking):
            return zeros
        parameter.grad = zeros
    return parameter.grad.detach()
