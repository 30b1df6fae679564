"""``herringbone compare``: trains under several architectures in turn, and prints what each took and came to."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .architectures import Choice
from .job import Job, JobFailed, prepare
from .namespaces import Namespaces, NoNamespaces
from .options import Options, parsed
from .page import page
from .pictures import picture
from .prediction import predicted
from .progress import Bar
from .report import as_csv, as_json, table
from .results import Row, failed, row_of

__all__ = ["main"]

FAILED, CANNOT_START = 1, 3
"""Exit codes, as the command's other verbs have them."""
INTERRUPTED = 128
"""With the signal's number added, as a shell says it."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status."""
    options = parsed(sys.argv[1:] if words is None else words)
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            _say(f"training needs {name}, and {sys.executable} has none: {sys.executable} -m pip install torch numpy")
            return CANNOT_START
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        prepare()
        with _hosts(options) as (hosts, place):
            _say(f"{options.workers} workers, {place}")
            rows = _rows(options, hosts)
        _write(options, rows, place)
    except OSError as error:
        _say(str(error))
        return CANNOT_START
    except KeyboardInterrupt as interrupted:
        _say("interrupted; all that it started has ended")
        return INTERRUPTED + int(interrupted.args[0])
    return FAILED if any(row.error for row in rows) else 0


def _stop(number: int, _: Any) -> None:
    """End, by way of all that cleans up; a second signal does not disturb that."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _say(text: str) -> None:
    print(f"herringbone compare: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _hosts(options: Options) -> Iterator[tuple[Namespaces | None, str]]:
    """A host for each process if links are to be limited and this machine allows it, and a text that says which links there are."""
    helped = any(choice.architecture.helpers for choice in options.choices)
    with contextlib.ExitStack() as stack:
        hosts, place = None, "all on this host, where nothing limits their links"
        if options.rate is not None:
            spaces = Namespaces(options.workers + (options.servers if helped else 0), options.rate)
            try:
                hosts = stack.enter_context(spaces)
                place = f"each on a host of its own (a network namespace) with a link of {options.rate:g} Mbit/s each way"
            except NoNamespaces as reason:
                place = f"all on this host, and --rate has no effect, because {reason}"
        yield hosts, place


def _rows(options: Options, hosts: Namespaces | None) -> list[Row]:
    """Train under each architecture in turn. One that fails has a row that says why, and the next one begins."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="herringbone-compare-") as folder:
        for number, choice in enumerate(options.choices):
            rows.append(_trained(options, choice, hosts, Path(folder, str(number))))
    return rows


def _trained(options: Options, choice: Choice, hosts: Namespaces | None, folder: Path) -> Row:
    bar = Bar(choice.label, options.seconds or options.steps)

    def report(said: dict[str, Any]) -> None:
        loss = f"loss {said['loss']:.3f}" if "loss" in said else ""
        bar.reach(said["step"] if options.seconds is None else said["seconds"], loss)

    bar.reach(0, "processes start")
    try:
        with Job(options, choice, hosts, folder) as job:
            measured = job.run(report)
    except JobFailed as failure:
        bar.line(f"failed: {failure}")
        return failed(choice.label, str(failure))
    finally:
        bar.close()
    size = measured["workers"][0]["parameter_bytes"]
    seconds = predicted(options, choice, hosts is not None, size)
    row = row_of(choice.label, measured, seconds, choice.architecture.in_step)
    bar.line(f"{row.figures['steps']:.0f} steps in {row.figures['seconds']:.1f} s, loss {row.curve.losses[-1]:.3f}")
    return row


def _write(options: Options, rows: list[Row], place: str) -> None:
    """Print the rows, and write page and picture."""
    if options.form == "csv":
        print(as_csv(rows), end="")
    elif options.form == "json":
        print(as_json(options, rows, place))
    else:
        print(table(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    for path, text in ((options.html, page), (options.svg, picture)):
        if path is not None:
            path.write_text(text(options, rows, place), encoding="utf-8")
            _say(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
