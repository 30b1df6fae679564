"""The command line of ``herringbone compare``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .architectures import ARCHITECTURES, Choice, chosen, described

__all__ = ["WORKLOADS", "Options", "Slow", "parsed", "rate_of", "slow_of"]

WORKLOADS = {
    "digits": "a network of three linear layers, 301,066 parameters, for images of digits",
    "transformer": "a transformer of two layers, 470,912 parameters, for bytes of text",
}
"""What can be trained."""
DEFAULTS = ("all-reduce", "reduction-server", "parameter-server", "async", "bounded:4", "local-sgd:8", "diloco:8")
MOST_WORKERS = 64
UNITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}


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
    """What is to be compared, and what is printed."""

    model: str
    workers: int
    choices: list[Choice]
    servers: int
    """Reducers, or servers of tables, of the architectures that have some."""
    rate: float | None
    """Mbit/s of each link, each way; None: all processes are on this host."""
    slow: Slow | None
    steps: int
    seconds: float | None
    """How long each architecture trains, in place of ``steps``."""
    seed: int
    form: str
    """``"text"``, ``"csv"`` or ``"json"``."""
    html: Path | None
    svg: Path | None


def rate_of(text: str) -> float:
    """The Mbit/s of a rate like ``100Mbit``.

    Raises:
        ValueError: it is no such rate.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)(?:/s)?", text, re.IGNORECASE)
    rate = float(found[1]) * UNITS[found[2].lower()] if found else 0.0
    if not 0.1 <= rate <= 100_000:
        raise ValueError(f"{text!r} is no rate from 100kbit to 100Gbit; write, for example, 100Mbit")
    return rate


def slow_of(text: str, workers: int) -> Slow:
    """What ``1:3x`` or ``random:3x`` says.

    Raises:
        ValueError: it says nothing of the kind, or there is no such worker.
    """
    found = re.fullmatch(r"(random|\d+):(\d+(?:\.\d+)?)x?", text)
    if found is None or not 1 <= float(found[2]) <= 100:
        wanted = "a worker's rank or random, a colon and a factor from 1 to 100: 1:3x, or random:3x"
        raise ValueError(f"{text!r} names no slow worker; write {wanted}")
    worker = None if found[1] == "random" else int(found[1])
    if worker is not None and worker >= workers:
        raise ValueError(f"{text!r}: there is no worker {worker}; the {workers} workers have the ranks 0 to {workers - 1}")
    return Slow(worker, float(found[2]))


def parsed(words: Sequence[str]) -> Options:
    """The options of a command line. What cannot be used ends the program with status 2 and the reason."""
    parser = _parser()
    given = parser.parse_args(words)
    try:
        return _checked(given)
    except ValueError as problem:
        parser.error(str(problem))


def _checked(given: argparse.Namespace) -> Options:
    workers = _whole("--workers", given.workers, MOST_WORKERS)
    choices = [chosen(word) for word in given.architecture.split(",") if word]
    labels = [choice.label for choice in choices]
    if not choices:
        raise ValueError(f"--architecture names none; there are {', '.join(each.name for each in ARCHITECTURES)}")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise ValueError(f"--architecture names {twice} twice")
    if given.seconds is not None and not 1 <= given.seconds <= 86_400:
        raise ValueError(f"--seconds {given.seconds:g}: pass a number from 1 to 86400")
    for flag, path in (("--html", given.html), ("--svg", given.svg)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ValueError(f"{flag} {path}: there is no folder {path.parent}")
    return Options(
        model=given.model,
        workers=workers,
        choices=choices,
        servers=workers if given.servers is None else _whole("--servers", given.servers, MOST_WORKERS),
        rate=None if given.rate is None else rate_of(given.rate),
        slow=None if given.slow_worker is None else slow_of(given.slow_worker, workers),
        steps=_whole("--steps", given.steps, 1_000_000),
        seconds=given.seconds,
        seed=given.seed,
        form=given.form,
        html=given.html,
        svg=given.svg,
    )


def _whole(flag: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise ValueError(f"{flag} {text}: pass a whole number from 1 to {most}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {line}" for line in described())
    parser = argparse.ArgumentParser(
        prog="herringbone compare",
        description="Train one network from one seed under several architectures in turn, and compare what each takes and gets to.",
        epilog=f"architectures:\n{listed}\n\nexit codes: 0 done; 1 an architecture failed; 2 unusable arguments; 3 it cannot start",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", choices=list(WORKLOADS), default="digits", help="what is trained [default: digits]")
    add("--workers", default="4", metavar="N", help="processes that train [default: 4]")
    add("--architecture", default=",".join(DEFAULTS), metavar="LIST", help="separated by commas [default: %(default)s]")
    add("--servers", metavar="M", help="reducers, or servers of tables, where there are some [default: one for each worker]")
    add("--rate", metavar="RATE", help="what each link carries each way, like 100Mbit: each process gets a network namespace")
    add("--slow-worker", metavar="WHO:Fx", help="1:3x: worker 1 computes 3 times as long; random:3x: one drawn for each step")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", default="200", metavar="N", help="steps of each worker [default: 200]")
    length.add_argument("--seconds", type=float, metavar="S", help="train for so long, in place of a number of steps")
    add("--seed", type=int, default=1, help="of the first parameters and the order of samples [default: 1]")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help="comma-separated values, not a table")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="one JSON object with all curves")
    add("--html", type=Path, metavar="FILE", help="write a page with the table and pictures, which needs no network")
    add("--svg", type=Path, metavar="FILE", help="write the pictures: loss against time, steps and bytes")
    parser.set_defaults(form="text")
    return parser
