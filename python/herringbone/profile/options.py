"""The command line of ``python -m herringbone.profile``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..compare.files import refusal

__all__ = ["RANK", "Options", "parsed"]

MOST_STEPS = 10_000
RANK = "{rank}"
"""The placeholder for the rank in the name of a file."""
EXITS = """The script runs until enough steps are measured, and is then stopped. Start it the same way as without profiling:
  python -m herringbone.profile train.py
  herringbone launch -n 4 -- python -m herringbone.profile train.py
  torchrun --nproc-per-node=4 -m herringbone.profile train.py

exit codes:
  0  the profile was written
  1  no profile could be made, or its file could not be written
  2  unusable arguments
  3  it cannot start
  other  the script's exit code, if it failed"""


@dataclass(frozen=True)
class Options:
    """The script to run, and the output to write."""

    script: Path
    arguments: Sequence[str]
    """The script's arguments."""
    steps: int
    warm_up: int
    output: str
    """A file, with :data:`RANK` in place of each rank's number; without it only rank 0 writes a file."""
    json: bool
    sums: bool
    """Whether DDP sums gradients while steps are measured."""
    folder: Path
    """The folder in which the program was started; the script can change to another one."""

    def writes(self, rank: int) -> Path | None:
        """The file of a rank, from :attr:`folder`, or None."""
        return Path(self.output.replace(RANK, str(rank))) if RANK in self.output or rank == 0 else None


def parsed(words: Sequence[str]) -> Options:
    """The options of a command line. An unusable one ends the program with status 2 and the reason."""
    parser = argparse.ArgumentParser(
        prog="python -m herringbone.profile",
        description="Runs a training script for some steps, and writes a profile of its model.",
        epilog=EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=_count(1), default=20, metavar="N", help="steps to measure [default: 20]")
    help_text = "steps before the measured ones; the first two find the model [default: 5]"
    parser.add_argument("--warm-up", type=_count(2), default=5, metavar="N", help=help_text)
    help_text = f"file to write; with {RANK} in its name each rank writes one, otherwise only rank 0 [default: profile.json]"
    parser.add_argument("--output", default="profile.json", metavar="FILE", help=help_text)
    parser.add_argument("--json", action="store_true", help="print the profile as one line of JSON instead of a summary")
    help_text = "leave out DDP's sums of gradients, so that only computing is profiled; the training's results are useless then"
    parser.add_argument("--without-sums", action="store_true", help=help_text)
    parser.add_argument("script", type=Path, help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    given = parser.parse_args(words)
    if why := refusal(Path(given.output.replace(RANK, "0"))):
        parser.error(f"--output {given.output}: it cannot be written: {why}")
    sums = not given.without_sums
    return Options(given.script, given.arguments, given.steps, given.warm_up, given.output, given.json, sums, Path.cwd())


def _count(least: int) -> _Count:
    return _Count(least)


@dataclass(frozen=True)
class _Count:
    """Reads a number of steps."""

    least: int

    def __call__(self, word: str) -> int:
        try:
            number = int(word)
        except ValueError:
            number = -1
        if not self.least <= number <= MOST_STEPS:
            raise argparse.ArgumentTypeError(f"{word!r} is no whole number from {self.least} to {MOST_STEPS}")
        return number
