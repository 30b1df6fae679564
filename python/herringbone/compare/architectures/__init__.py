"""The architectures that can be compared: the processes that each needs, and the module that trains under it.

This list needs no torch. Each module in it has a function ``make(model, context)``, which returns a
:class:`~herringbone.compare.architectures.context.Trainer`; a rank imports the module when it trains under the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ranges import shown, whole_within

__all__ = ["ARCHITECTURES", "Architecture", "Choice", "chosen", "described"]

MOST_ARGUMENT = 1_000_000
"""The largest number behind a name, which is the largest number of steps."""


@dataclass(frozen=True)
class Architecture:
    """One way to train on several workers."""

    name: str
    about: str
    """Its description, for the help and the page."""
    module: str
    """The module of this package with its ``make``."""
    helpers: str = ""
    """The processes that it needs in addition to workers: ``"reducers"``, ``"tables"`` or none."""
    argument: str = ""
    """The meaning of the number behind its name, if it takes one."""
    default: int = 0
    """The default of this number."""
    least: int = 1
    """The smallest allowed number."""
    in_step: bool = True
    """Whether all workers have to make the same number of steps."""
    exchange: str = ""
    """The data that it moves: ``"sum"`` of all gradients in each step, ``"average"`` every ``argument`` steps, ``"rows"`` of
    tables; ``""``: it depends."""


ARCHITECTURES = (
    Architecture("all-reduce", "DistributedDataParallel: all gradients are summed in each step", "summed", exchange="sum"),
    Architecture(
        "reduction-server", "the same sums, which reducers add up for the workers", "summed", "reducers", exchange="sum"
    ),
    Architecture(
        "parameter-server",
        "parameters are on servers, which wait in each step for the gradients of all workers",
        "served",
        "tables",
        exchange="rows",
    ),
    Architecture(
        "async",
        "parameters are on servers, and no worker waits for another one",
        "served",
        "tables",
        in_step=False,
        exchange="rows",
    ),
    Architecture(
        "async-scaled",
        "like async, but staler gradients have less weight",
        "scaled",
        "tables",
        in_step=False,
        exchange="rows",
    ),
    Architecture(
        "bounded",
        "like async, but no worker is more than N steps ahead of the slowest one",
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
        argument="N, the number of shards, by default the number of workers",
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
        "all gradients are summed in the first quarter of the steps; then like local-sgd",
        "averaged",
        argument="H, the steps",
        default=8,
    ),
    Architecture(
        "diloco",
        "like local-sgd, but an outer optimizer with momentum uses each difference as a gradient",
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
    """A requested architecture, and the number behind its name."""

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
    """A line for each architecture: its name on the command line, and its description."""
    names = [f"{each.name}[:{each.argument[0]}]" if each.argument else each.name for each in ARCHITECTURES]
    width = max(map(len, names))
    return [f"{name:{width}}  {each.about}" for name, each in zip(names, ARCHITECTURES)]


def chosen(word: str) -> Choice:
    """The architecture that a word like ``bounded:4`` names.

    Raises:
        ValueError: no architecture has the name, or its number is invalid; the text lists the possible ones.
    """
    name, separator, text = word.partition(":")
    found = next((each for each in ARCHITECTURES if each.name == name), None)
    if found is None:
        raise ValueError(
            f"there is no architecture {shown(name)!r}; choose from {', '.join(each.name for each in ARCHITECTURES)}"
        )
    if not separator:
        return Choice(found, found.default)
    if not found.argument:
        raise ValueError(f"{name} takes no number: write {name}, not {shown(word)}")
    number = whole_within(text, found.least, MOST_ARGUMENT)
    if number is None:
        wanted = f"{found.argument}, a whole number from {found.least} to {MOST_ARGUMENT}"
        raise ValueError(f"{shown(word)}: after {name}: write {wanted}")
    return Choice(found, number)
