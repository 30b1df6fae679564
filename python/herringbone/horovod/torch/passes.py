"""Tracks which gradients of an optimizer are ready: each is after a step's number of backward passes."""

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
    """The common part of both kinds of optimizers: they count backward passes, and refuse calls that would lose gradients."""

    _parameter_names: dict[torch.Tensor, str]
    _left: dict[torch.Tensor, int]
    """How many more passes each parameter's gradient gets before it is reduced."""
    _compression: type[Compressor]
    _residuals: Residuals
    _corrector: Corrector | None
    """The correction of gradients before the codec, if any."""
    _steps: int
    _process_set: ProcessSet
    _op: ReduceOp
    _predivide: float
    _sparse_as_dense: bool

    def _begin(self, passes: int, groups: Groups | None) -> None:
        self.set_backward_passes_per_step(passes)
        self._watched: dict[torch.Tensor, None] = {}
        """The parameters whose gradients are watched, in the order of the groups; empty if nothing is reduced."""
        self._watches = False

    def compression_state_dict(self) -> dict[str, Any]:
        """The residuals of this rank's gradients, as tensors: see :meth:`herringbone.Residuals.state_dict`.

        They are no part of ``state_dict()``, because they differ from rank to rank: each rank saves its own. With
        ``Compression.corrected`` they are the entry ``residuals``, next to ``steps`` and other entries.
        """
        left = self._residuals.state_dict().items()
        residuals = {tensor: {**kept, "left": torch.from_numpy(kept["left"])} for tensor, kept in left}
        if self._corrector is None:
            return residuals
        return {"residuals": residuals, **self._corrections()}

    def _corrections(self) -> dict[str, Any]:
        """The number of ``steps`` made, and the corrections' state on this rank without residuals; empty without
        corrections."""
        return {} if self._corrector is None else {"steps": self._steps, **self._corrector.state_dict()}

    def _take_corrections(self, kept: Mapping[str, Any]) -> None:
        """Continue from a result of :meth:`_corrections`; parts that are missing in it start from zero."""
        if self._corrector is not None:
            self._corrector.load({"velocities": {}, "rates": [], **kept})
            self._steps = kept["steps"]

    def load_compression_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the residuals by the ones that :meth:`compression_state_dict` has returned on this rank.

        Raises:
            TypeError, ArgumentError: the state is not from that method; nothing is changed.
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
            raise TypeError(
                f"{LOAD}: the state's residuals are not dictionaries by tensor; pass the result of compression_state_dict"
            )
        left = {tensor: {**each, "codec": self._corrector.left_by(each.get("codec"))} for tensor, each in residuals.items()}
        self._residuals.load_state_dict(left)
        self._corrector.load(kept)
        self._steps = steps

    if TYPE_CHECKING:  # each kind has its own

        def synchronize(self) -> None:
            """Wait until all gradients are reduced, for instance to clip them before the step."""

        def skip_synchronize(self) -> AbstractContextManager[None]:
            """A block in which ``step()`` does not wait for the gradients, because ``synchronize()`` was called before it."""
            ...

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many ``backward()`` calls come before each ``step()``, from now on."""
        self.backward_passes_per_step = passes
        self._begin_passes()

    def _watch(self) -> None:
        """Get a call for each gradient that is ready, as long as this optimizer lives."""
        self._watches = True
        self._watch_new()

    def _watch_new(self) -> None:
        """Also watch parameters that need gradients only now: their group was added later, or they were frozen before."""
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
    """A name for a parameter that the program has not named, by its place in the optimizer, as in Horovod."""
    return f"allreduce.noname.{group}.{number}"


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, or zeros if there is none, because another rank might have used this part of the model."""
    if parameter.grad is None:
        zeros = or_lacking(lambda: torch.zeros_like(parameter), parameter, parameter.dtype)
        if isinstance(zeros, Lacking):
            return zeros
        parameter.grad = zeros
    return parameter.grad.detach()
