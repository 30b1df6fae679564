"""Injects faults, on Gloo and on Herringbone in the same run, and writes what became of them; `make faults` calls it.

Every fault is injected again and again, by seeds that count from 0. The exit code is 0 if Herringbone did what is promised
each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import signal
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

import page
from cables import NoNamespaces
from faults import FAULTS, FEW, FLIPS, HOSTS_PLACE, MANY, ONCE, PROXIES_PLACE, Fault, is_wrong
from injection import HUNG, NOT_TRIED, Injection
from integrity import Reducers
from scene import Lab
from machine import machine

from lab.events import Silence

LOG = ROOT / "target" / "faults.log"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    option = parser.add_argument
    option(
        "--injections",
        type=int,
        default=20,
        metavar="N",
        help="of a quick fault; a quarter of slow ones, 50 N of flips (20)",
    )
    option(
        "--select",
        action="append",
        metavar="TEXT",
        help="only faults with this in their names; the page stays as it was",
    )
    option("--list", action="store_true", help="the names of all faults, and nothing else")
    option("--json", action="store_true", help="a JSON object for each injection, instead of the table")
    option("--from", dest="source", type=pathlib.Path, metavar="RECORD", help="inject nothing; show the table of a record")
    option("--record", type=pathlib.Path, help="a file for the raw figures")
    option("--page", type=pathlib.Path, help="a file for the table")
    return parser.parse_args()


def times(fault: Fault, injections: int) -> int:
    """How many jobs get a fault; one of flips has three of them."""
    return {ONCE: 1, FEW: max(1, injections // 4), MANY: injections, FLIPS: -(-injections * 50 // 3)}[fault.often]


def injected(place: Any, fault: Fault, system: str, seed: int) -> Injection:
    """One injection; where ranks do not say what they have to, that is what became of it."""
    try:
        return fault.inject(place, fault.name, system, seed)
    except Silence as problem:
        return Injection(fault.name, system, seed, HUNG, note=str(problem)[:600])
    except NoNamespaces as reason:
        return Injection(fault.name, system, seed, NOT_TRIED, note=str(reason))


def injections(faults: list[Fault], number: int) -> Iterator[Injection]:
    """All of them, as they end."""
    places: dict[str, Any] = {HOSTS_PLACE: Lab, PROXIES_PLACE: Reducers}
    for name, kind in places.items():
        chosen = [fault for fault in faults if fault.place == name]
        if not chosen:
            continue
        with kind(LOG) as place:
            for fault in chosen:
                for system in fault.systems:
                    for seed in range(times(fault, number)):
                        yield injected(place, fault, system, seed)


class Progress:
    """What runs, how much is done, and how long the rest will take, on standard error."""

    def __init__(self, faults: list[Fault], number: int) -> None:
        self.jobs = sum(times(fault, number) * len(fault.systems) for fault in faults)
        self.done, self.began, self.current = 0, time.monotonic(), ("", "")

    def tell(self, found: Injection) -> None:
        """One more is done."""
        self.done += 1
        if (found.fault, found.system) == self.current and self.done % 50:
            return
        self.current = (found.fault, found.system)
        spent = time.monotonic() - self.began
        words = f"{self.done} of {self.jobs} jobs, {spent:.0f} s: {found.fault}, {found.system}: {found.ending}"
        print(words, file=sys.stderr, flush=True)


def main() -> None:
    options, began = arguments(), time.monotonic()
    faults = [fault for fault in FAULTS if not options.select or any(text in fault.name for text in options.select)]
    if options.list:
        print("\n".join(f"{fault.name}: {fault.title}" for fault in FAULTS))
        return
    if options.source:
        record = json.loads(options.source.read_text())
        print(page.tables(faults, record["injections"]))
        write(options, record)
        return
    if not faults:
        sys.exit(f"no fault has {' or '.join(options.select)} in its name: --list shows them all")
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    found, progress, facts = [], Progress(faults, options.injections), machine()
    by_name = {fault.name: fault for fault in faults}
    failures = 0
    for each in injections(faults, options.injections):
        raw = each.raw()
        found.append(raw)
        failures += is_wrong(by_name[each.fault], raw)
        progress.tell(each)
        if is_wrong(by_name[each.fault], raw):
            print(f"NOT AS PROMISED: {json.dumps(raw)}", file=sys.stderr, flush=True)
        if options.json:
            print(json.dumps(raw), flush=True)
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "injections_of_each": options.injections,
        "seconds": round(time.monotonic() - began),
        "torch": version("torch"),
        "machine": facts,
        "injections": found,
    }
    if not options.json:
        print(page.tables(faults, found))
    if not options.select:
        write(options, record)
    print(f"{len(found)} jobs, {failures} not as promised; what they said is in {LOG.relative_to(ROOT)}", file=sys.stderr)
    sys.exit(bool(failures))


def write(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """The record, a line for each injection, and the page."""
    if options.record:
        rows = ",\n".join(json.dumps(each) for each in record["injections"])
        head = json.dumps({**record, "injections": []}, indent=1).rstrip("}\n").rstrip().removesuffix("[]")
        options.record.write_text(f"{head}[\n{rows}\n]}}\n")
    if options.page:
        options.page.write_text(page.rendered(record))


if __name__ == "__main__":
    # What it started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.suppress(KeyboardInterrupt):
        try:
            main()
        except NoNamespaces as reason:
            sys.exit(f"hosts are network namespaces: {reason}")
