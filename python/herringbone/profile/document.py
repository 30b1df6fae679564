"""A model's profile as data. docs/reference/model-profile.md explains each field for authors of other readers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["ELEMENT_BYTES", "Buckets", "Layer", "Measured", "Parameter", "Profile", "Published", "Run"]

ELEMENT_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element, by the name of its dtype. Only floating point and complex parameters can be trained."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a layer, and its gradient, which has the same shape and dtype."""

    name: str
    """Its name within its layer, such as ``weight``."""
    shape: Sequence[int]
    """Its lengths; empty for a scalar."""
    dtype: str
    """torch's name, a key of :data:`ELEMENT_BYTES`."""
    trainable: bool = True
    """Whether it requires a gradient."""
    ready_seconds: float | None = None
    """From the beginning of the backward pass until the gradient is ready; None if it never was ready, or was not measured."""

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes of the parameter, and of its gradient."""
        return self.elements * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters."""

    name: str
    """The module's name in the model; the model itself has an empty name."""
    parameters: Sequence[Parameter]
    """At least one. A parameter that several layers share is in the first of these."""
    multiply_adds: int | None = None
    """Operations of one forward pass of one sample; None in a measured profile."""


@dataclass(frozen=True)
class Published:
    """Published totals, for comparison."""

    parameters: int
    """How many elements all parameters have."""
    source: str
    multiply_adds: int | None = None
    """Operations of one forward pass of one sample, rounded as in the source."""


@dataclass(frozen=True)
class Run:
    """Where and how a profile was measured."""

    date: str
    """YYYY-MM-DD, in UTC."""
    python: str
    torch: str
    herringbone: str
    cores: int
    """Cores that the process may use."""
    threads: int
    """Threads of one operation of torch."""
    ranks: int
    ranks_on_host: int
    """Ranks on this host, which share the cores."""
    rank: int
    """The rank that was measured."""
    backend: str
    """The backend of ``torch.distributed``, or ``none``."""
    wrapper: str
    """``DistributedDataParallel`` or ``none``."""
    compiled: bool
    """Whether ``torch.compile`` made the model."""


@dataclass(frozen=True)
class Measured:
    """Medians over steps, in seconds. The parts of one step add up to the step; medians add up only approximately."""

    steps: int
    """The number of measured steps."""
    warm_up: int
    """The number of earlier steps, which were not measured."""
    passes: int
    """Backward passes in a step."""
    step_seconds: float
    """From the end of an optimizer's step to the end of the next one."""
    accumulation_seconds: float
    """Forward and backward passes before the last ones."""
    forward_seconds: float
    """The model's forward, for the last backward pass."""
    backward_seconds: float
    """From the beginning of the last backward pass to its last gradient."""
    tail_seconds: float
    """From the last gradient to the end of the backward pass: under DDP, waiting for sums. Without sums it is DDP's own work,
    such as copies, and waiting for the slowest rank."""
    optimizer_seconds: float
    other_seconds: float
    """Everything else: loading data, the loss, setting gradients to zero."""
    sums: bool = True
    """Whether ranks summed gradients in these steps; if so, the threads for it can have slowed computing down."""


@dataclass(frozen=True)
class Buckets:
    """How DistributedDataParallel groups gradients. A bucket is a list of parameters' indices; buckets are in the order of
    their sums."""

    first_bytes: int
    cap_bytes: int
    initial: Sequence[Sequence[int]]
    """The buckets of the first step."""
    rebuilt: Sequence[Sequence[int]]
    """The buckets from the second step on."""


@dataclass(frozen=True)
class Profile:
    """A model: its layers, and either operations (``published`` models) or seconds (``run``, ``measured``, ``buckets``)."""

    name: str
    """The model's name, such as its class."""
    source: str
    """The source of the layers: a paper, or the profiled command."""
    layers: Sequence[Layer]
    """The layers, in the order of ``model.named_modules()``."""
    sample: str | None = None
    """The input for which operations are counted."""
    published: Published | None = None
    """Published totals, for comparison with this profile."""
    run: Run | None = None
    """Where and how it was measured."""
    measured: Measured | None = None
    """Medians over steps; None in a profile of operations."""
    buckets: Buckets | None = None
    """How DistributedDataParallel groups the gradients, if it was measured under that."""

    @property
    def timing(self) -> str:
        """``"seconds"`` if it was measured, else ``"operations"``."""
        return "operations" if self.measured is None else "seconds"

    def parameters(self) -> Iterator[Parameter]:
        """All parameters; a parameter's index is its place here."""
        for layer in self.layers:
            yield from layer.parameters

    @property
    def elements(self) -> int:
        """How many numbers all parameters have."""
        return sum(each.elements for each in self.parameters())

    @property
    def multiply_adds(self) -> int:
        """Operations of one forward pass of one sample; 0 in a measured profile."""
        return sum(layer.multiply_adds or 0 for layer in self.layers)
