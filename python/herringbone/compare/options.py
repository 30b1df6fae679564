"""The command line of ``herringbone compare``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .architectures import ARCHITECTURES, Choice, chosen, described
from .files import refusal
from .ranges import number, shown, whole, whole_within

__all__ = ["WORKLOADS", "Network", "Options", "Slow", "parsed", "rate_of", "slow_of"]


@dataclass(frozen=True)
class Network:
    """The description of a network that needs no torch."""

    about: str
    batch: int
    """Samples of one worker in a step."""


WORKLOADS = {
    "digits": Network("a network of three linear layers, 301,066 parameters, for images of digits", 32),
    "transformer": Network("a transformer of two layers, 470,912 parameters, for bytes of text", 4),
}
"""The networks, by their names for ``--model``."""
DEFAULTS = ("all-reduce", "reduction-server", "parameter-server", "async", "bounded:4", "local-sgd:8", "diloco:8")
MOST_WORKERS, MOST_STEPS, MOST_SECONDS = 64, 1_000_000, 86_400
MOST_SEED = 2**32 - 1
MOST_FACTOR = 100
UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}
EXITS = """exit codes:
  0             all were trained
  1             an architecture failed, or a file could not be written
  2             unusable arguments
  3             it cannot start
  129, 130, 143 interrupted; the results so far are written"""
RATES = "a rate from 100kbit to 100Gbit"


@dataclass(frozen=True)
class Slow:
    """A worker that takes ``factor`` times as long to compute: always the same one, or one drawn at random for each step."""

    worker: int | None
    """None: drawn at random."""
    factor: float

    def __str__(self) -> str:
        return f"{'random' if self.worker is None else self.worker}:{self.factor:g}x"


@dataclass(frozen=True)
class Options:
    """The comparison to make, and the form of its output."""

    model: str
    workers: int
    choices: list[Choice]
    servers: int
    """The number of reducers, or of table servers, for architectures that have some."""
    rate: float | None
    """Mbit/s of each link, each way; None: all processes are on this host."""
    slow: Slow | None
    steps: int
    seconds: float | None
    """The seconds that each architecture trains, instead of ``steps``."""
    seed: int
    form: str
    """``"text"``, ``"csv"`` or ``"json"``."""
    html: Path | None
    svg: Path | None


def rate_of(text: str) -> float:
    """The Mbit/s of a rate like ``100Mbit``.

    Raises:
        ValueError: it is not such a rate.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z/]*)", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"--rate {shown(text)}: pass {RATES}, for example 100Mbit")
    unit = found[2].lower().removesuffix("/s")
    if unit not in UNITS:
        what = f"has the unit {shown(found[2])}" if found[2] else "has no unit"
        raise ValueError(
            f"--rate {shown(text)} {what}: write {shown(found[1])}Mbit for megabits per second; kbit and Gbit work, too"
        )
    rate = float(found[1]) * UNITS[unit]
    if not 0.1 <= rate <= 100_000:
        raise ValueError(f"--rate {shown(text)}: pass {RATES}")
    return rate


def slow_of(text: str, workers: int) -> Slow:
    """The slow worker that ``1:3x`` or ``random:3x`` describes.

    Raises:
        ValueError: it has another form, or the worker does not exist.
    """
    found = re.fullmatch(r"(random|[0-9]+):([0-9]+(?:\.[0-9]+)?)x?", text)
    if found is None or not 1 <= float(found[2]) <= MOST_FACTOR:
        wanted = f"a worker's rank or random, a colon and a factor from 1 to {MOST_FACTOR}: 1:3x, or random:3x"
        raise ValueError(f"--slow-worker {shown(text)} is not a slow worker: pass {wanted}")
    worker = None if found[1] == "random" else whole_within(found[1], 0, workers - 1)
    if worker is None and found[1] != "random":
        ranks = f"the {workers} workers have the ranks 0 to {workers - 1}"
        raise ValueError(f"--slow-worker {shown(text)}: there is no worker {shown(found[1])}; {ranks}")
    return Slow(worker, float(found[2]))


def parsed(words: Sequence[str]) -> Options:
    """The options of a command line. An unusable one ends the program with status 2 and the reason, in its last line."""
    parser = _parser()
    given, left = parser.parse_known_args(words)
    try:
        if left:
            raise ValueError(_unknown(left[0], given.form))
        return _checked(given)
    except ValueError as problem:
        parser.error(str(problem))


def _unknown(word: str, form: str) -> str:
    """The error for a word that the command does not know."""
    if form != "text" and not word.startswith("-"):
        return f"--{form} prints and takes no file: write --{form} > {shown(word)}"
    return f"there is no argument {shown(word)}"


def _checked(given: argparse.Namespace) -> Options:
    workers = whole("--workers", given.workers, 1, MOST_WORKERS)
    _check_files(html=given.html, svg=given.svg)
    return Options(
        model=given.model,
        workers=workers,
        choices=_choices(given.architecture, WORKLOADS[given.model].batch * workers),
        servers=workers if given.servers is None else whole("--servers", given.servers, 1, MOST_WORKERS),
        rate=None if given.rate is None else rate_of(given.rate),
        slow=None if given.slow_worker is None else slow_of(given.slow_worker, workers),
        steps=whole("--steps", given.steps, 1, MOST_STEPS),
        seconds=None if given.seconds is None else number("--seconds", given.seconds, 1, MOST_SECONDS),
        seed=whole("--seed", given.seed, 0, MOST_SEED),
        form=given.form,
        html=given.html,
        svg=given.svg,
    )


def _choices(words: str, samples: int) -> list[Choice]:
    """The architectures of a list. ``samples``: all workers' samples in a step."""
    choices = [chosen(word) for word in words.split(",") if word]
    labels = [choice.label for choice in choices]
    if not choices:
        raise ValueError(f"--architecture is empty; choose from {', '.join(each.name for each in ARCHITECTURES)}")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"--architecture names {twice} twice")
    for choice in choices:
        if choice.architecture.name == "shards" and choice.argument > samples:
            raise ValueError(f"{choice.label}: a step has {samples} samples; write at most shards:{samples}, or use more workers")
    return choices


def _check_files(**paths: Path | None) -> None:
    """Refuse files that cannot be written, by their flags, because otherwise hours of training would be lost."""
    given = {flag: path for flag, path in paths.items() if path is not None}
    for flag, path in given.items():
        if why := refusal(path):
            raise ValueError(f"--{flag} {path} cannot be written: {why}")
    if len({path.resolve() for path in given.values()}) < len(given):
        raise ValueError(f"{' and '.join(f'--{flag}' for flag in given)} name the same file")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the reason as the last line, where it is visible in a terminal."""
        self.exit(2, f"usage: {self.prog} [FLAGS]; {self.prog} --help lists them\n{self.prog}: {message}\n")


def _parser() -> _Parser:
    listed = "\n".join(f"  {line}" for line in described())
    parser = _Parser(
        prog="herringbone compare",
        description="Train one network from one seed under several architectures in turn, and compare their costs and results.",
        epilog=f"architectures:\n{listed}\n\n{EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=list(WORKLOADS), default="digits", help="the network to train [default: digits]")
    add("--workers", default="4", metavar="N", help="processes that train [default: 4]")
    add(
        "--architecture",
        default=",".join(DEFAULTS),
        metavar="LIST",
        help="architectures, separated by commas [default: %(default)s]",
    )
    add("--servers", metavar="M", help="reducers, or table servers, for architectures that use them [default: one per worker]")
    add("--rate", metavar="RATE", help="rate of each link each way, such as 100Mbit: each process gets a network namespace")
    add("--slow-worker", metavar="WHO:Fx", help="1:3x: worker 1 computes 3 times as long; random:3x: one drawn for each step")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", default="200", metavar="N", help="steps of each worker [default: 200]")
    length.add_argument("--seconds", metavar="S", help="train for this time instead of a number of steps")
    add("--seed", default="1", metavar="N", help="seed of the first parameters and the order of samples [default: 1]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv", dest="form", action="store_const", const="csv", help="print comma-separated values instead of a table"
    )
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print one JSON object with all curves")
    add("--html", type=Path, metavar="FILE", help="write a page with the table and pictures, which works offline")
    add("--svg", type=Path, metavar="FILE", help="write the pictures: loss against time, steps and bytes")
    parser.set_defaults(form="text")
    return parser
