"""The architectures that can be compared: what each needs, and which module trains under it.

This list needs no torch. A module of the list has a function ``make(model, context)``, which returns a
:class:`~herringbone.compare.architectures.context.Trainer`; a rank imports it when it is to train so.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ranges import shown, whole_within

__all__ = ["ARCHITECTURES", "Architecture", "Choice", "chosen", "described"]

MOST_ARGUMENT = 1_000_000
"""The largest number behind a name: nobody trains for more steps."""


@dataclass(frozen=True)
class Architecture:
    """One way to train on several workers."""

    name: str
    about: str
    """What it does, for the help and the page."""
    module: str
    """The module of this package that has its ``make``."""
    helpers: str = ""
    """Which processes it needs next to its workers: ``"reducers"``, ``"tables"`` or none."""
    argument: str = ""
    """What the number behind its name means, if it takes one."""
    default: int = 0
    """That number if the name has none."""
    least: int = 1
    """The smallest such number."""
    in_step: bool = True
    """Whether all workers have to make the same number of steps."""
    exchange: str = ""
    """What moves: ``"sum"`` of all gradients in each step, ``"average"`` each ``argument`` steps, ``"rows"`` of tables. ``""``: it depends."""


ARCHITECTURES = (
    Architecture("all-reduce", "DistributedDataParallel: all gradients are summed in each step", "summed", exchange="sum"),
    Architecture(
        "reduction-server", "the same sums, which reducers add up for the workers", "summed", "reducers", exchange="sum"
    ),
    Architecture(
        "parameter-server",
        "parameters live on servers, which wait in each step for the gradients of all workers",
        "served",
        "tables",
        exchange="rows",
    ),
    Architecture(
        "async",
        "parameters live on servers, and no worker waits for another one",
        "served",
        "tables",
        in_step=False,
        exchange="rows",
    ),
    Architecture(
        "async-scaled",
        "as async, but a gradient counts less the staler it is",
        "scaled",
        "tables",
        in_step=False,
        exchange="rows",
    ),
    Architecture(
        "bounded",
        "as async, but no worker is more than N steps ahead of the slowest one",
        "served",
        "tables",
        argument="N, the steps",
        default=4,
        least=0,
        in_step=False,
        exchange="rows",
    ),
    Architecture(
        "shards",
        "gradients of N shards, whose sums have the same bits on any number of workers",
        "sharded",
        argument="N, the shards; without it as many as workers",
        exchange="sum",
    ),
    Architecture(
        "local-sgd",
        "each worker trains by itself, and all average their parameters every H steps",
        "averaged",
        argument="H, the steps",
        default=8,
        exchange="average",
    ),
    Architecture(
        "post-local-sgd",
        "a quarter of the steps with all gradients summed, then as local-sgd",
        "averaged",
        argument="H, the steps",
        default=8,
    ),
    Architecture(
        "diloco",
        "as local-sgd, but an outer optimizer with momentum takes each difference as a gradient",
        "averaged",
        argument="H, the steps",
        default=8,
        exchange="average",
    ),
    Architecture(
        "threshold",
        "each worker sends the few large elements of its updates, and keeps the rest for later",
        "thresholded",
        in_step=False,
    ),
)


@dataclass(frozen=True)
class Choice:
    """An architecture that was asked for, and the number behind its name."""

    architecture: Architecture
    argument: int

    @property
    def label(self) -> str:
        """As a user writes it: ``bounded:4``."""
        return f"{self.architecture.name}:{self.argument}" if self.argument or self._needs_number else self.architecture.name

    @property
    def _needs_number(self) -> bool:
        return self.architecture.argument != "" and self.architecture.least == 0


def described() -> list[str]:
    """A line for each architecture: how it is written, and what it does."""
    names = [f"{each.name}[:{each.argument[0]}]" if each.argument else each.name for each in ARCHITECTURES]
    width = max(map(len, names))
    return [f"{name:{width}}  {each.about}" for name, each in zip(names, ARCHITECTURES)]


def chosen(word: str) -> Choice:
    """The architecture that a word like ``bounded:4`` names.

    Raises:
        ValueError: there is none of the name, or its number cannot be; the text lists what is possible.
    """
    name, separator, text = word.partition(":")
    found = next((each for each in ARCHITECTURES if each.name == name), None)
    if found is None:
        raise ValueError(f"there is no architecture {shown(name)!r}; there are {', '.join(each.name for each in ARCHITECTURES)}")
    if not separator:
        return Choice(found, found.default)
    if not found.argument:
        raise ValueError(f"{name} takes no number: write {name}, not {shown(word)}")
    number = whole_within(text, found.least, MOST_ARGUMENT)
    if number is None:
        wanted = f"{found.argument}, a whole number from {found.least} to {MOST_ARGUMENT}"
        raise ValueError(f"{shown(word)}: behind {name}: comes {wanted}")
    return Choice(found, number)
