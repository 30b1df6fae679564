"""Parameters as flat arrays on the CPU, one for each type, for the numpy cores and the engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ArgumentError, UnsupportedError
from ..torch.shards_refused import is_dtensor
from .saved import list_of

__all__ = ["FlatParameters", "parameters_of"]

Array = np.ndarray[Any, np.dtype[Any]]

_WIDE = {torch.float64: np.dtype("f8")}
"""The types of arrays; parameters of all other floating types have arrays of float32."""


class FlatParameters:
    """Some parameters, on any device, and the layout of arrays that hold their values.

    An array has the values of all parameters of its type, one after the other, each in the order of its elements. float64 has
    arrays of float64; float32, float16 and bfloat16 have arrays of float32.
    """

    def __init__(self, call: str, parameters: Sequence[torch.Tensor]) -> None:
        """The layout follows from the parameters' order, types and shapes.

        Raises:
            UnsupportedError: a parameter is sparse or a DTensor, or its type has no averages.
        """
        self.parameters = list(parameters)
        self._at: dict[np.dtype[Any], list[int]] = {}
        for number, parameter in enumerate(self.parameters):
            if is_dtensor(parameter):
                shape = "x".join(map(str, parameter.shape))
                raise UnsupportedError(
                    f"{call}: parameter {number}, of shape {shape}, is a DTensor, as FSDP2 and tensor parallelism make them. Each rank has only a part "
                    "of it: pass a model with whole parameters, without fully_shard and parallelize_module"
                )
            if not parameter.is_floating_point() or parameter.layout != torch.strided:
                what = f"parameter {number} is of {parameter.dtype} and {parameter.layout}"
                raise UnsupportedError(f"{call}: {what}; pass parameters of floating types and torch.strided only")
            self._at.setdefault(_WIDE.get(parameter.dtype, np.dtype("f4")), []).append(number)

    def described(self) -> list[str]:
        """The shape of each parameter, and the type of its array."""
        types = {number: dtype for dtype, numbers in self._at.items() for number in numbers}
        shapes = ("x".join(map(str, parameter.shape)) or "a number" for parameter in self.parameters)
        return [f"{shape} in {types[number]}" for number, shape in enumerate(shapes)]

    def read(self) -> list[Array]:
        """A copy of the values."""
        return self._gather([parameter.detach() for parameter in self.parameters])

    def read_gradients(self) -> list[Array]:
        """A copy of the gradients, with zeros for a parameter that has none."""
        return self._gather([parameter.grad for parameter in self.parameters])

    def write(self, arrays: Sequence[Array], own: float = 0.0) -> None:
        """Set the values to ``arrays``, or to a mix in which the present values have the share ``own``."""
        with torch.no_grad():
            for parameter, values in self._views(arrays):
                values = values.to(parameter.device)
                if own:
                    # In the arrays' type, so that parameters of 16 bits are rounded once.
                    values = torch.lerp(values, parameter.detach().to(values.dtype), own)
                parameter.copy_(values)

    def present_gradients(self) -> Array:
        """For each parameter 1 if it has a gradient, else 0, in float64, which no codec changes."""
        return np.array([parameter.grad is not None for parameter in self.parameters], np.float64)

    def write_gradients(self, arrays: Sequence[Array], present: Array | None = None) -> None:
        """Set the gradients to ``arrays``. A parameter without a gradient gets one, except where ``present`` has a 0."""
        absent = set() if present is None else {id(each) for each, share in zip(self.parameters, present) if not share}
        with torch.no_grad():
            for parameter, values in self._views(arrays):
                if id(parameter) in absent:
                    parameter.grad = None
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                parameter.grad.copy_(values)

    @staticmethod
    def tensors(arrays: Sequence[Array]) -> list[torch.Tensor]:
        """Copies of arrays as tensors, which ``torch.save`` writes and ``torch.load`` reads with ``weights_only``."""
        return [torch.from_numpy(array.copy()) for array in arrays]

    def arrays(self, call: str, state: Mapping[str, Any], what: str) -> list[Array]:
        """Copies of the tensors under a name of a state.

        Raises:
            ArgumentError: they are missing, or belong to other parameters.
        """
        return self.checked(call, f"state's {what!r}", list_of(call, state, what))

    def checked(self, call: str, what: str, given: Iterable[Any]) -> list[Array]:
        """Copies of tensors or arrays as arrays of this layout.

        Raises:
            ArgumentError: they belong to other parameters.
        """
        arrays = [np.array(each) for each in given]
        own = [(sum(self.parameters[at].numel() for at in numbers), str(dtype)) for dtype, numbers in self._at.items()]
        other = [(each.size, str(each.dtype)) for each in arrays]
        if other != own or any(each.ndim != 1 for each in arrays):
            counts = [", ".join(f"{size} values of {dtype}" for size, dtype in side) or "no values" for side in (other, own)]
            raise ArgumentError(
                f"{call}: the {what} has {counts[0]}, and the model {counts[1]}; make the same model on all ranks"
            )
        return arrays

    def _gather(self, tensors: Sequence[torch.Tensor | None]) -> list[Array]:
        arrays = []
        for dtype, numbers in self._at.items():
            array = np.empty(sum(self.parameters[number].numel() for number in numbers), dtype)
            into, offset = torch.from_numpy(array), 0
            for number in numbers:
                parameter, tensor = self.parameters[number], tensors[number]
                part = into[offset : offset + parameter.numel()].view(parameter.shape)
                if tensor is None:
                    part.zero_()
                else:
                    part.copy_(tensor)
                offset += parameter.numel()
            arrays.append(array)
        return arrays

    def _views(self, arrays: Sequence[Array]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """Each parameter with its part of the arrays, in its shape."""
        for array, numbers in zip(arrays, self._at.values(), strict=True):
            values, offset = torch.from_numpy(array), 0
            for number in numbers:
                parameter = self.parameters[number]
                yield parameter, values[offset : offset + parameter.numel()].view(parameter.shape)
                offset += parameter.numel()


def parameters_of(call: str, model: Any) -> list[torch.Tensor]:
    """The parameters of a module that are trained, or the parameters that are passed.

    Raises:
        TypeError: it is neither a module nor parameters.
        ValueError: there are none, one comes twice, or the module is a DistributedDataParallel.
    """
    if isinstance(model, torch.Tensor) or not isinstance(model, (torch.nn.Module, Iterable)):
        raise TypeError(f"{call}: model is a {type(model).__name__}; pass a torch.nn.Module, or a list of parameters")
    if isinstance(model, DistributedDataParallel):
        what = "a DistributedDataParallel, which averages the gradients of every step"
        raise ValueError(f"{call}: the model is {what}; pass its module, and train that")
    given = model.parameters() if isinstance(model, torch.nn.Module) else model
    parameters = list(given)
    for parameter in parameters:
        if not isinstance(parameter, torch.Tensor):
            raise TypeError(f"{call}: one of the parameters is a {type(parameter).__name__}, not a tensor")
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        raise ValueError(f"{call}: the model has no parameters that are trained")
    if len({id(parameter) for parameter in trained}) != len(trained):
        raise ValueError(f"{call}: a parameter comes twice; pass each of them once")
    return trained
