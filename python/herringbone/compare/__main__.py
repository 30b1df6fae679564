"""``herringbone compare``: trains under several architectures in turn, and prints the cost and the result of each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .architectures import Choice
from .files import write
from .folder import folder
from .job import Job, JobFailed, prepare
from .namespaces import Namespaces, NoNamespaces
from .options import Options, parsed
from .page import page
from .pictures import picture
from .prediction import predicted
from .progress import Bar
from .report import as_csv, as_json, table
from .results import Row, failed, missing, row_of

__all__ = ["main"]

FAILED, CANNOT_START = 1, 3
"""Exit codes, the same as the command's other verbs have."""
INTERRUPTED = 128
"""The signal's number is added, as in a shell."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a comparison; the completed rows are written."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    options = parsed(sys.argv[1:] if words is None else words)
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            _say(f"training needs {name}, but {sys.executable} lacks it: {sys.executable} -m pip install torch numpy")
            return CANNOT_START
    try:
        with folder() as own:
            return _compared(options, own)
    except OSError as error:
        _say(str(error))
        return CANNOT_START


def _compared(options: Options, own: Path) -> int:
    """Train, write the results so far, and return the exit status."""
    # A program under nohup continues without its terminal.
    taken = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    for number in taken:
        signal.signal(number, _stop)
    rows: list[Row] = []
    place, status = "", 0
    try:
        prepare()
        with _hosts(options) as (hosts, place):
            _say(f"{options.workers} workers, {place}")
            for order, choice in enumerate(options.choices):
                rows.append(_trained(options, choice, hosts, own / str(order)))
    except OSError as error:
        _say(str(error))
        status, reason = FAILED if rows else CANNOT_START, str(error)
    except KeyboardInterrupt as interrupted:
        name = signal.Signals(interrupted.args[0])
        status, reason = INTERRUPTED + name, f"{name.name} ended the comparison"
    if status and rows:
        rows += [missing(choice.label, reason) for choice in options.choices[len(rows) :]]
    # Nothing remains to clean up, and a reader of the output can be slow.
    for number in taken:
        signal.signal(number, signal.SIG_DFL)
    written = not rows or _write(options, rows, place)
    if status > INTERRUPTED:
        _say("interrupted; all processes that it started have ended")
    return status or (FAILED if not written or any(row.error for row in rows) else 0)


def _stop(number: int, _: Any) -> None:
    """End through all cleanup code, which a second signal does not interrupt."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _say(text: str) -> None:
    print(f"herringbone compare: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _hosts(options: Options) -> Iterator[tuple[Namespaces | None, str]]:
    """A host for each process if links have limits and this machine allows it, and a text that describes the links."""
    helped = any(choice.architecture.helpers for choice in options.choices)
    with contextlib.ExitStack() as stack:
        hosts, place = None, "all on this host, without limits on their links"
        if options.rate is not None:
            spaces = Namespaces(options.workers + (options.servers if helped else 0), options.rate)
            try:
                hosts = stack.enter_context(spaces)
                place = f"each on its own host (a network namespace) with a link of {options.rate:g} Mbit/s each way"
            except NoNamespaces as reason:
                place = f"all on this host, and --rate has no effect, because {reason}"
        yield hosts, place


def _trained(options: Options, choice: Choice, hosts: Namespaces | None, own: Path) -> Row:
    """Train under an architecture. If it fails, its row has the reason."""
    width = max(len(each.label) for each in options.choices)
    bar = Bar(choice.label.rjust(width), options.seconds or options.steps)

    def report(said: dict[str, Any]) -> None:
        loss = f"loss {said['loss']:.3f}" if "loss" in said else ""
        bar.reach(said["step"] if options.seconds is None else said["seconds"], loss)

    bar.reach(0, "processes start")
    try:
        with Job(options, choice, hosts, own) as job:
            measured = job.run(report)
    except JobFailed as failure:
        bar.line(f"failed: {failure}")
        return failed(choice.label, str(failure))
    finally:
        bar.close()
    size = measured["workers"][0]["parameter_bytes"]
    # On one host processor and memory are the links, which the simulator does not model.
    seconds = predicted(options, choice, size) if hosts else None
    row = row_of(choice.label, measured, seconds, choice.architecture.in_step)
    bar.line(f"{row.figures['steps']:.0f} steps in {row.figures['seconds']:.1f} s, loss {row.curve.losses[-1]:.3f}")
    return row


def _write(options: Options, rows: list[Row], place: str) -> bool:
    """Write page and picture, and print the rows. Returns whether all of this worked."""
    works = True
    for path, made in ((options.html, page), (options.svg, picture)):
        if path is not None:
            why = write(path, made(options, rows, place))
            works = works and why is None
            _say(f"wrote {path}" if why is None else f"cannot write {path}: {why}")
    if options.form == "csv":
        text = as_csv(rows)
    elif options.form == "json":
        text = as_json(options, rows, place) + "\n"
    else:
        text = table(rows, shutil.get_terminal_size().columns if sys.stdout and sys.stdout.isatty() else None) + "\n"
    try:
        print(text, end="", flush=True)
    except OSError as error:
        _say(f"cannot print: {error.strerror}")
        # Otherwise Python would write the rest again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return works


if __name__ == "__main__":
    sys.exit(main())
