"""A multi-layer perceptron in numpy, whose step is a program for the dependency engine.

Forward, backward, the all-reduces and the updates are pushed as operations that declare what they read and mutate. The engine
overlaps them: while a layer's gradients are summed over the ranks, the layer below it still computes its own. The same step is
also run one call after the other, and both give the same bits.

Start it with `herringbone launch -n 2 -- python examples/engine_mlp.py`.
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import herringbone
from herringbone.dependency import Variable

WIDTHS = (64, 128, 128, 10)
BATCH = 32
RATE = 0.05


class Layer:
    """Weights, their gradient, and values of a step: the input, the output, and their gradients."""

    def __init__(self, random: np.random.Generator, inputs: int, outputs: int, batch: int) -> None:
        self.weight = (random.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        self.gradient = np.zeros_like(self.weight)
        self.output = np.zeros((batch, outputs), np.float32)
        self.error = np.zeros_like(self.output)


class Serial:
    """Calls each function instead of pushing it."""

    def __init__(self, group: herringbone.Communicator) -> None:
        self._group = group

    def push(
        self, function: Callable[[], None], reads: Sequence[Any], mutates: Sequence[Any], priority: int = 0, **_: Any
    ) -> None:
        """Call it."""
        function()

    def all_reduce(self, group: herringbone.Communicator, array: Any, op: str, **_: Any) -> None:
        """Reduce at once."""
        group.all_reduce(array, op)


def push_step(engine: Any, group: herringbone.Communicator, layers: list[Layer], data: Any, target: Any) -> None:
    """One step of training: the functions, with the variables that they read and mutate."""
    inputs = [data, *(layer.output for layer in layers[:-1])]
    for number, (layer, before) in enumerate(zip(layers, inputs)):
        is_last = number == len(layers) - 1

        def forward(layer: Layer = layer, before: Any = before, is_last: bool = is_last) -> None:
            np.matmul(before, layer.weight, out=layer.output)
            if not is_last:
                np.maximum(layer.output, 0, out=layer.output)

        engine.push(forward, [before, layer.weight], [layer.output], name=f"forward {number}")
    last = layers[-1]

    def loss() -> None:
        np.subtract(last.output, target, out=last.error)

    engine.push(loss, [last.output, target], [last.error], name="loss")
    for number in reversed(range(len(layers))):
        layer, before = layers[number], inputs[number]

        def backward(layer: Layer = layer, before: Any = before) -> None:
            np.matmul(before.T, layer.error, out=layer.gradient)

        engine.push(backward, [before, layer.error], [layer.gradient], name=f"backward {number}")
        if number:
            below = layers[number - 1]

            def pass_on(layer: Layer = layer, below: Layer = below) -> None:
                np.matmul(layer.error, layer.weight.T, out=below.error)
                below.error *= below.output > 0

            engine.push(pass_on, [layer.error, layer.weight, below.output], [below.error], name=f"pass on {number}")
        engine.all_reduce(group, layer.gradient, "average", name=f"all_reduce {number}")

        def update(layer: Layer = layer) -> None:
            layer.weight -= np.float32(RATE / BATCH) * layer.gradient

        engine.push(update, [layer.gradient], [layer.weight], -number, name=f"update {number}")


def batches(rank: int, steps: int) -> list[tuple[Any, Any]]:
    """This rank's data, the same in each run: numbers, and ten sums of them to learn."""
    random = np.random.default_rng(rank)
    data = [random.standard_normal((BATCH, WIDTHS[0])).astype(np.float32) for _ in range(steps)]
    return [(each, each[:, :10] + each[:, 10:20]) for each in data]


def train(engine: Any, group: herringbone.Communicator, steps: int) -> list[Layer]:
    """The layers after some steps, which are all pushed at once."""
    random = np.random.default_rng(0)
    layers = [Layer(random, inputs, outputs, BATCH) for inputs, outputs in zip(WIDTHS, WIDTHS[1:])]
    for data, target in batches(group.rank, steps):
        push_step(engine, group, layers, data, target)
    if isinstance(engine, herringbone.Engine):
        engine.wait_all()
    return layers


def main() -> None:
    """Train in both ways, compare, and write a picture and a trace if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--trace", type=pathlib.Path, help="write a trace of rank 0, for Perfetto")
    parser.add_argument("--picture", type=pathlib.Path, help="write the queues of a step on rank 0, as an SVG")
    arguments = parser.parse_args()
    with herringbone.init() as group:
        serial = train(Serial(group), group, arguments.steps)
        with herringbone.Engine(arguments.threads) as engine:
            if arguments.trace:
                engine.record()
            layers = train(engine, group, arguments.steps)
            if arguments.trace and group.rank == 0:
                arguments.trace.write_text(engine.trace())
        if arguments.picture and group.rank == 0:
            arguments.picture.write_text(picture_of_a_step())
        same = all(np.array_equal(a.weight, b.weight) for a, b in zip(serial, layers))
        off = float(np.square(layers[-1].error).mean())
        print(f"{arguments.steps} steps, squared error {off:.4f}; the same bits as one call after the other: {same}", flush=True)
        raise SystemExit(0 if same else 1)


class Held:
    """Pushes to an engine whose operations wait, so that their queues can be drawn."""

    def __init__(self, engine: herringbone.Engine, gate: Variable) -> None:
        self._engine = engine
        self._gate = gate

    def push(
        self, function: Callable[[], None], reads: Sequence[Any], mutates: Sequence[Any], priority: int = 0, *, name: str
    ) -> None:
        """Push it behind the gate."""
        self._engine.push(lambda: None, [*reads, self._gate], mutates, priority, name=name)

    def all_reduce(self, group: Any, array: Any, op: str, *, name: str) -> None:
        """Push a placeholder for it."""
        self._engine.push(lambda: None, [self._gate], [array], name=name)


def picture_of_a_step() -> str:
    """The queues of one step before any of it has run."""
    random = np.random.default_rng(0)
    layers = [Layer(random, inputs, outputs, BATCH) for inputs, outputs in zip(WIDTHS, WIDTHS[1:])]
    data, target = batches(0, 1)[0]
    opened: list[Any] = []
    with herringbone.Engine(1) as engine:
        gate = engine.var("gate")
        engine.push_async(opened.append, [], [gate], name="closed")
        for number, layer in enumerate(layers):
            for name in ("weight", "gradient", "output", "error"):
                engine.variable_of(getattr(layer, name), f"{name} {number}")
        push_step(Held(engine, gate), None, layers, data, target)  # type: ignore[arg-type]  # nothing is reduced
        picture = engine.picture()
        while not opened:
            time.sleep(0.001)
        opened[0].complete()
    return picture


if __name__ == "__main__":
    main()
