"""Linear layers whose gradients are sent as factors: sufficient factor broadcasting.

::

    factors = factor_broadcast(model)                       # before DistributedDataParallel
    model = DistributedDataParallel(model)                  # for all other parameters

This module imports torch.
"""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.hooks import unserializable_hook

from ..arguments import whole
from ..errors import ArgumentError, UnsupportedError
from .factor_choice import LayerSize, explained, uses_factors

__all__ = ["FactorBroadcast", "factor_broadcast"]

_Factors = list[tuple[torch.Tensor, torch.Tensor]]
"""The factors of some products: (rows, outputs) and (rows, inputs)."""


def factor_broadcast(model: torch.nn.Module, *, rows: int | None = None, group: Any = None) -> FactorBroadcast:
    """Send the gradients of the model's ``torch.nn.Linear`` layers as factors where these are smaller.

    The gradient of a layer with N outputs and M inputs is the sum of u v^T over its rows (batch times tokens). u has N numbers,
    v has M. Each rank sends its u and v to all ranks, and computes the mean gradient from all of them, but never its own
    gradient.

    All ranks call this before DistributedDataParallel, which then leaves these layers alone, and get rank 0's parameters of
    these layers. The gradients are ready when ``backward()`` returns; several calls add up. ``backward()`` refuses a loss that
    also uses these layers' parameters directly, such as a sum of the weights' squares. A copy of the model, by
    ``copy.deepcopy`` or ``torch.save``, sends no factors. The names in ``state_dict()`` do not change.

    Source: Xie et al., "Lighter-Communication Distributed Machine Learning via Sufficient Factor Broadcasting" (UAI 2016).

    Args:
        rows: the most rows that a layer gets on a rank in a step. Layers whose factors would be larger stay with
            DistributedDataParallel. If it is ``None``, each step decides by the ranks' present rows, and other gradients are
            summed here.
        group: the process group of torch; by default torch's.

    Raises:
        TypeError: the model is not a module.
        ArgumentError: there is no process group, or the layers send factors already.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"factor_broadcast: model is a {type(model).__name__}; pass a torch.nn.Module")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise ArgumentError(
            "factor_broadcast: the model is in DistributedDataParallel already; call this before that, with the model itself"
        )
    if group is None and not dist.is_initialized():
        raise ArgumentError("factor_broadcast: there is no process group; call init_process_group first")
    if rows is not None:
        rows = whole("factor_broadcast", "rows", rows, "a number of rows")
        if rows < 1:
            raise ArgumentError(f"factor_broadcast: rows is {rows}; pass the batch times the tokens of a rank, or None")
    return FactorBroadcast(model, rows, group)


class FactorBroadcast:
    """The layers of a model that send factors; :func:`factor_broadcast` makes it. Keep it as long as the model trains."""

    def __init__(self, model: torch.nn.Module, rows: int | None, group: Any) -> None:
        """For :func:`factor_broadcast`."""
        self._group, self._ranks = group, dist.get_world_size(group)
        self._layers: list[_Layer] = []
        self._others: list[str] = []
        self._is_removed = False
        self._passes: set[int] = set()
        """The engine's numbers of the backward passes that exchange factors at their end."""
        linear = [(name or "the model", each) for name, each in model.named_modules() if type(each) is torch.nn.Linear]
        for name, module in linear:
            if not _is_plain(module):
                raise ArgumentError(
                    f"factor_broadcast: {name} has a forward of its own already; if it sends factors, call remove() on the object that "
                    "the first factor_broadcast has returned"
                )
        shared = _shared(model)
        for name, module in linear:
            size = LayerSize(name, module.in_features, module.out_features, rows)
            own = module.named_parameters(recurse=False)
            name_shared = next((name for name, parameter in own if id(parameter) in shared), None)
            if name_shared is not None or not module.weight.requires_grad:
                why = f"{name_shared} is shared with another layer" if name_shared is not None else "weight is not trained"
                self._others.append(f"{size.name}: {size.outputs} x {size.inputs}, sends no factors: its {why}")
            elif rows is not None and not uses_factors(size, self._ranks):
                self._others.append(explained([size], self._ranks, []))
            else:
                self._layers.append(_Layer(module, size, self))
        self._leave_out(model)
        for layer in self._layers:
            for parameter in layer.module.parameters(recurse=False):
                dist.broadcast(parameter.detach(), group=group, group_src=0)

    def explain(self) -> str:
        """For each linear layer: whether it sends factors and why, by the rows of the last step; and what such layers
        refuse."""
        refused = ["a gradient of their weights from elsewhere in the loss is refused"] if self._layers else []
        return explained([layer.size for layer in self._layers], self._ranks, self._others + refused)

    def remove(self) -> None:
        """Let the layers compute their own gradients again, which are not summed then. A second call does nothing."""
        if not self._is_removed:
            self._is_removed = True
            for layer in self._layers:
                layer.remove()

    def _leave_out(self, model: torch.nn.Module) -> None:
        """Tell DistributedDataParallel which parameters to leave alone."""
        modules = {id(layer.module) for layer in self._layers}
        names = [
            f"{name}.{own}" if name else own
            for name, module in model.named_modules()
            if id(module) in modules
            for own, _ in module.named_parameters(recurse=False)
        ]
        before = getattr(model, "_ddp_params_and_buffers_to_ignore", [])
        ignore = torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, _LeftOut(before, names))  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "factor_broadcast: its result belongs to one model in this process, and cannot be copied or saved. Copy the model, whose copy "
            "sends no factors, and call factor_broadcast for the copy"
        )

    def _heard(self, number: int) -> None:
        """Note that a layer has factors: they are exchanged at the end of the whole backward pass, in one order on all
        ranks."""
        if number not in self._passes:
            self._passes.add(number)
            torch.autograd.Variable._execution_engine.queue_callback(functools.partial(self._exchange, number))

    def _forget_failures(self) -> None:
        """Called at a forward pass. If this is not within a backward pass, as with checkpoints of activations, earlier ones
        have ended.

        An earlier pass that still has factors has failed. Its gradients are lost, as can happen in other layers, too.
        """
        if self._passes and torch._C._current_graph_task_id() == -1:
            self._passes.clear()
            for layer in self._layers:
                layer.forget()

    @torch.no_grad()
    def _exchange(self, number: int) -> None:
        self._passes.discard(number)
        factors = [layer.take(number) for layer in self._layers]
        own = torch.tensor([sum(len(left) for left, _ in each) for each in factors])
        counts = torch.empty((self._ranks, len(self._layers)), dtype=torch.int64)
        dist.all_gather_into_tensor(counts, own, group=self._group)
        for place, layer in enumerate(self._layers):
            rows = counts[:, place].tolist()
            if max(rows) == 0:
                continue
            layer.size = LayerSize(layer.size.name, layer.size.inputs, layer.size.outputs, max(rows))
            left, right = layer.joined(factors[place])
            factors[place] = []  # frees them
            if uses_factors(layer.size, self._ranks):
                left, right = self._gather(left, right, rows)
                layer.add(left, right, self._ranks)
            else:
                weight, bias = left.t() @ right, left.sum(0)
                dist.all_reduce(weight, group=self._group)
                dist.all_reduce(bias, group=self._group)
                layer.add_gradients(weight / self._ranks, bias / self._ranks)

    def _gather(self, left: torch.Tensor, right: torch.Tensor, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """All ranks' factors, in the order of ranks. Ranks with fewer rows append zeros, which are cut off again."""
        own = torch.zeros((max(rows), left.shape[1] + right.shape[1]), dtype=left.dtype, device=left.device)
        own[: len(left), : left.shape[1]] = left
        own[: len(left), left.shape[1] :] = right
        all_rows = torch.empty((self._ranks * len(own), own.shape[1]), dtype=own.dtype, device=own.device)
        dist.all_gather_into_tensor(all_rows, own, group=self._group)
        parts = [all_rows[rank * len(own) :][:count] for rank, count in enumerate(rows)]
        whole = torch.cat(parts)
        return whole[:, : left.shape[1]], whole[:, left.shape[1] :]


class _LeftOut(list[str]):
    """Names of parameters that DistributedDataParallel leaves alone; for a copy of the model only the names it would leave
    alone anyway."""

    def __init__(self, before: list[str], names: list[str]) -> None:
        super().__init__([*before, *names])
        self._before = [*before]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (self._before,)


class _Layer:
    """A linear layer that keeps its factors in the backward pass, in place of a gradient."""

    def __init__(self, module: torch.nn.Linear, size: LayerSize, owner: FactorBroadcast) -> None:
        self.module, self.size, self.owner = module, size, owner
        self._factors: dict[int, _Factors] = {}
        module.forward = _Forward(self)  # type: ignore[assignment, method-assign]
        trained = [(name, own) for name, own in module.named_parameters(recurse=False) if own.requires_grad]
        self._hooks = [
            # No warning if the model is saved: a copy has no such hooks.
            own.register_hook(unserializable_hook(functools.partial(self._refuse, name)))  # type: ignore[no-untyped-call]
            for name, own in trained
        ]

    def remove(self) -> None:
        """Make the layer an ordinary one again."""
        for hook in self._hooks:
            hook.remove()
        del self.module.forward

    def _refuse(self, name: str, gradient: torch.Tensor | None) -> None:
        """Refuse a gradient that autograd gives to a parameter: it came from elsewhere, and no rank would sum it."""
        if gradient is not None:
            raise UnsupportedError(
                f"factor_broadcast: the {name} of {self.size.name} has a gradient from outside the layer, which is not summed. Use the "
                "parameter in the layer only, and pass weight_decay to the optimizer instead of a term of the loss. Or give the layer "
                "its own class, derived from torch.nn.Linear: it then stays with DistributedDataParallel"
            )

    def is_wanted(self) -> bool:
        """Whether the running backward pass computes gradients of the layer's parameters, not only of other tensors.

        Raises:
            UnsupportedError: the pass has to return them.
        """
        trained = [parameter for parameter in self.module.parameters(recurse=False) if parameter.requires_grad]
        nodes = [torch.autograd.graph.get_gradient_edge(parameter).node for parameter in trained]
        try:
            return any(torch._C._will_engine_execute_node(node) for node in nodes)
        except RuntimeError as error:  # of a leaf whose gradient torch.autograd.grad is to return
            raise UnsupportedError(
                f"factor_broadcast: torch.autograd.grad has no gradient of the parameters of {self.size.name}, which sends factors; "
                "call backward(), or first remove() on the result of factor_broadcast"
            ) from error

    def hear(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """Keep the factors of a backward pass: (rows, outputs) and (rows, inputs)."""
        dtype, number = self.module.weight.dtype, torch._C._current_graph_task_id()
        self._factors.setdefault(number, []).append((left.detach().to(dtype), right.detach().to(dtype)))
        self.owner._heard(number)

    def take(self, number: int) -> _Factors:
        """The factors from a backward pass."""
        return self._factors.pop(number, [])

    def forget(self) -> None:
        """Drop all factors."""
        self._factors.clear()

    def joined(self, factors: _Factors) -> tuple[torch.Tensor, torch.Tensor]:
        """All their rows."""
        if not factors:
            weight = self.module.weight
            return weight.new_empty((0, weight.shape[0])), weight.new_empty((0, weight.shape[1]))
        return torch.cat([left for left, _ in factors]), torch.cat([right for _, right in factors])

    def add(self, left: torch.Tensor, right: torch.Tensor, ranks: int) -> None:
        """Add the mean gradient of all ranks, from the factors of all."""
        self.add_gradients((left.t() @ right).div_(ranks), left.sum(0).div_(ranks))

    def add_gradients(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        """Add to the gradients, as a backward pass does."""
        for parameter, gradient in ((self.module.weight, weight), (self.module.bias, bias)):
            if parameter is None or not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient


class _Product(torch.autograd.Function):
    """A linear layer's product. Its backward pass gives factors to the layer instead of a gradient to the weight."""

    @staticmethod
    def forward(ctx: Any, layer: _Layer, inputs: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        ctx.layer = layer
        ctx.save_for_backward(inputs, weight)
        return torch.nn.functional.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        [gradient] = gradients
        inputs, weight = ctx.saved_tensors
        with torch.no_grad():
            if ctx.layer.is_wanted():
                ctx.layer.hear(gradient.reshape(-1, gradient.shape[-1]), inputs.reshape(-1, inputs.shape[-1]))
            before = (gradient @ weight.to(gradient.dtype)).to(inputs.dtype) if ctx.needs_input_grad[1] else None
        if before is not None and torch.is_grad_enabled():  # with create_graph=True
            before = _Once.apply(ctx.layer, before, gradient, weight)
        return None, before, None, None


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated again, because factors belong to the first derivative."""

    @staticmethod
    def forward(ctx: Any, layer: _Layer, before: torch.Tensor, *comes_of: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        return before.view_as(before)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedError(
            f"factor_broadcast: {ctx.layer.size.name} sends factors, so its gradient cannot be differentiated again, as a gradient "
            "penalty does; train such a model without factor_broadcast"
        )


class _Forward:
    """Replaces a layer's own ``forward``. A copy of the layer has its own again."""

    def __init__(self, layer: _Layer) -> None:
        self._layer = layer

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer = self._layer
        layer.owner._forget_failures()
        product: torch.Tensor = _Product.apply(layer, inputs, layer.module.weight, layer.module.bias)
        return product

    def __deepcopy__(self, memo: Any) -> Any:
        return types.MethodType(torch.nn.Linear.forward, copy.deepcopy(self._layer.module, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The layer exists by then and has no own attribute yet, so this finds its class's.
        return getattr, (self._layer.module, "forward")


def _is_plain(module: torch.nn.Linear) -> bool:
    """Whether a layer has the forward of its class, as copies of layers that send factors do."""
    own = vars(module).get("forward")
    return own is None or getattr(own, "__func__", None) is torch.nn.Linear.forward


def _shared(model: torch.nn.Module) -> set[int]:
    """The parameters that several modules share."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared
