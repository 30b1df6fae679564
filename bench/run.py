"""Runs the rigs of a folder: Herringbone beside the installed libraries, interleaved; records what it found.

Writes record/DATE-rigs.md (the machine, the exact commands, the tables), record/DATE-rigs.svg (the plot), and the line
of README that shows them. A part that this machine cannot run (no root for the cluster, a library that is not
installed) is left out, and the record says so. Exit code 0: whatever ran of ours gave right results everywhere.
"""

import argparse
import datetime
import json
import pathlib
import signal
import sys

import figures
import machine
import newest
import report
from plot import plot
from progress import Progress
from rigs import PEERS, ROOT, Rigs, RigsFailed

SIZES = {"local": "4,1K,64K,1M,25M,100M", "cluster": "64K,1M,25M,100M"}
RANKS = {"local": "2,4,8", "cluster": "4,8"}
TIMEOUT_SECONDS = {"local": 60, "cluster": 240}
QUICK = {"sizes": {"local": "1K,1M", "cluster": "64K,1M"}, "n": {"local": "2,4", "cluster": "4"}}
FLOOR_REPETITIONS = 5


def panels_of(options, peers):
    """Every interleaved run that the options ask for, as `figures` describes a panel."""
    for rig in ("local", "cluster"):
        if options.only not in (None, rig):
            continue
        chosen = {name: each[rig] for name, each in QUICK.items()} if options.quick else {}
        sizes = [size(part) for part in (options.sizes or chosen.get("sizes", SIZES[rig])).split(",")]
        for rate in numbers(options.rates) if rig == "cluster" else [0]:
            for n in numbers(options.n or chosen.get("n", RANKS[rig])):
                for reducers in reducers_of(options.reducers, n) if rig == "cluster" else [0]:
                    yield {
                        "rig": rig,
                        "n": n,
                        "rate": rate,
                        "reducers": reducers,
                        "sizes": sizes,
                        "peers": peers,
                        "rounds": options.rounds or (1 if options.quick else 5),
                        "budget": options.budget or (0.05 if options.quick else 0.3),
                        "timeout": TIMEOUT_SECONDS[rig],
                    }


def numbers(text):
    """`4,8` as numbers."""
    return [int(part) for part in text.split(",")]


def reducers_of(text, n):
    """`N,2` as numbers of reducers beside n workers."""
    return [n if part == "N" else int(part) for part in text.split(",")]


def size(text):
    """`64K` as a number of bytes."""
    unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1].upper(), 0)
    return int(float(text[:-1]) * unit) if unit else int(text)


def measure(options):
    """Runs everything; returns the record."""
    rigs = Rigs(options.rigs, options.binary)
    peers, notes = rigs.peers(options.peers.split(","))
    panels = list(panels_of(options, peers))
    obstacle = rigs.why_no_cluster()
    if obstacle and any(panel["rig"] == "cluster" for panel in panels):
        notes.append(f"the cluster rig is left out: {obstacle}")
        panels = [panel for panel in panels if panel["rig"] != "cluster"]
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": machine.machine(),
        "releases": rigs.releases(peers),
        "notes": notes,
        "floor": {},
        "panels": [],
    }
    for note in notes:
        tell(note)
    if any(panel["rig"] == "local" for panel in panels):
        tell("measuring the floor of an all-reduce inside this host")
        try:
            record["floor"] = rigs.floor(1 if options.quick else FLOOR_REPETITIONS)
        except RigsFailed as failure:
            remember(notes, str(failure))
    run_all(rigs, panels, record)
    return record


def run_all(rigs, panels, record):
    """Runs the panels and adds what they gave to the record; one that fails is noted."""
    programs = [[*panel["peers"], *rigs.ours(panel)[0]] for panel in panels]
    progress = Progress([(names, panel["rounds"]) for names, panel in zip(programs, panels)])
    for index, panel in enumerate(panels):
        progress.panel(index, f"{figures.title(panel)} ({index + 1} of {len(panels)} runs)")
        try:
            raw, complaints = rigs.run(panel, progress)
        except RigsFailed as failure:
            remember(record["notes"], f"{figures.title(panel)}: {failure}")
            continue
        for complaint in complaints:
            tell(complaint)
        found = {"programs": figures.gathered(raw, programs[index]), "command": rigs.shown(panel)}
        record["panels"].append({name: panel[name] for name in panel if name != "peers"} | found)


def remember(notes, note):
    """A note for the record, told at once."""
    notes.append(note)
    tell(note)


def tell(line):
    """A line for the person who waits."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


def merged(files):
    """The records of several files as one, such as a local and a cluster run of the same day."""
    records = [json.loads(file.read_text()) for file in files]
    whole = records[0]
    for record in records[1:]:
        if record["machine"]["commit"] != whole["machine"]["commit"]:
            raise RigsFailed("the files are from different commits; a record describes one")
        whole["panels"] += record["panels"]
        whole["floor"] |= record["floor"]
        whole["notes"] = list(dict.fromkeys(whole["notes"] + record["notes"]))
    return whole


def write(record, folder):
    """Writes tables and plot; returns where the tables are."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{record['date']}-rigs"
    stem.with_suffix(".svg").write_text(plot(record))
    stem.with_suffix(".md").write_text(report.markdown(record, f"{stem.name}.svg"))
    return stem.with_suffix(".md")


def show_newest(folder):
    """Makes README and the page about benchmarks show the newest record of `folder`."""
    name = newest.newest(folder)
    readme, page = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
    readme.write_text(newest.with_ratios(readme.read_text(), name, (folder / f"{name}.md").read_text()))
    page.write_text(newest.with_plot(page.read_text(), name, "../record"))


def arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--rigs", type=pathlib.Path, help="the folder of the rigs")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone")
    option("--only", choices=["local", "cluster"])
    option("--n", help="numbers of ranks (local: 2,4,8; cluster: 4,8)")
    option("--rates", default="500", help="cluster: link rates in Mbit/s, such as 500,1000,1500")
    option("--reducers", default="N", help="cluster: numbers of reducers, such as N,2 (N: one per rank; 0: none)")
    option("--sizes", help="bytes, such as 4,1K,25M")
    option("--peers", default=",".join(PEERS), help="the libraries to run beside ours")
    option("--rounds", type=int, help="of one interleaved run (5; with --quick 1)")
    option("--budget", type=float, help="seconds of each program for each size (0.3; with --quick 0.05)")
    option("--quick", action="store_true", help="two sizes, fewer ranks, one round; goes to target/rigs: to try it")
    option("--json", type=pathlib.Path, help="writes the figures there as well")
    option("--out", type=pathlib.Path, help="the folder of the record (record, which README shows)")
    together = "measures nothing: makes the record from files that --json has written"
    option("--from", dest="files", type=pathlib.Path, nargs="+", metavar="FILE", help=together)
    options = parser.parse_args()
    if options.rigs is None and options.files is None:
        parser.error("--rigs or --from is needed")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        record = merged(options.files) if options.files else measure(options)
    except RigsFailed as failure:
        sys.exit(f"bench: {failure}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    if not record["panels"]:
        sys.exit("bench: nothing could run")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1))
    home = ROOT / "record"
    folder = options.out or (ROOT / "target" / "rigs" if options.quick else home)
    path = write(record, folder)
    if folder.resolve() == home:
        show_newest(home)
        for name in report.outdated(home):
            tell(f"record/{name} is from an earlier run on such a machine: delete it with its plot; see record/README.md")
    print(path)
    sys.exit(1 if figures.ours_failed(record) else 0)


if __name__ == "__main__":
    main()
